"""Rank the blend's candidates by trunks of equal compute on a real data set.

As ``train_ranker`` does: sources are fitted before each user's latest train events, rankers learn
from these, and validation judges them; with ``--splits validation test`` test is looked at too,
which is noted in the ledger. A seed is that of the sources, of the events that are learned from and
of the rankers. Rows: the blend as served (on validation each half by the weights of the other), the
blend by weights of the earlier events alone, the straight line over a candidate's numbers without a
network, and each trunk over that.

    export PYTHONPATH=$PWD
    python tests/benchmarks/benchmark_ranker.py --prepare movielens-100k --arrays DIR
    python tests/benchmarks/benchmark_ranker.py --arrays DIR --seeds 0 1 2 3 4

DIR holds arrays as ``recsys reproduce CARD --prepare`` writes them too. ``--kept FOLDER`` keeps
each seed's numbers, so that seeds can run on several machines; ``--only-collect`` writes the tables
of all data sets that it finds there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ranker_seeds import (
    CORRECTION,
    TRUNKS,
    Recipe,
    Seed,
)
from ranker_sources import Asked, Data, lists_of, read_lists, write_lists
from ranker_tables import note_test_looks, read_kept, write_set, write_sets
from results_file import device_name
from torch import Tensor

from recsys.reproduction.prepared import Prepared
from recsys.reproduction.run import device_named, device_text

VALUES = "values.npz"


def lists_by_two(
    given: argparse.Namespace, data: Data, seed: int, folder: Path
) -> dict[str, dict[str, Asked]]:
    """Make the lists before the earlier events in another process, those of now in this one."""
    options = ["--arrays", given.arrays, "--seeds", seed, "--held-back", given.held_back]
    options += ["--max-queries", given.max_queries, "--lists-before", folder]
    if given.max_epochs is not None:
        options += ["--max-epochs", given.max_epochs]
    with subprocess.Popen([sys.executable, __file__, *map(str, options)]) as other:
        now = lists_of(data, "now", seed, given.splits, device_named("auto"))
        if other.wait():
            raise RuntimeError(f"the other process ended with {other.returncode}; see above")
    before = read_lists(folder / f"before-{seed}.npz", data, "before", seed, given.splits)
    return {"before": before, "now": now}


def run_seed(given: argparse.Namespace, data: Data, seed: int, recipe: Recipe) -> None:
    """Measure every row with one seed and keep the numbers, row by row."""
    with tempfile.TemporaryDirectory() as folder:
        lists = lists_by_two(given, data, seed, Path(folder))
    one = Seed(data, seed, lists["before"], lists["now"], recipe, device_named("auto"))
    rows: dict[str, dict[str, Tensor]] = one.blends()
    told: dict[str, Any] = {}
    for trunk in (None, *given.trunks):
        model, seconds = one.trained(trunk)
        name = trunk or CORRECTION
        rows[name], told[name] = one.measured(model)
        told[name]["seconds"] = round(seconds, 1)
        keep(given, one, rows, told)
        means = {split: round(float(v.mean()), 5) for split, v in rows[name].items()}
        print(seed, name, means, told[name], flush=True)


def keep(
    given: argparse.Namespace,
    one: Seed,
    rows: Mapping[str, Mapping[str, Tensor]],
    told: Mapping[str, Any],
) -> None:
    """Write what there is of a seed."""
    given.kept.mkdir(parents=True, exist_ok=True)
    name = f"{one.data.prepared.name}-{one.seed}"
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
        "seed": one.seed,
        "splits": list(given.splits),
        "max_epochs": given.max_epochs,
        "device": device_text(one.device),
        "told": told,
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

    from pipelines.reproduce_arrays import prepare as prepared_of
    from pipelines.reproduce_arrays import recipe_of
    from pipelines.resolve import resolve

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
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
    parser.add_argument("--max-queries", type=int, default=20_000)
    parser.add_argument(
        "--lists-before", type=Path, help="only leave the earlier events' lists in this folder"
    )
    parser.add_argument("--kept", type=Path, default=Path("runs/benchmark-ranker"))
    parser.add_argument("--only-keep", action="store_true", help="leave the table to another call")
    parser.add_argument("--only-collect", action="store_true", help="run no seed")
    parser.add_argument("--device-name", default=None)
    given = parser.parse_args()
    if given.arrays is None and not given.only_collect:
        parser.error("--arrays says what to run on")
    return given


def measure(given: argparse.Namespace) -> None:
    """Run the seeds, or the part of one that another process asked for."""
    if given.prepare:
        prepare(given.prepare, given.arrays)
    data = loaded(given.arrays, given.held_back, given.max_queries)
    if given.max_epochs is not None:
        data = data.with_epochs(given.max_epochs)
    for seed in given.seeds:
        if given.lists_before is None:
            run_seed(given, data, seed, Recipe())
            continue
        before = lists_of(data, "before", seed, given.splits, device_named("auto"))
        write_lists(before, given.lists_before / f"before-{seed}.npz")


def main() -> None:
    given = arguments()
    if not given.only_collect:
        measure(given)
    if given.only_keep or given.lists_before is not None:
        return
    found, device = read_kept(given.kept), given.device_name or device_name()
    for data_set, one in found.items():
        if "test" in one.splits:
            note_test_looks(data_set, [told["seed"] for told in one.told])
        write_set(one, device)
    if len(found) > 1:
        write_sets(found, device)


if __name__ == "__main__":
    main()
