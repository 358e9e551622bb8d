"""Rank the blend's candidates by trunks of equal compute on a real data set.

As ``train_ranker`` does: sources are fitted before each user's latest train events, rankers learn
from these, and validation judges them; with ``--splits validation test`` test is looked at too,
which is noted in the ledger. A seed is that of the sources, of the events that are learned from and
of the rankers; with ``--rankers`` further seeds of rankers alone follow over the same sources.

Rows: the blend as served (on validation each half by the weights of the other), the blend by
weights of the earlier events alone, the straight line over a candidate's numbers without a network,
and each trunk over that.

    export PYTHONPATH=$PWD
    python -m tests.benchmarks.ranker.benchmark_trunks --prepare movielens-100k --arrays DIR
    python -m tests.benchmarks.ranker.benchmark_trunks --arrays DIR --seeds 0 1 2 3 4

DIR holds arrays by ``--prepare`` of a card in benchmarks/reproduction. ``--kept FOLDER`` keeps
each seed's numbers, so that seeds can run on several machines; ``--only-collect`` writes the tables
of all data sets that it finds there.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.fitting.spec import device_named
from recsys.models.ease import MAX_ITEMS
from recsys.models.ranker.config import Trunk
from tests.benchmarks.harness import command_line, device_name
from tests.benchmarks.ranker.seeds import (
    CORRECTION,
    TRUNKS,
    Recipe,
    Seed,
)
from tests.benchmarks.ranker.sources import (
    Data,
    SourceLists,
    When,
    lists_of,
    read_lists,
    stage,
    write_lists,
)
from tests.benchmarks.ranker.tables import note_test_looks, read_kept, write_set, write_sets
from tests.benchmarks.recipes.prepared import Prepared

VALUES = "values.npz"
WHENS: tuple[When, ...] = ("before", "now")
SEEDS_APART = 5
"""Between the seeds of rankers over the same sources."""
KINDS = (
    ("behaviour",),
    ("linear",),
    ("content",),
    ("category",),
    ("events", "history"),
    ("behaviour", "linear", "content", "category", "events", "history"),
)
"""Numbers against the history that ``--lines`` leaves out in turn."""
Values = dict[str, NDArray[np.float32]]
_SHARED: dict[str, Seed] = {}
"""What forked processes read."""


def lists_by_two(
    given: argparse.Namespace, data: Data, seed: int
) -> tuple[dict[str, SourceLists], dict[str, SourceLists]]:
    """Make the lists before the earlier events and those of now, in two other processes."""
    options = ["--arrays", given.arrays, "--seeds", seed, "--held-back", given.held_back]
    options += ["--max-queries", given.max_queries, "--splits", *given.splits]
    if given.max_epochs is not None:
        options += ["--max-epochs", given.max_epochs]
    if given.sources is not None:
        options += ["--sources", *given.sources]
    if given.most_judged is not None:
        options += ["--most-judged", given.most_judged]
    with tempfile.TemporaryDirectory() as folder:
        others = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __spec__.name,
                    *map(str, options),
                    "--lists",
                    folder,
                    "--when",
                    when,
                ],
                env={**os.environ, "OMP_NUM_THREADS": "2"},
            )
            for when in WHENS
        ]
        if codes := [other.wait() for other in others if other.wait()]:
            raise RuntimeError(f"making lists ended with {codes}; see above")
        before, now = (
            read_lists(Path(folder) / f"{when}-{seed}.npz", data, when, seed, given.splits)
            for when in WHENS
        )
    return before, now


def run_seed(given: argparse.Namespace, data: Data, seed: int, recipe: Recipe) -> None:
    """Measure every row with one seed of the sources; keep the numbers, row by row."""
    before, now = lists_by_two(given, data, seed)
    one = Seed(data, seed, before, now, recipe, device_named("auto"))
    with stage("blends"):
        blends = one.blends()
    # Rankers are too small for a GPU, and forked processes cannot use one.
    one.device = torch.device("cpu")
    seeds = [seed + SEEDS_APART * number for number in range(given.rankers)]
    rows = {number: dict(blends) for number in seeds}
    diagnostics: dict[int, dict[str, Any]] = {number: {} for number in seeds}
    trunks = [trunk for trunk in TRUNKS[::-1] if trunk in given.trunks]
    jobs = [(number, trunk) for number in seeds for trunk in (*trunks, None)]
    _SHARED["one"] = one
    with get_context("fork").Pool(given.processes) as pool:
        for number, trunk, values, about in pool.imap_unordered(one_row, jobs):
            name = trunk or CORRECTION
            rows[number][name] = {split: torch.from_numpy(each) for split, each in values.items()}
            diagnostics[number][name] = about
            keep(given, one, number, rows[number], diagnostics[number])
            means = {split: round(float(each.mean()), 5) for split, each in values.items()}
            print(seed, number, name, means, about, flush=True)
        lines = dict(pool.imap_unordered(one_line, KINDS if given.lines else ()))
    if given.lines:
        path = given.kept / f"{data.prepared.name}-{seed}-lines.json"
        path.write_text(json.dumps(lines, indent=1) + "\n")
        print(lines, flush=True)


def one_line(kinds: tuple[str, ...]) -> tuple[str, tuple[float, float]]:
    """Say what the straight line loses on validation without some kinds of numbers."""
    torch.set_num_threads(1)
    values, whole = _SHARED["one"].line_without(kinds)
    lost = values - whole
    return " ".join(kinds), (float(lost.mean()), float(lost.std() / len(lost) ** 0.5))


def one_row(job: tuple[int, Trunk | None]) -> tuple[int, Trunk | None, Values, dict[str, Any]]:
    """Train and measure one ranker, in a process of its own."""
    torch.set_num_threads(1)
    number, trunk = job
    one = copy.copy(_SHARED["one"])
    one.seed = number
    model, seconds = one.trained(trunk)
    values, diagnostics = one.measured(model)
    diagnostics["seconds"] = round(seconds, 1)
    return (
        number,
        trunk,
        {split: each.float().numpy() for split, each in values.items()},
        diagnostics,
    )


def keep(
    given: argparse.Namespace,
    one: Seed,
    number: int,
    rows: Mapping[str, Mapping[str, Tensor]],
    diagnostics: Mapping[str, Any],
) -> None:
    """Write what there is of a seed of rankers."""
    given.kept.mkdir(parents=True, exist_ok=True)
    name = f"{one.data.prepared.name}-{number}"
    arrays = {
        f"{row}/{split}": values.float().numpy()
        for row, parts in rows.items()
        for split, values in parts.items()
    }
    np.savez_compressed(given.kept / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    document = {
        "data_set": one.data.prepared.name,
        "data_digest": one.data.prepared.data_digest,
        "sources": one.data.prepared.recipe.digest(),
        "seed": number,
        "seed_of_sources": one.seed,
        "splits": list(given.splits),
        "max_epochs": given.max_epochs,
        "source_names": one.data.prepared.recipe.parts("blend_fast"),
        "diagnostics": diagnostics,
        "queries": len(one.learned.labels),
        "found": len(one.learned.found()),
        "recipe": asdict(one.recipe),
    }
    (given.kept / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def loaded(directory: Path, held_back: int, max_queries: int) -> Data:
    """Read prepared arrays and the values beside them."""
    prepared = Prepared.load(directory)
    values = torch.full((prepared.order("given").num_events,), torch.nan)
    if (directory / VALUES).exists():
        with np.load(directory / VALUES, allow_pickle=False) as file:
            values = torch.from_numpy(file["values"].astype(np.float32))
    return Data(prepared=prepared, values=values, held_back=held_back, max_queries=max_queries)


def prepare(name: str, directory: Path) -> None:
    """Make the arrays of a preset, with each event's value beside them; needs the whole package."""
    import polars as pl

    from pipelines.presets.resolve import resolve
    from tests.benchmarks.recipes.prepare import prepare as prepared_of
    from tests.benchmarks.recipes.prepare import recipe_of

    sources = ("popularity", "item_to_item", "content", "two_tower", "sequence")
    with tempfile.TemporaryDirectory() as folder:
        config = resolve(preset=name.replace("-", "_"), workspace=Path(folder))
        recipe = recipe_of(config, (*sources, "blend_fast"), sources)
        prepared = prepared_of(name, config, recipe, show_progress=False)
        prepared.save(directory)
        events = pl.read_parquet(Path(folder) / "build_features/events/**/*.parquet")
    if "value" not in events.columns:
        return
    sequences = prepared.order("given")
    users = sequences.users_of(np.arange(sequences.num_events))
    wanted = pl.DataFrame({"user_row": users, "item_row": np.asarray(sequences.item_rows)})
    known = events.unique(["user_row", "item_row"], keep="last", maintain_order=True)
    found = wanted.join(known, on=["user_row", "item_row"], how="left", maintain_order="left")
    values = found["value"].cast(pl.Float32).fill_null(float("nan")).to_numpy()
    np.savez_compressed(directory / VALUES, values=values.astype(np.float16))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--arrays", type=Path, help="prepared arrays of one data set")
    parser.add_argument("--prepare", help="preset whose arrays are made first")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--splits", nargs="+", default=["validation"], choices=["validation", "test"]
    )
    parser.add_argument("--trunks", nargs="+", default=list(TRUNKS), choices=TRUNKS)
    parser.add_argument("--held-back", type=int, default=10, help="latest train events of a user")
    parser.add_argument(
        "--max-epochs", type=float, help="of a trained source; the recipe's if less"
    )
    parser.add_argument("--sources", nargs="+", help="of the recipe's, these alone")
    parser.add_argument("--most-judged", type=int, help="users of a split; all by default")
    parser.add_argument("--max-queries", type=int, default=20_000)
    parser.add_argument(
        "--linear-items",
        type=int,
        default=MAX_ITEMS,
        help="items with linear weights, those with the most events",
    )
    parser.add_argument(
        "--rankers", type=int, default=1, help="seeds of rankers over each seed's sources"
    )
    parser.add_argument(
        "--lines",
        action="store_true",
        help="report what lines lose on validation with fewer features",
    )
    parser.add_argument("--processes", type=int, default=1, help="that train rankers")
    parser.add_argument("--lists", type=Path, help="only leave lists in this folder")
    parser.add_argument("--when", choices=WHENS, help="whose lists")
    parser.add_argument("--kept", type=Path, default=Path("runs/benchmark-ranker"))
    parser.add_argument("--only-keep", action="store_true", help="leave the table to another call")
    parser.add_argument("--only-collect", action="store_true", help="run no seed")
    parser.add_argument("--device-name", default=None)
    parser.add_argument("--commit", help="that made the kept numbers; this one by default")
    given = parser.parse_args()
    if given.arrays is None and not given.only_collect:
        parser.error("--arrays says what to run on")
    return given


def measure(given: argparse.Namespace) -> None:
    """Run the seeds, or the part of one that another process needs."""
    if given.prepare:
        prepare(given.prepare, given.arrays)
    data = loaded(given.arrays, given.held_back, given.max_queries)
    if given.max_epochs is not None:
        data = data.with_epochs(given.max_epochs)
    if given.sources is not None:
        data = data.with_sources(given.sources)
    data = replace(data, most_judged=given.most_judged)
    for seed in given.seeds:
        if given.lists is None:
            run_seed(given, data, seed, Recipe(linear_items=given.ease))
            continue
        lists = lists_of(data, given.when, seed, given.splits, device_named("auto"))
        write_lists(lists, given.lists / f"{given.when}-{seed}.npz")


def main() -> None:
    given = arguments()
    if not given.only_collect:
        measure(given)
    if given.only_keep or given.lists is not None:
        return
    found, device = read_kept(given.kept), given.device_name or device_name()
    for data_set, one in found.items():
        if "test" in one.splits:
            note_test_looks(data_set, [seed["seed"] for seed in one.diagnostics])
        write_set(one, device, given.commit)
    if len(found) > 1:
        write_sets(found, device, given.commit)


if __name__ == "__main__":
    main()
