"""Snippets and programs: from a caller's code to its result."""
