"""A figure of a report: a chart with its title, caption, and the table of its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.pages.charts.shapes import Bar, share_chart
from recsys.evaluation.bootstrap import Interval


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One chart with its words and values."""

    key: str
    title: str
    note: str
    """Caption."""
    description: str
    """Alternative text for a reader who cannot see the chart."""
    spec: Mapping[str, Any]
    legend: Mapping[str, str]
    """Colour by name of a series; empty where none is needed."""
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def written(value: float) -> str:
    """Format a metric."""
    return f"{value:.4f}"


def ranged(interval: Interval) -> str:
    """Format the bounds of an interval."""
    return f"{written(interval.low)} to {written(interval.high)}"


def percent(share: float) -> str:
    """Format a share."""
    return f"{share:.1%}"


def share_figure(
    key: str,
    words: tuple[str, str, str],
    shares: Mapping[str, Mapping[str, float]],
    colors: Mapping[str, str],
    *,
    x_title: str,
    columns: tuple[str, ...],
    legend: bool = True,
) -> Figure:
    """Draw stacked bars, one of each label.

    Args:
        words: Title, note and description.
        shares: By label and series.
        colors: Of each series.
    """
    bars = [
        Bar(label=label, series=name, share=share, note=f"{label} \u00b7 {name}: {percent(share)}")
        for label, parts in shares.items()
        for name, share in parts.items()
    ]
    return Figure(
        key=key,
        title=words[0],
        note=words[1],
        description=words[2],
        spec=share_chart(
            [bar for bar in bars if bar.share], colors, x_title=x_title, labels=list(shares)
        ),
        legend=colors if legend else {},
        columns=columns,
        rows=[(bar.label, bar.series, percent(bar.share)) for bar in bars],
    )
