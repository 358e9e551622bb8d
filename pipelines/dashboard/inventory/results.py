"""What a run measured: the report's figures, and tables where it has no analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.inventory.columns import by_fame
from pipelines.dashboard.runs.documents import UnreadableError, read_table, released_order
from pipelines.dashboard.runs.run import Run
from pipelines.evaluation.analysis import ANALYSIS
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Column,
    Origin,
    Section,
    Table,
    Words,
)
from pipelines.pages.figure import chart_of
from pipelines.pages.report_data import TRAININGS, ReportData
from pipelines.pages.wording import (
    METRICS,
    metric_label,
    metric_meaning,
    model_label,
    parted,
)

MAX_COLUMNS = 4
MAX_SLICES = 6
"""Charts of groups of slices on a page."""


def evaluated_files(run: Run) -> list[Path]:
    """Name the files whose change makes the figures of a run anew."""
    names = ["evaluate/analysis.json", "evaluate/metrics.json", "fit_blend/manifest.json"]
    names += [f"{stage}/manifest.json" for stage in TRAININGS]
    return [run.path / name for name in names]


def read_reported(context: Context, run: Run) -> ReportData | None:
    """Read what the report's figures are drawn from; None where nothing was analysed.

    Raises:
        UnreadableError: A file of it is damaged.
    """
    path = run.path
    if run.kind != "workspace" or not (path / "evaluate" / ANALYSIS).exists():
        return None
    files = evaluated_files(run)
    try:
        return context.cache.get(("reported", str(path)), files, lambda: _reported(run, path))
    except UnreadableError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise UnreadableError(f"its analysis cannot be read ({why})") from error


def _reported(run: Run, path: Path) -> ReportData:
    from pipelines.evaluation.analysis import Analysis
    from pipelines.pages.blends import read_blends
    from pipelines.pages.curves import read_curves
    from pipelines.pages.rankers import read_ranker
    from pipelines.pages.report_data import Provenance
    from pipelines.pages.wins import Wins

    analysis = Analysis.load(path / "evaluate")
    metrics = read_table(path / "evaluate/metrics.json") or {}
    order = released_order(analysis.orders)
    models = tuple(analysis.orders[order]["test"].models)
    return ReportData(
        title=run.name,
        primary=analysis.primary_metric,
        models=models,
        orders=[order],
        num_items=0,
        # Of a configuration with "auto" only the run knows what it took.
        split_kind=analysis.protocol.partition(",")[0],
        excludes_history=True,
        features={},
        analysis=analysis,
        metrics=metrics,
        wins=Wins(depth=0, models=models, num_targets=0, pairs=[], slices=[]),
        curves=[
            curve
            for stage, model in TRAININGS.items()
            for curve in read_curves(path / stage, model, analysis.primary_metric)
            if curve.tie_order == order
        ],
        blends=read_blends(path / "fit_blend", order),
        ranker=read_ranker(path / "train_ranker", order),
        examples=[],
        provenance=Provenance(
            data_digest=run.data_digest or "",
            evaluation_digest=run.evaluation or "",
            raw_files={},
            versions={},
            settings="",
            dataset=run.dataset,
            num_test_looks=0,
        ),
    )


def sections_of(data: ReportData, run: Run, split: str, *, exported: bool) -> list[Section]:
    """Lay out the figures of a report by subject; a subject without any has no section."""
    from pipelines.pages.blends import blend_figures
    from pipelines.pages.figures import (
        curve_figures,
        cutoffs,
        differences,
        overview,
        slice_figures,
    )
    from pipelines.pages.ranker_figures import ranker_figures

    origins = [run.origin]

    def charts(figures: Sequence[Chart | None]) -> list[Block]:
        return [chart_of(figure, origins) for figure in figures if figure is not None]

    measured = data.analysis.orders[data.order]
    slices = slice_figures(_on_test_alone(data))
    blends = [f"{one.profile}: {one.served} is served; {one.reason}." for one in data.blends]
    ranker = [] if data.ranker is None else [_ranker_words(data.ranker.served, data.ranker.reason)]
    sections = [
        Section(
            key="results",
            title="Results",
            blocks=[
                *charts([overview(data) if len(measured) > 1 else None]),
                *charts([cutoffs(data), differences(data)]),
                *interval_table(data, split, origins),
            ],
        ),
        Section(
            key="slices",
            title="Slices",
            note="On test. For whom each model works, and for whom not.",
            blocks=charts(slices[: 2 if exported else MAX_SLICES]),
        ),
        Section(
            key="beyond",
            title="Beyond accuracy",
            blocks=_beyond(data, split, origins),
        ),
        Section(
            key="blend",
            title="Blend and ranker",
            blocks=[
                Words(lines=[*blends, *ranker]),
                *charts([*blend_figures(data.blends, data.models), *ranker_figures(data.ranker)]),
            ],
        ),
        Section(
            key="training", title="Training", blocks=charts([] if exported else curve_figures(data))
        ),
    ]
    if not blends and not ranker:
        sections = [one for one in sections if one.key != "blend"]
    return [one for one in sections if one.blocks]


def _ranker_words(served: bool, reason: str) -> str:
    return f"The ranker is {'served' if served else 'not served'}: {reason}."


def _on_test_alone(data: ReportData) -> ReportData:
    """Let test stand for a validation split that was not measured; figures of slices need one."""
    measured = data.analysis.orders[data.order]
    if "validation" in measured:
        return data
    orders = {data.order: {**measured, "validation": measured["test"]}}
    return replace(data, analysis=replace(data.analysis, orders=orders))


def interval_table(data: ReportData, split: str, origins: Sequence[Origin]) -> list[Block]:
    """Lay out the metrics of each model with their intervals."""
    if split not in data.analysis.orders[data.order]:
        return [Words(lines=[f"Nothing was measured on {split}."], tone="note")]
    measured = data.measured(split).models
    means: dict[tuple[float, ...], str] = {}
    for metric in by_fame(next(iter(measured.values())).intervals):
        found = [one.intervals[metric].mean for one in measured.values() if metric in one.intervals]
        # With one held-out item a user the hit rate is the recall, and MAP is MRR.
        means.setdefault(tuple(found), metric)
    metrics = list(means.values())[:MAX_COLUMNS]
    columns = [Column(label="Model")]
    for metric in metrics:
        label, note = metric_label(metric), metric_meaning(metric)
        columns.append(Column(label=label, note=note, numeric=True, format="metric"))
        columns.append(Column(label=f"{label}, 95%", note="interval by bootstrap over users"))
    rows: list[list[Cell]] = []
    for model in data.models:
        row: list[Cell] = [model_label(model)]
        for metric in metrics:
            one = measured[model].intervals.get(metric)
            row += ["", ""] if one is None else [one.mean, f"{one.low:.4f} to {one.high:.4f}"]
        rows.append(row)
    users = data.measured(split).num_users
    return [
        Table(
            key="intervals",
            title=f"Metrics on {split}",
            note=f"Over {users:,} users, with 95% intervals.",
            columns=columns,
            rows=rows,
            origins=origins,
        )
    ]


def _beyond(data: ReportData, split: str, origins: Sequence[Origin]) -> list[Block]:
    if split not in data.analysis.orders[data.order]:
        return []
    measured = data.measured(split).models
    names = list(dict.fromkeys(name for one in measured.values() for name in one.beyond_accuracy))
    if not names:
        return []
    columns = [Column(label="Model")]
    columns += [
        Column(label=metric_label(name), note=metric_meaning(name), numeric=True, format="metric")
        for name in names
    ]
    rows = [
        [model_label(model), *(measured[model].beyond_accuracy.get(name) for name in names)]
        for model in data.models
    ]
    return [
        Table(
            key="beyond",
            title=f"Beyond accuracy on {split}",
            note="What lists are like besides being right; point at a heading for its definition.",
            columns=columns,
            rows=rows,
            origins=origins,
        )
    ]


def plain_table(run: Run, split: str) -> list[Block]:
    """Lay out metrics without intervals, as of bundles."""
    values: dict[str, dict[str, float]] = {}
    for name, value in run.metrics.items():
        part, _, rest = name.partition("/")
        if part == split:
            model, _, metric = rest.partition("/")
            values.setdefault(model, {})[metric] = value
    if not values:
        return []
    every = by_fame(dict.fromkeys(metric for one in values.values() for metric in one))
    metrics = [name for name in every if parted(name)[0] in METRICS][:12] or every[:12]
    columns = [Column(label="Model")]
    columns += [
        Column(label=metric_label(name), note=metric_meaning(name), numeric=True, format="metric")
        for name in metrics
    ]
    return [
        Table(
            key="metrics",
            title=f"Metrics on {split}",
            note="Without intervals: page Compare has them where per-user results are there.",
            columns=columns,
            rows=[[model_label(model), *map(one.get, metrics)] for model, one in values.items()],
            origins=[run.origin],
        )
    ]
