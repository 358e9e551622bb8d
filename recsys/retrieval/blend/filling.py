"""The weight of a source that only fills lists; needs no torch, as configuration reads it."""

FILL = 0.001
"""Weight of a source that only fills lists up: below any place of the others, in its own order."""
