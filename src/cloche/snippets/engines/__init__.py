"""Language engines of the worker sandbox. They run inside a worker host's box, as `cloche_engines`.

They import one another, the standard library and their engine's package, and nothing of Cloche.
"""
