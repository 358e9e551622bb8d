"""A backtest in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def words_of(document: Mapping[str, Any]) -> list[str]:
    """Say what retraining would have earned."""
    return [f"{len(document['steps'])} steps were replayed."]


def lines_of(document: Mapping[str, Any]) -> list[str]:
    """Write the summary as lines."""
    metric = document["metric"]
    return [
        f"{one['policy']:<12} {one['row']:<16} {metric} {one['metrics'][metric]:.4f} "
        f"{one['fit_seconds']:8.1f} s"
        for one in document["summary"]
    ]
