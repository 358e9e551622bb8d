"""Jagged attention with SiLU in place of softmax."""
