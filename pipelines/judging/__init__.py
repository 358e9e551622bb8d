"""Judges of lists: rubrics and language models, and what is measured of both."""
