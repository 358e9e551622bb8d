"""Jagged attention with SiLU in place of softmax, and the gated norm after it."""
