"""Replay a run's past: what each policy of training would have earned, step by step."""
