"""Replay a log along one timeline: fit on the past, answer the next step, move on."""
