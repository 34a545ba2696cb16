"""Makers of boxes; `base` is the contract, each other module one backend."""
