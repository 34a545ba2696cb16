"""The ways out of a box: each is one that the host walks for it, and may refuse."""
