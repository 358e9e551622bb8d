"""Write a report as one HTML file that needs no server and no network.

The template escapes everything; what stands in a script element is JSON in which no ``<`` is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipelines.pages import wording
from pipelines.pages.blends import blend_figures, method_label, source_label
from pipelines.pages.charts.style import compiled, drawing_script
from pipelines.pages.document import Chart
from pipelines.pages.examples import Example
from pipelines.pages.figure import percent, ranged, written
from pipelines.pages.figures import (
    curve_figures,
    cutoffs,
    differences,
    model_colors,
    overview,
    slice_figures,
    tie_figure,
    winner_figures,
)
from pipelines.pages.ranker_figures import ranker_figures
from pipelines.pages.rankers import TRUNK_NAMES
from pipelines.pages.report_data import SPLITS, ReportData
from pipelines.pages.summary import (
    comparisons,
    headline,
    lost_rows,
    notices,
    protocol,
    time_span,
    winners_summary,
)

STATIC = Path(__file__).parent / "static"
MAX_METRICS = 5
"""Columns of the table with intervals."""


def quantity(value: float) -> str:
    """Write a measure whose size is not known beforehand with about three digits."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3f}"


def signed(value: float) -> str:
    """Write a difference with its sign."""
    return f"{value:+.4f}".replace("-", "\u2212")


def p_value(value: float) -> str:
    """Write an adjusted p-value."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def for_script(value: Any) -> Markup:
    """Encode as JSON that can stand in a script element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return Markup(text.replace("<", "\\u003c"))


def trusted(name: str) -> Markup:
    """Read a file of ours that goes into the page as it is."""
    return Markup((STATIC / name).read_text(encoding="utf-8"))


def script_of_vega() -> Markup:
    """Return Vega as text that cannot end its script element."""
    # A slash that a string or a regular expression escapes means the same slash.
    return Markup(re.sub("</(script)", r"<\\/\1", drawing_script(), flags=re.IGNORECASE))


def heading_of(example: Example, models: tuple[str, ...]) -> str:
    """Title an example by the models that found its held-out item."""
    if len(example.found_by) == len(models):
        return "Every model finds it" if len(models) > 1 else "The model finds it"
    if not example.found_by:
        return "No model finds it" if len(models) > 1 else "The model does not find it"
    return f"Only {wording.model_label(example.found_by[0])} finds it"


def best_of(data: ReportData, split: str) -> dict[str, str]:
    """Name the best model of each metric of a split, by the metric."""
    models = data.measured(split).models
    metrics = models[data.models[0]].intervals
    return {
        metric: max(data.models, key=lambda model: models[model].intervals[metric].mean)
        for metric in metrics
    }


def in_order(metrics: Iterable[str], primary: str) -> list[str]:
    """Order metrics: the primary one, its list length before others, the best known first."""
    known = list(wording.METRICS)

    def place(metric: str) -> tuple[bool, bool, int, int, str]:
        name, k = wording.parted(metric)
        rank = known.index(name) if name in known else len(known)
        return metric != primary, k != wording.parted(primary)[1], rank, int(k or 0), metric

    return sorted(metrics, key=place)


def shown_metrics(data: ReportData) -> list[str]:
    """Choose the metrics of the main table, leaving out any that only repeats another.

    With one hidden item a user, the hit rate is the recall and MAP is MRR.
    """
    models = data.measured("test").models
    found: dict[tuple[float, ...], str] = {}
    for metric in in_order(models[data.models[0]].intervals, data.primary):
        means = tuple(models[model].intervals[metric].mean for model in data.models)
        found.setdefault(means, metric)
    return list(found.values())[:MAX_METRICS]


def ranked_models(data: ReportData) -> list[str]:
    """Order the models by the primary metric on validation, best first."""
    return sorted(data.models, key=lambda model: -data.interval(model, "validation").mean)


def measures_of(data: ReportData) -> list[str]:
    """Name the measures beyond accuracy that at least one model has."""
    models = data.measured("test").models
    every = dict.fromkeys(name for model in data.models for name in models[model].beyond_accuracy)
    known = list(wording.BEYOND_ACCURACY)

    def place(measure: str) -> tuple[int, str]:
        name, _ = wording.parted(measure)
        return (known.index(name) if name in known else len(known)), measure

    return sorted(every, key=place)


def figures_of(data: ReportData) -> Mapping[str, list[Chart]]:
    """Draw every figure of the page, by section."""
    return {
        "overview": [overview(data), *filter(None, [cutoffs(data)])],
        "differences": [*filter(None, [differences(data)])],
        "slices": slice_figures(data),
        "winners": winner_figures(data),
        "blends": blend_figures(data.blends, data.models),
        "ranker": ranker_figures(data.ranker),
        "curves": curve_figures(data),
        "ties": [*filter(None, [tie_figure(data)])],
    }


def environment() -> Environment:
    """Make the template's surroundings; a name that is not given is an error."""
    found = Environment(
        loader=FileSystemLoader(STATIC),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {
        "written": written,
        "ranged": ranged,
        "percent": percent,
        "quantity": quantity,
        "p_value": p_value,
        "signed": signed,
        "model": wording.model_label,
        "metric": wording.metric_label,
        "source": source_label,
        "method": method_label,
        "trunk": TRUNK_NAMES.__getitem__,
    }
    return found


def rendered(template: str, figures: Mapping[str, Sequence[Chart]], **names: object) -> str:
    """Render a template with its figures, by section, and what every page embeds."""
    drawn = [figure for section in figures.values() for figure in section]
    specs = {figure.key: compiled(figure.spec) for figure in drawn}
    return (
        environment()
        .get_template(template)
        .render(
            figures=figures,
            css=Markup((STATIC.parent / "client/palette.css").read_text(encoding="utf-8"))
            + trusted("report.css"),
            script=trusted("report.js"),
            vega=script_of_vega(),
            specs=for_script(specs),
            **names,
        )
    )


def report_html(data: ReportData) -> str:
    """Write the report."""
    return rendered(
        "report.html.jinja",
        figures_of(data),
        data=data,
        splits=SPLITS,
        wording=wording,
        headline=headline(data),
        protocol=protocol(data),
        notices=notices(data),
        lost=lost_rows(data),
        span=time_span(data),
        ranked=ranked_models(data),
        shown=shown_metrics(data),
        every_metric=in_order(data.metrics[data.order]["test"][data.models[0]], data.primary),
        best={split: best_of(data, split) for split in SPLITS},
        colors=model_colors(data),
        measures=measures_of(data),
        tests=comparisons(data),
        winners=winners_summary(data),
        pairs={(pair.model, pair.other): pair for pair in data.wins.pairs},
        heading_of=heading_of,
    )
