"""Cloche's figures as ratios against bare tools: `python -m bench`."""
