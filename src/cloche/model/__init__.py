"""Frozen values that the rooms hand to each other; no I/O."""
