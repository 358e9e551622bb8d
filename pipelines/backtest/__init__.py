"""Replay a run's log step by step: retraining policies compared in quality and cost."""
