"""Spans of time as people write them.

>>> from timespan import parse, spell
>>> parse("1h30m")
5400
>>> spell(5400)
'1 hour 30 minutes'
"""

from timespan.spans import SpanError, parse, spell

__all__ = ["SpanError", "parse", "spell"]
