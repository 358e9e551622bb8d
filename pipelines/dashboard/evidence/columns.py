"""Columns of tables by what they hold."""

from __future__ import annotations

from pipelines.pages.document import Column


def texts(*labels: str) -> list[Column]:
    """Make columns of text."""
    return [Column(label=label) for label in labels]


def counts(*labels: str, note: str = "") -> list[Column]:
    """Make columns of whole numbers."""
    return [Column(label=label, note=note, numeric=True, format="count") for label in labels]


def shares(*labels: str, note: str = "") -> list[Column]:
    """Make columns of shares."""
    return [Column(label=label, note=note, numeric=True, format="percent") for label in labels]
