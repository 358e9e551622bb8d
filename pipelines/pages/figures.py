"""The charts of the evaluation report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.pages.charts import (
    NOBODY,
    SECOND,
    SHARED,
    Row,
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
from pipelines.pages.report_data import SPLITS, Curve, ReportData
from pipelines.pages.summary import MIN_USERS, best_model, comparisons, source_label
from pipelines.pages.wording import (
    TIE_ORDERS,
    group_meaning,
    group_title,
    metric_label,
    model_label,
    parted,
)
from recsys.evaluation.slices import SliceMetrics

MAX_ROWS = 10
"""Rows of a chart of slices; its table has all."""
MAX_NAME = 18
"""Characters of a slice's name in a chart."""
ISOLATE, RELEASE = "\u2068", "\u2069"
TIED, NOT_FOUND = "tied", "not found"


def model_colors(data: ReportData, *more: str) -> dict[str, str]:
    """Give each model, and each further label, a colour of its own in all charts."""
    labels = dict.fromkeys([*map(model_label, data.models), *more])
    return {label: color_of(place) for place, label in enumerate(labels)}


def _intervals(
    data: ReportData, key: str, words: tuple[str, str, str], rows: Sequence[Row], **settings: Any
) -> Chart:
    """Draw the primary metric with its interval.

    Args:
        words: Title, note, and what the series are.
        rows: Label, series, mean, low and high.
    """
    title, note, series = words
    name = metric_label(data.primary)
    return figure(
        interval_chart,
        key,
        title,
        note,
        [*texts("of", series), *numbers(name, "low (95%)", "high (95%)", format="metric")],
        rows,
        "label series mean low high",
        **({"x_title": name} | settings),
    )


def overview(data: ReportData) -> Chart:
    """Draw the primary metric of every model on both splits."""
    return _intervals(
        data,
        "overview",
        (f"{metric_label(data.primary)} by model", "Lines are 95% intervals.", "split"),
        [
            (model_label(model), split, *data.interval(model, split)[:3])
            for model in data.models
            for split in SPLITS
        ],
        colors={"test": color_of(2), "validation": SECOND},
    )


def tie_figure(data: ReportData) -> Chart | None:
    """Draw the primary metric for each order of tied events, if there are several."""
    if len(data.orders) < 2:
        return None
    return _intervals(
        data,
        "ties",
        (
            f"{metric_label(data.primary)} by order of tied events",
            "On test; models are trained separately for each order.",
            "order of ties",
        ),
        [
            (
                model_label(model),
                TIE_ORDERS.get(order, order),
                *data.interval(model, "test", order)[:3],
            )
            for model in data.models
            for order in data.orders
        ],
    )


def differences(data: ReportData) -> Chart | None:
    """Draw the paired differences of the primary metric on test."""
    name = metric_label(data.primary)
    rows = [
        (
            f"{model_label(one.candidate)} - {model_label(one.baseline)}",
            *(one.difference, one.low, one.high),
        )
        for one in comparisons(data)
    ]
    if not rows:
        return None
    return figure(
        interval_chart,
        "differences",
        f"Paired differences in {name}",
        "Right of the dashed line the first model is better, left of it the second.",
        [*texts("models"), *numbers("difference", "low (95%)", "high (95%)", format="signed")],
        rows,
        "label mean low high",
        x_title=f"difference in {name}",
        rule_at=0.0,
    )


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


def _slice_note(data: ReportData, group: str, parts: Sequence[SliceMetrics]) -> str:
    """Explain a group of slices: definition, empty slices, best and worst slice."""
    notes = [group_meaning(group)]
    empty = [part.name for part in parts if not part.num_users]
    if empty:
        notes.append(f"No users in: {', '.join(empty)}.")
    filled = [
        (part.metrics[data.primary].mean, part.name)
        for part in parts
        if part.num_users >= MIN_USERS
    ]
    if len(filled) > 1:
        (worst, bad), (most, good) = min(filled), max(filled)
        best = model_label(best_model(data))
        notes.append(f"Best slice of {best}: {good} ({most:.3f}); worst: {bad} ({worst:.3f}).")
    if len(parts) - len(empty) > MAX_ROWS:
        notes.append(f"The chart shows the {MAX_ROWS} largest slices, the table all.")
    return " ".join(filter(None, notes))


def slice_figures(data: ReportData) -> list[Chart]:
    """Draw each group of slices that has a user in it."""
    models = data.measured("test").models
    parts = models[data.models[0]].slices
    found = []
    for group in dict.fromkeys(part.group for part in parts if part.num_users):
        own = {
            model: [part for part in models[model].slices if part.group == group]
            for model in data.models
        }
        first = own[data.models[0]]
        labels = counted([part.name for part in first], [part.num_users for part in first])
        filled = [place for place, part in enumerate(first) if part.num_users]
        largest = sorted(filled, key=lambda place: -first[place].num_users)[:MAX_ROWS]
        shown = [labels[place] for place in filled if len(filled) <= MAX_ROWS or place in largest]
        rows = [
            (labels[place], model_label(model), *own[model][place].metrics[data.primary][:3])
            for place in filled
            for model in data.models
        ]
        name = metric_label(data.primary)
        chart = _intervals(
            data,
            f"slices-{group}",
            (group_title(group), _slice_note(data, group, own[best_model(data)]), "model"),
            rows,
            colors=model_colors(data),
            x_title=f"{name} (users in brackets)",
            labels=shown,
            shown=lambda row, names=frozenset(shown): row[0] in names,
        )
        found.append(chart)
    return found


def winner_figures(data: ReportData) -> list[Chart]:
    """Draw which model ranks the held-out item best, for each group of slices."""
    if len(data.models) < 2 or data.wins is None:
        return []
    everyone, *slices = data.wins.slices
    colors = {**model_colors(data), TIED: SHARED, NOT_FOUND: NOBODY}
    found = []
    for group in dict.fromkeys(part["group"] for part in slices if part["num_targets"]):
        parts = [part for part in slices if part["group"] == group and part["num_targets"]]
        parts = [everyone, *parts]
        labels = counted([part["name"] for part in parts], [part["num_targets"] for part in parts])
        rows = [
            (label, name, share)
            for label, part in zip(labels, parts, strict=True)
            for name, share in (
                *((model_label(model), share) for model, share in part["alone"].items()),
                (TIED, part["shared"]),
                (NOT_FOUND, part["missed"]),
            )
        ]
        chart = figure(
            share_chart,
            f"wins-{group}",
            group_title(group),
            "Which model alone ranks the held-out item best.",
            [*texts("slice (items)", "best model"), *shares("share")],
            rows,
            "label series share",
            colors=colors,
            shown=lambda row: bool(row[2]),
            x_title="share of held-out items",
        )
        found.append(chart)
    return found


def _curve_names(curves: Sequence[Curve]) -> list[str]:
    ties = [TIE_ORDERS.get(curve.tie_order, curve.tie_order) for curve in curves]
    return [
        f"{model_label(curve.model)}, ties {order}" if len(curves) > 1 else model_label(curve.model)
        for curve, order in zip(curves, ties, strict=True)
    ]


def curve_figures(data: ReportData) -> list[Chart]:
    """Draw loss and validation metric of models that were trained by steps.

    A ring marks the chosen checkpoint.
    """
    names = _curve_names(data.curves)
    known, taken = model_colors(data, *names), set[str]()
    colors = {}
    for curve, name in zip(data.curves, names, strict=True):
        # A model's own colour; its further trainings have others.
        own = known.get(model_label(curve.model), known[name])
        colors[name] = own if own not in taken else known[name]
        taken.add(own)
    notes = ["The ring marks the checkpoint that was kept."]
    if any(curve.model == "ranked" for curve in data.curves):
        notes.append("The ranker is validated on training events of users held out from it.")
    metric = next((metric_label(one.metric) for one in data.curves if one.validation), "")
    charts = []
    for key, title, label, note in (
        ("loss", "Training loss", "loss", "By training step; lower is better."),
        ("validation", f"{metric} on validation", metric, " ".join(notes)),
    ):
        rows = [
            (name, step, value, key == "validation" and step == curve.best_step)
            for curve, name in zip(data.curves, names, strict=True)
            for step, value in (curve.loss if key == "loss" else curve.validation)
        ]
        columns = [*texts("training"), *counts("step"), *numbers(label, format="metric")]
        if rows:
            chart = figure(
                line_chart,
                f"curve-{key}",
                title,
                note,
                [*columns, *texts("kept")],
                rows,
                "series x y ring",
                colors=colors,
                x_title="step",
                y_title=label,
            )
            charts.append(chart)
    return charts


def blend_figures(data: ReportData) -> list[Chart]:
    """Draw the share of each source in the first ten of each profile's lists."""
    rows = [
        (profile, source_label(source), share)
        for profile, blend in data.blends.items()
        for source, share in blend["shares"].items()
    ]
    if not any(share for *_, share in rows):
        return []
    chart = figure(
        share_chart,
        "blend-shares",
        "Contribution of each model",
        "Share of the blended scores of the first ten, over the validation users.",
        [*texts("profile", "model"), *shares("share")],
        rows,
        "label series share",
        colors=_drawn(model_colors(data, *(row[1] for row in rows)), {row[1] for row in rows}),
        shown=lambda row: bool(row[2]),
        x_title="share of the score",
    )
    return [chart]


def _drawn(colors: Mapping[str, str], names: set[str]) -> dict[str, str]:
    return {name: color for name, color in colors.items() if name in names}
