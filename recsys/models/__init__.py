"""Candidate models, each whole in one file: popularity, item-to-item, two-tower."""
