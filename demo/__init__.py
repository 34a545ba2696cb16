"""A walk through Cloche that checks what it shows: `python -m demo`."""
