"""The figures of the evaluation report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipelines.pages.charts.shapes import Dot, Point, interval_chart, line_chart
from pipelines.pages.charts.style import NOBODY, SECOND, SHARED, color_of
from pipelines.pages.curves import Curve
from pipelines.pages.document import Chart
from pipelines.pages.figure import percent, ranged, share_figure, written
from pipelines.pages.report_data import SPLITS, ReportData
from pipelines.pages.summary import MIN_USERS, best_model, comparisons
from pipelines.pages.wins import Wins
from pipelines.pages.wording import (
    TIE_ORDERS,
    group_meaning,
    group_title,
    metric_label,
    model_label,
    parted,
)
from recsys.evaluation.bootstrap import Interval
from recsys.evaluation.slices import SliceMetrics

MAX_ROWS = 10
"""Rows of a chart of slices; its table has all."""
MAX_NAME = 18
"""Characters of a slice's name in a chart."""
ISOLATE, RELEASE = "\u2068", "\u2069"
TIED, NOT_FOUND = "tied", "not found"


def model_colors(data: ReportData) -> dict[str, str]:
    """Give each model one colour in all charts."""
    return {model_label(model): color_of(place) for place, model in enumerate(data.models)}


def dot(label: str, series: str, interval: Interval) -> Dot:
    """Make a dot of an interval of the analysis."""
    value = f"{written(interval.mean)} ({ranged(interval)})"
    users = f"{int(interval.num_users):,} users"
    return Dot(
        label=label,
        series=series,
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        note=" \u00b7 ".join([*dict.fromkeys([label, series]), value, users]),
    )


def rows_of(dots: Iterable[Dot]) -> list[tuple[str, ...]]:
    """Write dots as the rows of a table."""
    return [
        (
            each.label,
            each.series,
            written(each.mean),
            f"{written(each.low)} to {written(each.high)}",
        )
        for each in dots
    ]


def models_figure(
    data: ReportData,
    key: str,
    words: tuple[str, str, str],
    series: Mapping[str, tuple[str, str, str]],
    column: str,
) -> Chart:
    """Draw the primary metric of every model, one dot a series.

    Args:
        words: Title, note and description.
        series: Colour, split and tie order by name.
        column: What the series are.
    """
    colors = {name: color for name, (color, _, _) in series.items()}
    dots = [
        dot(model_label(model), name, data.interval(model, split, order))
        for model in data.models
        for name, (_, split, order) in series.items()
    ]
    metric = metric_label(data.primary)
    labels = [model_label(model) for model in data.models]
    return Chart(
        key=key,
        title=words[0],
        note=words[1],
        description=words[2],
        spec=interval_chart(dots, colors, x_title=metric, labels=labels),
        legend=colors,
        columns=("model", column, metric, "95% interval"),
        rows=rows_of(dots),
    )


def overview(data: ReportData) -> Chart:
    """Draw the primary metric of every model on both splits."""
    name, colors = metric_label(data.primary), {"test": color_of(2), "validation": SECOND}
    return models_figure(
        data,
        "overview",
        (
            f"{name} by model",
            "Lines are 95% intervals.",
            f"{name} with its interval for each model on test and on validation.",
        ),
        {split: (colors[split], split, data.order) for split in SPLITS},
        "split",
    )


def cutoffs(data: ReportData) -> Chart | None:
    """Draw the hit rate by length of the list."""
    values = data.metrics[data.order]["test"]
    lengths = sorted(
        int(parted(name)[1]) for name in values[data.models[0]] if parted(name)[0] == "hit_rate"
    )
    if len(lengths) < 2:
        return None
    points = []
    for model in data.models:
        for k in lengths:
            share, name = values[model][f"hit_rate@{k}"], model_label(model)
            note = f"{name} \u00b7 hit rate@{k}: {percent(share)}"
            points.append(Point(x=k, y=share, series=name, note=note))
    colors = model_colors(data)
    return Chart(
        key="cutoffs",
        title="Hit rate by list length",
        note="Share of users with a held-out item among the first k, on test.",
        description="Share of users with a held-out item among the first k, for each model.",
        spec=line_chart(
            points,
            colors,
            x_title="k (length of the list)",
            y_title="hit rate",
            x_values=lengths,
            y_format=".0%",
        ),
        legend=colors,
        columns=("model", "k", "hit rate"),
        rows=[(point.series, f"{point.x:,}", percent(point.y)) for point in points],
    )


def differences(data: ReportData) -> Chart | None:
    """Draw the paired differences of the primary metric on test."""
    tests = comparisons(data)
    if not tests:
        return None
    dots = []
    for test in tests:
        label = f"{model_label(test.candidate)} - {model_label(test.baseline)}"
        interval = Interval(test.difference, test.low, test.high, test.num_users)
        dots.append(dot(label, "difference", interval))
    name = metric_label(data.primary)
    return Chart(
        key="differences",
        title=f"Paired differences in {name}",
        note="Right of the dashed line the first model is better, left of it the second.",
        description=f"Paired difference in {name} of each pair of models, with its interval.",
        spec=interval_chart(
            dots,
            {"difference": color_of(2)},
            x_title=f"difference in {name}",
            labels=[each.label for each in dots],
            rule_at=0.0,
        ),
        legend={},
        columns=("models", "", "difference", "95% interval"),
        rows=rows_of(dots),
    )


def counted(names: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Label each name with its count; long names are cut, and no two labels are equal.

    A name that is written from right to left must not turn its count around.
    """
    labels: list[str] = []
    for name, count in zip(names, counts, strict=True):
        short = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3].rstrip()}..."
        label = f"{short if short.isascii() else f'{ISOLATE}{short}{RELEASE}'} ({count:,})"
        labels.append(label if label not in labels else f"{label} #{len(labels) + 1}")
    return labels


def slice_note(data: ReportData, group: str, parts: Sequence[SliceMetrics]) -> str:
    """Explain a group of slices: definition, empty slices, best and worst slice."""
    notes = [group_meaning(group)]
    empty = [part.name for part in parts if not part.num_users]
    if empty:
        notes.append(f"No users in: {', '.join(empty)}.")
    best = best_model(data)
    filled = [
        (part.metrics[data.primary].mean, part.name)
        for part in parts
        if part.num_users >= MIN_USERS
    ]
    if len(filled) > 1:
        (worst, bad), (most, good) = min(filled), max(filled)
        notes.append(
            f"Best slice of {model_label(best)}: {good} ({most:.3f}); worst: {bad} ({worst:.3f})."
        )
    if len(parts) - len(empty) > MAX_ROWS:
        notes.append(f"The chart shows the {MAX_ROWS} largest slices, the table all.")
    return " ".join(filter(None, notes))


def slice_figure(data: ReportData, group: str) -> Chart:
    """Draw every model in every slice of a group; the note names empty slices."""
    models = data.measured("test").models
    parts = {
        model: [part for part in models[model].slices if part.group == group]
        for model in data.models
    }
    first = parts[data.models[0]]
    filled = [place for place, part in enumerate(first) if part.num_users]
    labels = counted([part.name for part in first], [part.num_users for part in first])
    dots = [
        dot(labels[place], model_label(model), parts[model][place].metrics[data.primary])
        for place in filled
        for model in data.models
    ]
    shown = filled
    if len(filled) > MAX_ROWS:
        shown = sorted(filled, key=lambda place: -first[place].num_users)[:MAX_ROWS]
    names = [labels[place] for place in shown]
    colors, name = model_colors(data), metric_label(data.primary)
    empty = [(part.name, "", "no users", "") for part in first if not part.num_users]
    return Chart(
        key=f"slices-{group}",
        title=group_title(group),
        note=slice_note(data, group, parts[best_model(data)]),
        description=f"{name} of each model in each slice; the number of users is in brackets.",
        spec=interval_chart(
            [each for each in dots if each.label in names],
            colors,
            x_title=f"{name} (users in brackets)",
            labels=names,
        ),
        legend=colors,
        columns=("slice (users)", "model", name, "95% interval"),
        rows=[*rows_of(dots), *empty],
    )


def slice_figures(data: ReportData) -> list[Chart]:
    """Draw each group of slices that has a user in it."""
    parts = data.measured("test").models[data.models[0]].slices
    groups = dict.fromkeys(part.group for part in parts if part.num_users)
    return [slice_figure(data, group) for group in groups]


def winner_figure(data: ReportData, wins: Wins, group: str) -> Chart:
    """Draw which model ranks the held-out item best in each non-empty slice of a group."""
    parts = [part for part in wins.slices if part.group == group and part.num_targets]
    parts = [wins.slices[0], *parts]
    labels = counted([part.name for part in parts], [part.num_targets for part in parts])
    return share_figure(
        f"wins-{group}",
        (
            group_title(group),
            "Which model alone ranks the held-out item best.",
            "Share of held-out items that each model alone ranks best, in each slice.",
        ),
        {
            label: {model_label(model): share for model, share in part.alone.items()}
            | {TIED: part.shared, NOT_FOUND: part.nobody}
            for label, part in zip(labels, parts, strict=True)
        },
        {**model_colors(data), TIED: SHARED, NOT_FOUND: NOBODY},
        x_title="share of held-out items",
        columns=("slice (items)", "best model", "share"),
    )


def winner_figures(data: ReportData, wins: Wins) -> list[Chart]:
    """Draw which model wins, for each group of slices; nothing for a single model."""
    if len(data.models) < 2:
        return []
    groups = dict.fromkeys(part.group for part in wins.slices[1:] if part.num_targets)
    return [winner_figure(data, wins, group) for group in groups]


def curve_name(curve: Curve, several: bool) -> str:
    """Name a curve in a legend."""
    order = TIE_ORDERS.get(curve.tie_order, curve.tie_order)
    return f"{model_label(curve.model)}, ties {order}" if several else model_label(curve.model)


def curve_figure(
    curves: Sequence[Curve], key: str, title: str, y_title: str, colors: Mapping[str, str]
) -> Chart:
    """Draw the loss or the validation metric by step; a ring marks the chosen checkpoint."""
    points, marked = [], []
    for curve, series in zip(curves, colors, strict=True):
        for step, value in curve.loss if key == "loss" else curve.validation:
            note = f"{series} \u00b7 step {step:,}: {written(value)}"
            points.append(Point(x=step, y=value, series=series, note=note))
            if key == "validation" and step == curve.best_step:
                marked.append(Point(x=step, y=value, series=series, note=f"{note}, kept"))
    notes = ["The ring marks the checkpoint that was kept."] if marked else []
    if marked and any(curve.model == "ranked" for curve in curves):
        notes.append("The ranker is validated on training events of users held out from it.")
    return Chart(
        key=f"curve-{key}",
        title=title,
        note=" ".join(notes),
        description=f"{title} by training step.",
        spec=line_chart(points, colors, x_title="step", y_title=y_title, marked=marked),
        legend=colors if len(colors) > 1 else {},
        columns=("training", "step", y_title),
        rows=[(point.series, f"{int(point.x):,}", written(point.y)) for point in points],
    )


def curve_figures(data: ReportData) -> list[Chart]:
    """Draw the training curves of models that were trained by steps."""
    several = len(data.curves) > 1
    trained = [curve.model for curve in data.curves]
    colors = {
        # A model's own colour; its further trainings take the next ones.
        curve_name(curve, several): color_of(
            data.models.index(curve.model) + trained[:place].count(curve.model)
            if curve.model in data.models
            else place
        )
        for place, curve in enumerate(data.curves)
    }
    found = []
    if any(curve.loss for curve in data.curves):
        found.append(curve_figure(data.curves, "loss", "Training loss", "loss", colors))
    if any(curve.validation for curve in data.curves):
        name = metric_label(next(curve.metric for curve in data.curves if curve.validation))
        title = f"{name} on validation"
        found.append(curve_figure(data.curves, "validation", title, name, colors))
    return found


def tie_figure(data: ReportData) -> Chart | None:
    """Draw the primary metric for each order of tied events, where there are several."""
    if len(data.orders) < 2:
        return None
    name = metric_label(data.primary)
    return models_figure(
        data,
        "ties",
        (
            f"{name} by order of tied events",
            "On test; models are trained separately for each order.",
            f"{name} of each model on test, for each order of tied events.",
        ),
        {
            TIE_ORDERS.get(order, order): (color_of(2 + place), "test", order)
            for place, order in enumerate(data.orders)
        },
        "order of ties",
    )
