"""A day's increment: the served models continued on what is new."""
