"""The page of experiments: one HTML file with the confidence sequence of each arm over days."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pipelines.experiments.analysis import AnalysisConfig, ExperimentResult
from pipelines.experiments.wording import duration, number, sentences
from pipelines.pages.charts.shapes import Band, band_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.figure import Figure
from pipelines.pages.page import rendered


def figures_of(results: Sequence[ExperimentResult], outcome: str) -> Mapping[str, list[Figure]]:
    """Draw the sequences of every experiment, by its name; none where there is no claim yet."""
    return {
        result.name: [
            figure
            for place, arm in enumerate(result.sequences)
            if (figure := _figure(result, arm, f"{one}-{place}", color_of(place + 1), outcome))
        ]
        for one, result in enumerate(results)
    }


def _figure(
    result: ExperimentResult, arm: str, key: str, color: str, outcome: str
) -> Figure | None:
    sequence = result.sequences[arm]
    bands = []
    for day, mean, low, high in zip(result.days, *map(list, sequence), strict=True):
        if math.isfinite(low):
            text = f"{day}: {number(mean, signed=True)}"
            bounds = f"{number(low, signed=True)} to {number(high, signed=True)}"
            note = f"{text} ({bounds})"
            bands.append(Band(day=f"{day}", mean=mean, low=low, high=high, note=note))
    if not bands:
        return None
    first = result.arms[0].name
    return Figure(
        key=key,
        title=f"{arm} less {first}",
        note="The band covers the true difference on all days at once in 95 of 100 experiments. "
        "While 0 is inside, no difference is shown.",
        description=f"Confidence sequence of {arm} less {first} in {outcome}, by day.",
        spec=band_chart(bands, color, y_title=f"difference in {outcome}"),
        legend={},
        columns=("day", "difference", "from", "to"),
        rows=[
            (
                band.day,
                number(band.mean, signed=True),
                number(band.low, signed=True),
                number(band.high, signed=True),
            )
            for band in bands
        ],
    )


def experiments_html(
    results: Sequence[ExperimentResult], config: AnalysisConfig, outcome: str
) -> str:
    """Write the page."""
    return rendered(
        "experiments.html.jinja",
        figures_of(results, outcome),
        results=results,
        outcome=outcome,
        window=duration(config.window),
        number=number,
        said={result.name: list(sentences(result, config, outcome)) for result in results},
    )
