"""Candidate models and the ranker."""
