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
from pipelines.pages.wording import group_meaning, group_title, metric_label, model_label, parted
from recsys.evaluation.slices import SliceMetrics

MAX_ROWS = 10
"""Rows of a chart of slices; its table has all."""
MAX_NAME = 18
"""Characters of a slice's name in a chart."""
ISOLATE, RELEASE = "\u2068", "\u2069"


def model_colors(data: ReportData, *more: str) -> dict[str, str]:
    """Give each model, and each further label, a colour of its own in all charts."""
    labels = dict.fromkeys([*map(model_label, data.models), *more])
    return {label: color_of(place) for place, label in enumerate(labels)}


def cutoffs(data: ReportData) -> Chart | None:
    """Draw the hit rate by length of the list."""
    values = data.metrics[data.order]["test"]
    lengths = sorted(
        int(parted(name)[1]) for name in values[data.models[0]] if parted(name)[0] == "hit_rate"
    )
    if len(lengths) < 2:
        return None
    return figure(
        line_chart,
        "cutoffs",
        "Hit rate by list length",
        "Share of users with a held-out item among the first k, on test.",
        [*texts("model"), *counts("k"), *shares("hit rate")],
        [
            (model_label(model), k, values[model][f"hit_rate@{k}"])
            for model in data.models
            for k in lengths
        ],
        "series x y",
        colors=model_colors(data),
        x_title="k (length of the list)",
        y_title="hit rate",
        x_values=lengths,
        y_format=".0%",
    )


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


def _slice_note(group: str, parts: Sequence[SliceMetrics]) -> str:
    """Explain a group of slices, and name the empty ones."""
    notes = [group_meaning(group)]
    empty = [part.name for part in parts if not part.num_users]
    if empty:
        notes.append(f"No users in: {', '.join(empty)}.")
    if len(parts) - len(empty) > MAX_ROWS:
        notes.append(f"The chart shows the {MAX_ROWS} largest slices, the table all.")
    return " ".join(filter(None, notes))


def slice_figures(data: ReportData) -> list[Chart]:
    """Draw each group of slices that has a user in it."""
    parts = data.measured("test").models[data.models[0]].slices
    groups = dict.fromkeys(part.group for part in parts if part.num_users)
    return [_slice_figure(data, group) for group in groups]


def _slice_figure(data: ReportData, group: str) -> Chart:
    models, name = data.measured("test").models, metric_label(data.primary)
    own = {
        model: [part for part in models[model].slices if part.group == group]
        for model in data.models
    }
    first = own[data.models[0]]
    labels = counted([part.name for part in first], [part.num_users for part in first])
    filled = [place for place, part in enumerate(first) if part.num_users]
    largest = sorted(filled, key=lambda place: -first[place].num_users)[:MAX_ROWS]
    drawn = [labels[place] for place in filled if place in largest]
    return figure(
        interval_chart,
        f"slices-{group}",
        group_title(group),
        _slice_note(group, first),
        [*texts("of", "model"), *numbers(name, "low (95%)", "high (95%)", format="metric")],
        [
            (labels[place], model_label(model), *own[model][place].metrics[data.primary][:3])
            for place in filled
            for model in data.models
        ],
        "label series mean low high",
        colors=model_colors(data),
        shown=lambda row: row[0] in drawn,
        x_title=f"{name} (users in brackets)",
        labels=drawn,
    )


def curve_figure(data: ReportData) -> Chart | None:
    """Draw the validation metric of models that were trained by steps.

    A ring marks the chosen checkpoint.
    """
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


def blend_figures(data: ReportData) -> list[Chart]:
    """Draw the share of each source in the first ten of each profile's lists."""
    rows = [
        (profile, model_label(source), share)
        for profile, blend in data.blends.items()
        for source, share in blend["shares"].items()
    ]
    if not any(share for *_, share in rows):
        return []
    names = {name for _, name, _ in rows}
    colors = model_colors(data, *(name for _, name, _ in rows))
    chart = figure(
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
    return [chart]
