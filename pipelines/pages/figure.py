"""Charts of shares, and how their numbers are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipelines.pages.charts.shapes import Bar, share_chart
from pipelines.pages.document import Block, Chart, Lists, Origin, Section, Table
from recsys.evaluation.bootstrap import Interval


def chart_of(chart: Chart, origins: Sequence[Origin]) -> Chart:
    """Name the runs that a chart's numbers are from."""
    return replace(chart, origins=origins)


def with_origins(section: Section, origins: Sequence[Origin]) -> Section:
    """Name the runs that the numbers of a section are from."""

    def named(block: Block) -> Block:
        if isinstance(block, Section):
            return with_origins(block, origins)
        if isinstance(block, (Chart, Table, Lists)):
            return replace(block, origins=origins)
        return block

    return replace(section, blocks=[named(block) for block in section.blocks])


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
) -> Chart:
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
    return Chart(
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
