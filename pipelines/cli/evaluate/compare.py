"""``recsys compare``: paired tests between runs or models, and the ledger of looks at test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipelines.cli.options import AsJson, find_workspace
from pipelines.cli.output import print_json, print_lines, print_table
from pipelines.engine.errors import RefusedError

if TYPE_CHECKING:
    from recsys.evaluation.significance import EvaluatedRun, MetricComparison

METRICS = ("ndcg@10", "recall@10")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, the baseline first.")],
    models: Annotated[
        str, typer.Option(help="Models, comma-separated; the baseline first.")
    ] = "blend",
    metric: Annotated[
        list[str] | None, typer.Option(help="Metric, such as ndcg@10 (repeatable).")
    ] = None,
    split: Annotated[
        Literal["validation", "test"], typer.Option(help="test is recorded in the ledger.")
    ] = "validation",
    order: Annotated[str, typer.Option(help="Order of tied times.")] = "given",
    correction: Annotated[
        Literal["holm", "benjamini_hochberg"],
        typer.Option(help="Control the family-wise error rate (holm) or the false discovery rate."),
    ] = "holm",
    ledger: Annotated[
        bool, typer.Option("--ledger", help="List every look at the test split instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs or models with the first one by paired tests over users.

    [bold]Examples[/]

      recsys compare runs/a runs/b --metric ndcg@10 --metric recall@10

      recsys compare runs/a --models two_tower,item_to_item

      recsys compare runs/a --ledger
    """
    from recsys.evaluation.significance import ComparisonConfig, compare_runs

    if ledger:
        for run in runs:
            print_ledger(find_workspace(run), as_json=as_json)
        return
    names, metrics = dict.fromkeys(map(str.strip, models.split(","))), metric or list(METRICS)
    places = [path if path.is_dir() else find_workspace(path) for path in runs]
    folders = [path / "evaluate" if (path / "evaluate").is_dir() else path for path in places]
    measured = [
        read_run(folder, model, metrics, table=f"per_user_{order}_{split}", run=run)
        for folder, run in zip(folders, run_names(folders), strict=True)
        for model in names
    ]
    if len(measured) < 2:
        raise ValueError("nothing to compare: name two runs, or two models with --models a,b")
    for one in measured[1:]:
        check_same_data(measured[0], one)
    if split == "test":
        # Before the tests, so that a look is noted though the comparison is killed.
        for folder in folders:
            note_test_look(folder, order, [one.name for one in measured], metrics)
    tests = compare_runs(measured[0], measured[1:], ComparisonConfig(correction=correction))
    if as_json:
        print_json([test._asdict() for test in tests])
    else:
        print_tests(tests, f"{split}, adjusted by {correction}")


def print_tests(tests: list[MetricComparison], title: str) -> None:
    """Print the tests, one a row."""
    rows = []
    for one in tests:
        pair, interval = f"{one.candidate} - {one.baseline}", f"{one.low:+.4f} .. {one.high:+.4f}"
        numbers = (f"{one.difference:+.4f}", interval, f"{one.adjusted_p_value:.4f}")
        rows.append((pair, one.metric, *numbers, "differs" if one.significant else ""))
    columns = ("candidate - baseline", "metric", "difference", "95% interval", "adjusted p", "")
    print_table(columns, rows, title=f"{title}, {tests[0].num_users:,} users")


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return for each run the shortest end of its path that no other run's path has."""
    places = [folder.resolve() for folder in folders]
    runs = [place.parent if place.name == "evaluate" else place for place in places]
    for run in runs:
        if runs.count(run) > 1:
            raise ValueError(
                f"{run} is named twice; name different runs, or several models of one run with "
                "--models a,b"
            )

    def name(run: Path, length: int = 1) -> str:
        end = run.parts[-length:]
        is_shared = any(other.parts[-length:] == end for other in runs if other != run)
        return name(run, length + 1) if is_shared else str(Path(*end))

    return [name(run) for run in runs]


def note_test_look(
    folder: Path, order: str, compared: Sequence[str], metrics: Sequence[str]
) -> None:
    """Note a look at a run's test split in its ledger."""
    from pipelines.engine.artifacts import Manifest, digest_of_json
    from pipelines.engine.workspace import Workspace

    made = Manifest.load(folder)
    look = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "stage": "compare",
        "split": "test",
        "tie_order": order,
        "config": None if made is None else digest_of_json(made.config),
        "compared": list(compared),
        "metrics": list(metrics),
    }
    Workspace(folder.parent).append_to_ledger(look)


def read_run(folder: Path, model: str, metrics: list[str], *, table: str, run: str) -> EvaluatedRun:
    """Read one model's ranks from an artefact of evaluate."""
    import polars as pl
    import torch

    from pipelines.evaluation.analysis import Analysis
    from pipelines.evaluation.per_user import RANK, models_in, read_targets
    from recsys.data.batch import Jagged
    from recsys.evaluation.significance import EvaluatedRun

    path = folder / f"{table}.parquet"
    if not path.exists():
        raise ValueError(f"{folder} has no {path.name}; run it first (recsys run --until evaluate)")
    known = models_in(list(pl.read_parquet_schema(path)))
    if model not in known:
        raise ValueError(f"{folder} has no model {model!r}; it has {', '.join(known)}")
    users, targets = read_targets(path)
    ranks = pl.read_parquet(path, columns=[f"{RANK}{model}"]).to_series().fill_null(0).to_numpy()
    return EvaluatedRun.from_ranks(
        torch.from_numpy(users.copy()),
        targets,
        Jagged(torch.from_numpy(ranks.copy()), targets.offsets),
        metrics,
        name=f"{run}:{model}",
        data_digest=Analysis.load(folder).data_digest,
    )


def check_same_data(baseline: EvaluatedRun, other: EvaluatedRun) -> None:
    """Refuse runs that were measured on other data, users or targets, naming both digests."""
    for what in ("data", "users", "targets"):
        digests = [getattr(run, f"{what}_digest") for run in (baseline, other)]
        if digests[0] != digests[1]:
            raise RefusedError(
                f"{baseline.name} and {other.name} were measured on different {what}: digest "
                f"{digests[0]} against {digests[1]}; evaluate both on the same {what}"
            )


def print_ledger(workspace: Path, *, as_json: bool) -> None:
    """Print every time a run's test split was read, oldest first."""
    from pipelines.engine.workspace import Workspace

    looks, rows = Workspace(workspace).ledger(), []
    if as_json:
        print_json(looks)
        return
    for look in looks:
        cells = (look.get(name) for name in ("time", "stage", "tie_order", "config"))
        time, stage, order, config = (str(cell or "?") for cell in cells)
        rows.append((time[:19].replace("T", " "), stage, order, config[:8], describe_look(look)))
    if not rows:
        print_lines("no look at a test split yet")
        return
    columns = ("time (UTC)", "stage", "tie order", "config", "what was seen")
    print_table(columns, rows, title=f"looks at the test split: {len(rows):,}", fixed=columns[:1])


def describe_look(look: Mapping[str, Any]) -> str:
    """Describe a look: each model's metric, or the compared models."""
    if "torn" in look:
        return f"a line cut off by a kill: {look['torn']}"
    if "compared" in look:
        metrics = ", ".join(look.get("metrics", []))
        return " against ".join(look["compared"]) + (f" by {metrics}" if metrics else "")
    scores = {name: value for name, value in look.get("ndcg@10", {}).items() if value == value}
    shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
    return f"ndcg@10: {shown}" if shown else ""
