"""The feed-forward half of an attention block."""

from __future__ import annotations

from torch import nn


def feed_forward(dim: int, hidden_dim: int, dropout: float) -> nn.Sequential:
    """Build a normed feed-forward layer, [..., D] -> [..., D]; the caller adds it to its input."""
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, hidden_dim),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(hidden_dim, dim),
    )
