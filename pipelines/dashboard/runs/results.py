"""What a run measured: the report's figures, and tables where it has no analysis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipelines.dashboard.context import Context
from pipelines.dashboard.workspaces.files import UnreadableError
from pipelines.dashboard.workspaces.run import Run
from pipelines.evaluation.analysis import ANALYSIS
from pipelines.pages.columns import numbers, texts
from pipelines.pages.document import Table
from pipelines.pages.report_data import SPLITS, TRAININGS, ReportData, read_measured
from pipelines.pages.wording import (
    METRICS,
    by_fame,
    metric_label,
    metric_meaning,
    model_label,
    parted,
)


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
        stages = {name: path / name for name in ("evaluate", "fit_blend", *TRAININGS)}
        return context.cache.get(
            ("reported", str(path)), files, lambda: read_measured(stages, run.name)
        )
    except UnreadableError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise UnreadableError(f"its analysis cannot be read ({why})") from error


def plain_tables(run: Run) -> list[Table]:
    """Show metrics without intervals, as of bundles and of MLflow's runs, a table a split."""
    splits: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in run.metrics.items():
        split, _, rest = name.partition("/")
        model, _, metric = rest.partition("/")
        if split in SPLITS:
            splits.setdefault(split, {}).setdefault(model, {})[metric] = value
    return [_plain_table(run, split, splits[split]) for split in SPLITS if split in splits]


def _plain_table(run: Run, split: str, values: Mapping[str, Mapping[str, float]]) -> Table:
    every = by_fame(dict.fromkeys(metric for one in values.values() for metric in one))
    metrics = [name for name in every if parted(name)[0] in METRICS][:12] or every[:12]
    columns = texts("Model")
    for name in metrics:
        columns += numbers(metric_label(name), format="metric", note=metric_meaning(name))
    return Table(
        key=f"metrics-{split}",
        title=f"Metrics on {split}",
        note="Without intervals: page Compare has them where per-user results are there.",
        columns=columns,
        rows=[[model_label(model), *map(one.get, metrics)] for model, one in values.items()],
        origins=[run.origin],
    )
