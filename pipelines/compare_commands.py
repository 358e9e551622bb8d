"""``recsys compare``: paired tests between runs, or between models of one run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from pipelines.console import out
from pipelines.stage_errors import RefusedError

if TYPE_CHECKING:
    from recsys.evaluation.significance import Comparison, EvaluatedRun

Runs = Annotated[list[Path], typer.Argument(help="Workspaces or evaluate folders; baseline first.")]
Models = Annotated[str, typer.Option(help="Models by name, with commas; baseline first.")]
Metrics = Annotated[
    list[str] | None, typer.Option("--metric", help="Such as ndcg@10 (repeatable).")
]
Split = Annotated[str, typer.Option(help="validation, or test: the look is noted in the ledger.")]
Order = Annotated[str, typer.Option(help="Order of tied times.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def compare(
    runs: Runs,
    models: Models = "blend",
    metric: Metrics = None,
    split: Split = "validation",
    order: Order = "given",
    as_json: AsJson = False,
) -> None:
    """Test runs user by user against the first one, corrected for the number of tests.

    [bold]Examples[/]

      recsys compare runs/a runs/b --metric ndcg@10 --metric recall@10

      recsys compare runs/a --models two_tower,item_to_item
    """
    from pipelines.artifacts import Manifest, digest_of_json
    from pipelines.workspace import Workspace
    from recsys.evaluation.significance import compare_runs

    if split not in ("validation", "test"):
        raise ValueError(f"--split must be validation or test, got {split!r}")
    names = [name.strip() for name in models.split(",")]
    metrics = metric or ["ndcg@10", "recall@10"]
    folders = [path / "evaluate" if (path / "evaluate").is_dir() else path for path in runs]
    measured = [
        read_run(path, folder, name, metrics, split=split, order=order)
        for path, folder in zip(runs, folders, strict=True)
        for name in names
    ]
    if len(measured) < 2:
        raise ValueError("nothing to compare: name two runs, or two models with --models a,b")
    for one in measured[1:]:
        check_same_data(measured[0], one)
    tests = compare_runs(measured[0], measured[1:])
    if split == "test":
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for folder in folders:
            look: dict[str, str | None] = {
                "time": now,
                "stage": "compare",
                "split": split,
                "tie_order": order,
            }
            compared = [one.name for one in measured]
            made = Manifest.load(folder)
            look["config"] = None if made is None else digest_of_json(made.config)
            Workspace(folder.parent).append_to_ledger({**look, "compared": compared})
    if as_json:
        typer.echo(json.dumps([test._asdict() for test in tests]))
    else:
        out.print(comparison_table(tests, split))


def read_run(
    path: Path, folder: Path, model: str, metrics: list[str], *, split: str, order: str
) -> EvaluatedRun:
    """Read one model's ranks out of an artefact of evaluate."""
    import numpy as np
    import polars as pl
    import torch

    from pipelines.analysis import Analysis
    from recsys.data.batch import Jagged
    from recsys.evaluation.significance import EvaluatedRun

    table = folder / f"per_user_{order}_{split}.parquet"
    if not table.exists():
        raise ValueError(f"{path} has no {table.name}; run it first (recsys run --until evaluate)")
    frame = pl.read_parquet(table)
    known = [name[5:] for name in frame.columns if name.startswith("rank_")]
    if model not in known:
        raise ValueError(f"{path} has no model {model!r}; it has {', '.join(known)}")
    users, counts = np.unique(frame["user_row"].to_numpy(), return_counts=True)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    items = torch.from_numpy(frame["item_row"].to_numpy().copy())
    ranks = torch.from_numpy(frame[f"rank_{model}"].fill_null(0).to_numpy().copy())
    return EvaluatedRun.from_ranks(
        torch.from_numpy(users.copy()),
        Jagged(items, offsets),
        Jagged(ranks, offsets),
        metrics,
        name=f"{path.name}:{model}",
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


def comparison_table(tests: list[Comparison], split: str) -> Table:
    """Lay the tests out, one a row."""
    table = Table(box=box.SIMPLE_HEAD, title=f"{split}, {tests[0].num_users:,} users")
    for name in ("candidate - baseline", "metric", "difference", "95% interval", "adjusted p", ""):
        table.add_column(name)
    for test in tests:
        table.add_row(
            f"{test.candidate} - {test.baseline}",
            test.metric,
            f"{test.difference:+.4f}",
            f"{test.low:+.4f} .. {test.high:+.4f}",
            f"{test.adjusted_p_value:.4f}",
            "differs" if test.significant else "",
        )
    return table


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(compare)
