"""How long lists took: by stage, over time."""

from __future__ import annotations

import numpy as np
import polars as pl

from pipelines.dashboard.service.columns import STAGE_COLUMNS
from pipelines.dashboard.service.view import View, clock, iso
from pipelines.pages.charts.shapes import Dot, interval_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.charts.timelines import TimePoint, time_lines
from pipelines.pages.document import Block, Chart, Section, Words
from serving.metrics import STAGES

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
MEANINGS = {
    "hydrate": "read the user's history and make features",
    "filter": "find the items that may be shown",
    "retrieve": "query the sources",
    "rank": "blend and rank the candidates",
    "select": "rules, diversity, exploration",
    "total": "all of them",
}
NOT_KEPT = (
    "The log does not say how long these lists took: they were served by a version that kept no "
    "times. The part Live server has them from the server's own metrics."
)


def latency_section(view: View) -> Section:
    """Draw quantiles of a stage over time, and of every stage over the whole range."""
    title = "Time of a list by stage"
    timed = view.timed
    if timed.is_empty():
        return Section(key="latency", title=title, blocks=[Words(lines=[NOT_KEPT], tone="note")])
    blocks: list[Block] = [_over_time(view, timed), *_by_stage(view, timed)]
    missing = view.lists["total_ms"].null_count()
    if missing:
        words = f"{missing:,} of {view.lists.height:,} lists were kept without times."
        blocks.append(Words(lines=[words], tone="note"))
    note = "Without the wait for a worker, and without the network."
    if view.every > 1:
        note += f" Quantiles are those of one list in {view.every}, evenly taken."
    return Section(key="latency", title=title, blocks=blocks, note=note)


def _over_time(view: View, timed: pl.DataFrame) -> Chart:
    column = pl.col(f"{view.stage}_ms")
    rows = (
        timed.group_by("step_ms")
        .agg(
            *(column.quantile(q, "linear").alias(name) for name, q in QUANTILES.items()),
            column.count().alias("lists"),
        )
        .filter(pl.col("p50").is_not_null())
        .sort("step_ms")
        .to_dicts()
    )
    colors = {name: color_of(place) for place, name in enumerate(QUANTILES)}
    stretches = view.stretches([row["step_ms"] for row in rows])
    points = [
        TimePoint(
            at=iso(row["step_ms"]),
            y=row[name],
            series=name,
            stretch=stretches[row["step_ms"]],
            note=f"{clock(row['step_ms'])}: {name} {row[name]:.2f} ms of {row['lists']:,} lists",
        )
        for row in rows
        for name in QUANTILES
    ]
    return Chart(
        key="latency",
        title=f"Milliseconds of {view.stage}",
        note=f"Half of the lists of each {view.step} took at most p50, 95 of 100 at most p95, 99 "
        "at most p99. A dashed line is a swap of the bundle.",
        description=f"p50, p95 and p99 of {view.stage} by {view.step}.",
        spec=time_lines(points, colors, y_title="milliseconds", marks=view.swaps),
        legend=colors,
        columns=("from (UTC)", "lists", *(f"{name} (ms)" for name in QUANTILES)),
        rows=[
            (clock(row["step_ms"]), row["lists"], *(round(row[name], 4) for name in QUANTILES))
            for row in rows
        ],
        origins=view.origins,
    )


def _by_stage(view: View, timed: pl.DataFrame) -> list[Block]:
    found = {}
    for stage, column in zip(STAGES, STAGE_COLUMNS, strict=True):
        values = timed[column].drop_nulls().to_numpy()
        if len(values):
            quantiles = np.quantile(values, (0.05, *QUANTILES.values(), 1.0)).tolist()
            found[stage] = (*quantiles, len(values))
    dots = [
        Dot(
            label=stage,
            series="lists",
            mean=p50,
            low=p5,
            high=p95,
            note=f"{stage}: half at most {p50:.2f} ms, 5 of 100 below {p5:.2f}, above {p95:.2f}",
        )
        for stage, (p5, p50, p95, _, _, _) in found.items()
    ]
    names = (*(f"{name} (ms)" for name in ("p5", *QUANTILES, "longest")), "lists", "what it does")
    chart = Chart(
        key="stages",
        title="Where the time goes",
        note="The dot is the median of a stage, the line holds 90 of 100 lists of the range.",
        description="Median and 5% to 95% of each stage in milliseconds.",
        spec=interval_chart(
            dots, {"lists": color_of(0)}, x_title="milliseconds", labels=list(found)
        ),
        columns=("stage", *names),
        rows=[
            (stage, *(round(one, 4) for one in row), MEANINGS[stage])
            for stage, row in found.items()
        ],
        origins=view.origins,
    )
    return [chart]
