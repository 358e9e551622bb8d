"""Replay a log along one timeline: fit on what was known, answer what came next, move on."""
