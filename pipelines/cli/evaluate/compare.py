"""``recsys compare``: paired tests between runs or models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines.cli.options import AsJson, find_workspace
from pipelines.cli.output import print_json, print_table
from pipelines.engine.errors import RefusedError

if TYPE_CHECKING:
    from recsys.evaluation.significance import EvaluatedRun

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
    as_json: AsJson = False,
) -> None:
    """Compare runs or models with the first one by paired tests over users.

    [bold]Examples[/]

      recsys compare runs/a runs/b --metric ndcg@10 --metric recall@10

      recsys compare runs/a --models two_tower,item_to_item
    """
    from recsys.evaluation.significance import compare_runs

    names, metrics = dict.fromkeys(map(str.strip, models.split(","))), metric or list(METRICS)
    folders = [find_workspace(path) / "evaluate" for path in runs]
    measured = [
        read_run(folder, model, metrics, f"per_user_given_{split}.parquet", run)
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
            note_test_look(folder, [one.name for one in measured], metrics)
    tests = compare_runs(measured[0], measured[1:])
    if as_json:
        print_json([test._asdict() for test in tests])
        return
    rows = [
        (
            *(f"{test.candidate} - {test.baseline}", test.metric, f"{test.difference:+.4f}"),
            *(f"{test.low:+.4f} .. {test.high:+.4f}", f"{test.adjusted_p_value:.4f}"),
            "differs" if test.significant else "",
        )
        for test in tests
    ]
    columns = ("candidate - baseline", "metric", "difference", "95% interval", "adjusted p", "")
    title = f"{split}, adjusted by holm, {tests[0].num_users:,} users"
    print_table(columns, rows, title=title)


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return for each run the shortest end of its path that no other run's path has."""
    runs = [folder.resolve().parent for folder in folders]
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


def note_test_look(folder: Path, compared: Sequence[str], metrics: Sequence[str]) -> None:
    """Note a look at a run's test split in its ledger."""
    from pipelines.engine.artifacts import Manifest, digest_of_json
    from pipelines.engine.workspace import Workspace

    made = Manifest.load(folder)
    look = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "stage": "compare",
        "split": "test",
        "tie_order": "given",
        "config": None if made is None else digest_of_json(made.config),
        "compared": list(compared),
        "metrics": list(metrics),
    }
    Workspace(folder.parent).append_to_ledger(look)


def read_run(folder: Path, model: str, metrics: list[str], table: str, run: str) -> EvaluatedRun:
    """Read one model's ranks from an artefact of evaluate."""
    import polars as pl
    import torch

    from pipelines.evaluation.analysis import Analysis
    from pipelines.evaluation.per_user import RANK, models_in, read_targets
    from recsys.data.batch import Jagged
    from recsys.evaluation.significance import EvaluatedRun

    path = folder / table
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
