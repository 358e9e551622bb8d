"""Commands that a scheduler calls."""
