"""People: who is forgotten, and whose rows are in raw files."""
