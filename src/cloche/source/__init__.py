"""The one parser and transformer for JavaScript and TypeScript: pure text to text.

A snippet goes in, an ES module with the snippet's value as its default export comes out. It is
called only by programs that run inside a box, since the parser is native code that reads
hostile text.
"""

from .positions import Edit, map_position
from .transform import Import, Refused, Transformed, transform

__all__ = ["Edit", "Import", "Refused", "Transformed", "map_position", "transform"]
