"""Columns of tables by what they hold."""

from __future__ import annotations

from pipelines.pages.document import Column, Format


def texts(*labels: str, note: str = "") -> list[Column]:
    """Build columns of text."""
    return [Column(label=label, note=note) for label in labels]


def numbers(*labels: str, format: Format = "", note: str = "") -> list[Column]:
    """Build columns of numbers."""
    return [Column(label=label, note=note, numeric=True, format=format) for label in labels]


def counts(*labels: str, note: str = "") -> list[Column]:
    """Build columns of whole numbers."""
    return numbers(*labels, format="count", note=note)


def shares(*labels: str, note: str = "") -> list[Column]:
    """Build columns of shares."""
    return numbers(*labels, format="percent", note=note)
