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
    from collections.abc import Mapping

    import polars as pl
    from torch import Tensor

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
    from recsys.evaluation.paired import compare_models

    names, metrics = dict.fromkeys(map(str.strip, models.split(","))), metric or list(METRICS)
    folders = [find_workspace(path) / "evaluate" for path in runs]
    if len(folders) * len(names) < 2:
        raise ValueError("nothing to compare: name two runs, or two models with --models a,b")
    measured: dict[str, Mapping[str, Tensor]] = {}
    tables = [read_table(folder, split, list(names)) for folder in folders]
    for folder, run, table in zip(folders, run_names(folders), tables, strict=True):
        check_same_data(folders[0], tables[0], folder, table)
        measured |= {f"{run}:{model}": read_values(table, model, metrics) for model in names}
    if split == "test":
        # Before the tests, so that a look is noted though the comparison is killed.
        for folder in folders:
            note_test_look(folder, list(measured), metrics)
    tests = compare_models(measured, next(iter(measured)))
    if not tests:
        return
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


def read_table(folder: Path, split: str, models: list[str]) -> pl.DataFrame:
    """Read the ranks of models from an artefact of evaluate, by user and held-out item."""
    import polars as pl

    from pipelines.evaluation.analysis import RANK, models_in

    path = folder / f"per_user_given_{split}.parquet"
    if not path.exists():
        raise ValueError(f"{folder} has no {path.name}; run it first (recsys run --until evaluate)")
    known = models_in(list(pl.read_parquet_schema(path)))
    if unknown := [model for model in models if model not in known]:
        raise ValueError(f"{folder} has no model {unknown[0]!r}; it has {', '.join(known)}")
    return pl.read_parquet(
        path, columns=["user_row", "item_row", *(f"{RANK}{model}" for model in models)]
    )


def read_values(table: pl.DataFrame, model: str, metrics: list[str]) -> dict[str, Tensor]:
    """Compute a model's metrics of each user of a table that is sorted by user."""
    from pipelines.evaluation.analysis import RANK
    from recsys.data.batch import Jagged, cut_offsets
    from recsys.evaluation.ranking import per_user_metric

    counts = table["user_row"].rle().struct.field("len").cast(int).to_torch()
    ranks = Jagged(table[f"{RANK}{model}"].fill_null(0).to_torch(), cut_offsets(counts))
    return {metric: per_user_metric(ranks, metric) for metric in metrics}


def check_same_data(
    first: Path, first_table: pl.DataFrame, other: Path, table: pl.DataFrame
) -> None:
    """Refuse runs that were measured on other data or held-out items."""
    from pipelines.evaluation.analysis import Analysis

    digests = [Analysis.load(folder).data_digest for folder in (first, other)]
    if digests[0] != digests[1]:
        raise RefusedError(
            f"{first.parent} and {other.parent} were measured on different data: digest "
            f"{digests[0]} against {digests[1]}; evaluate both on the same data"
        )
    held_out = ["user_row", "item_row"]
    if not first_table.select(held_out).equals(table.select(held_out)):
        raise RefusedError(
            f"{first.parent} and {other.parent} were measured on different users or held-out "
            f"items ({len(first_table):,} and {len(table):,} rows); evaluate both on the same ones"
        )
