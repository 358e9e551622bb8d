"""The page of experiments: arms with the confidence sequence of each over days."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipelines.experiments.analysis import AnalysisConfig, ExperimentResult
from pipelines.experiments.wording import duration, sentences
from pipelines.pages.charts import color_of, counts, figure, line_chart, numbers, texts
from pipelines.pages.document import Block, Chart, Origin, Page, Section, Table, Words


def experiments_page(
    results: Sequence[ExperimentResult], config: AnalysisConfig, outcome: str
) -> Page:
    """Build the page, a section for each experiment."""
    return Page(
        title=f"Experiments: {outcome}",
        lead="Each user counts once, under the arm of their first list, with what they did within "
        f"{duration(config.window)} of it. Intervals hold on all days together, so you may look "
        "at any time.",
        blocks=[
            Section(
                key=f"experiment-{place}",
                title=result.name,
                blocks=experiment_blocks(result, config, outcome),
            )
            for place, result in enumerate(results)
        ],
    )


def experiment_blocks(
    result: ExperimentResult,
    config: AnalysisConfig,
    outcome: str,
    origins: Sequence[Origin] = (),
) -> list[Block]:
    """Build sentences, the table of arms, and a chart for each arm with a claim."""
    charts = [_chart(result, arm, outcome, origins) for arm in result.sequences]
    return [
        Words(lines=list(sentences(result, config, outcome)), tone="note"),
        Table(
            key=f"arms-{result.name}",
            title=result.name,
            note="Differences are from the first arm; no interval means no claim yet.",
            columns=[
                *texts("arm"),
                *counts("users", "that count", "lists"),
                *numbers(outcome, format="metric"),
                *numbers("difference", "from", "to", format="signed"),
            ],
            rows=[
                (
                    *(arm.name, arm.users, arm.settled, arm.lists, arm.outcome),
                    *(arm.difference, arm.low, arm.high),
                )
                for arm in result.arms
            ],
            origins=origins,
        ),
        *(chart for chart in charts if chart is not None),
    ]


def _chart(
    result: ExperimentResult, arm: str, outcome: str, origins: Sequence[Origin]
) -> Chart | None:
    rows = [
        (f"{day}", mean, low, high)
        for day, mean, low, high in zip(result.days, *map(list, result.sequences[arm]), strict=True)
        if math.isfinite(low)
    ]
    if not rows:
        return None
    return figure(
        line_chart,
        f"{result.name}-{arm}",
        f"{arm} less {result.arms[0].name}",
        "The band covers the true difference on all days at once in 95 of 100 experiments. "
        "While 0 is inside, no difference is shown.",
        [*texts("day"), *numbers("difference", "from", "to", format="signed")],
        rows,
        "x y low high",
        colors={"": color_of(list(result.sequences).index(arm) + 1)},
        x_title="day (UTC)",
        y_title=f"difference in {outcome}",
        time=True,
        from_zero=True,
        rule_at=0.0,
        origins=origins,
    )
