"""The charts of the evaluation report."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.pages.charts import (
    color_of,
    counts,
    figure,
    interval_chart,
    line_chart,
    numbers,
    share_chart,
    shares,
    texts,
)
from pipelines.pages.document import Chart
from pipelines.pages.report_data import ReportData
from pipelines.pages.wording import metric_label, model_label

MAX_ROWS = 20
"""Slices of the chart; its table has all."""
MAX_NAME = 18
"""Characters of a slice's name in a chart."""
ISOLATE, RELEASE = "\u2068", "\u2069"


def model_colors(data: ReportData, *more: str) -> dict[str, str]:
    """Give each model, and each further label, a colour of its own in all charts."""
    labels = dict.fromkeys([*map(model_label, data.models), *more])
    return {label: color_of(place) for place, label in enumerate(labels)}


def counted(names: Sequence[str], numbers_: Sequence[int]) -> list[str]:
    """Label each name with its count; long names are cut, and no two labels are equal.

    A name that is written from right to left must not turn its count around.
    """
    labels: list[str] = []
    for name, count in zip(names, numbers_, strict=True):
        short = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3].rstrip()}..."
        label = f"{short if short.isascii() else f'{ISOLATE}{short}{RELEASE}'} ({count:,})"
        labels.append(label if label not in labels else f"{label} #{len(labels) + 1}")
    return labels


def slice_figure(data: ReportData, models: Sequence[str]) -> Chart | None:
    """Draw the primary metric of some models by slice; the table has every model and slice."""
    measured, name = data.measured("test").models, metric_label(data.primary)
    first = measured[data.models[0]].slices
    filled = [place for place, part in enumerate(first) if part.num_users]
    if not filled:
        return None
    labels = counted([part.name for part in first], [part.num_users for part in first])
    largest = sorted(filled, key=lambda place: -first[place].num_users)[:MAX_ROWS]
    drawn = [labels[place] for place in filled if place in largest]
    shown = {model_label(model) for model in models}
    rows = [
        (
            *(labels[place], first[place].group.replace("_", " "), model_label(model)),
            *measured[model].slices[place].metrics[data.primary][:3],
        )
        for place in filled
        for model in data.models
    ]
    return figure(
        interval_chart,
        "slices",
        f"{name} of {' and '.join(sorted(shown))} by slice",
        f"The chart shows the {MAX_ROWS} largest slices, the table all, of every model. Items by "
        "popularity: head, the most popular with half of all training events; torso, the next 40%; "
        "tail, the rest; cold, not in training. Heavy users are the most active fifth.",
        [
            *texts("slice", "of", "model"),
            *numbers(name, "low (95%)", "high (95%)", format="metric"),
        ],
        rows,
        "label - series mean low high",
        colors={one: color for one, color in model_colors(data).items() if one in shown},
        shown=lambda row: row[0] in drawn and row[2] in shown,
        x_title=f"{name} (users in brackets)",
        labels=drawn,
    )


def curve_figure(data: ReportData) -> Chart | None:
    """Draw the validation metric of models that were trained by steps."""
    curves = [curve for curve in data.curves if curve.validation]
    if not curves:
        return None
    names = [model_label(curve.model) for curve in curves]
    known, label = model_colors(data, *sorted(names)), metric_label(curves[0].metric)
    note = "The ring marks the checkpoint that was kept."
    if any(curve.model == "ranked" for curve in curves):
        note += " The ranker is validated on training events of users held out from it."
    return figure(
        line_chart,
        "curve-validation",
        f"{label} on validation",
        note,
        [*texts("training"), *counts("step"), *numbers(label, format="metric"), *texts("kept")],
        [
            (name, step, value, step == curve.best_step)
            for name, curve in zip(names, curves, strict=True)
            for step, value in curve.validation
        ],
        "series x y ring",
        colors={name: color for name, color in known.items() if name in names},
        x_title="step",
        y_title=label,
    )


def blend_figure(data: ReportData) -> Chart | None:
    """Draw the share of each source in the first ten of each profile's lists."""
    rows = [
        (profile, model_label(source), share)
        for profile, blend in data.blends.items()
        for source, share in blend["shares"].items()
    ]
    if not any(share for *_, share in rows):
        return None
    names = {name for _, name, _ in rows}
    colors = model_colors(data, *(name for _, name, _ in rows))
    return figure(
        share_chart,
        "blend-shares",
        "Contribution of each model",
        "Share of the blended scores of the first ten, over the validation users.",
        [*texts("profile", "model"), *shares("share")],
        rows,
        "label series share",
        colors={name: color for name, color in colors.items() if name in names},
        shown=lambda row: bool(row[2]),
        x_title="share of the score",
    )
