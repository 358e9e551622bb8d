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
each seed's numbers, so that seeds can run on several machines; ``--only-collect`` writes the table.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ranker_seeds import (
    BLEND,
    CORRECTION,
    EARLIER_BLEND,
    METRIC,
    TRUNKS,
    Recipe,
    Seed,
)
from ranker_sources import Asked, Data, lists_of, read_lists, write_lists
from results_file import RESULTS, Row, device_name, write_results
from torch import Tensor

from recsys.evaluation.significance import holm, sign_flip_p_values
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.run import device_named, device_text

VALUES = "values.npz"
GOAL = 0.05


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


def note_test_looks(data_set: str, seeds: Sequence[int]) -> None:
    """Add what was looked at to the ledger."""
    with (RESULTS / "test_split_ledger.jsonl").open("a", encoding="utf-8") as file:
        for seed in seeds:
            entry = {
                "date": datetime.now(UTC).date().isoformat(),
                "data_set": data_set,
                "tie_order": "given",
                "model": "blend and rankers of five trunks over it",
                "seed": seed,
                "config": "benchmark_ranker",
                "why": "trunks of equal compute over the blend, chosen by validation",
            }
            file.write(json.dumps(entry) + "\n")


def collected(data_set: str, kept: Path) -> tuple[list[Row], str]:
    """Average the seeds' numbers and test each row against the blend and against dense."""
    found = [json.loads(path.read_text()) for path in sorted(kept.glob(f"{data_set}-*.json"))]
    arrays = [np.load(kept / f"{data_set}-{one['seed']}.npz") for one in found]
    names = list(dict.fromkeys(key.rpartition("/")[0] for key in arrays[0].files))
    splits, rows, text = found[0]["splits"], [], []
    for split in splits:
        means = {name: np.stack([part[f"{name}/{split}"] for part in arrays]) for name in names}
        text += [
            f"\n{data_set}, {split}, {len(found)} seeds, {means[BLEND].shape[1]} users\n",
            "| row | NDCG@10 | deviation of seeds | over the blend | p | over dense | p | kFLOP | "
            "AUC | MaxVio |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        against = {}
        for rival in (BLEND, "dense"):
            others = [name for name in names if name not in (rival, BLEND, EARLIER_BLEND)]
            table = np.stack([(means[name] - means[rival]).mean(0) for name in others], axis=1)
            p_values = holm(sign_flip_p_values(table))
            for place, name in enumerate(others):
                column = table[:, place]
                error = column.std(ddof=1) / math.sqrt(len(column))
                against[name, rival] = (float(column.mean()), float(error), float(p_values[place]))
        for name in names:
            by_seed = means[name].mean(1)
            cells = [
                name,
                f"{by_seed.mean():.4f}",
                f"{by_seed.std(ddof=1) if len(by_seed) > 1 else 0:.4f}",
            ]
            for rival in (BLEND, "dense"):
                told = against.get((name, rival))
                cells += (
                    ["", ""]
                    if told is None
                    else [f"{told[0]:+.4f} +- {told[1]:.4f}", f"{told[2]:.3f}"]
                )
            more = [one["told"].get(name, {}) for one in found]
            cells.append(f"{more[0]['flops'] / 1000:.1f}" if more[0] else "")
            aucs = [part[f"auc/{split}"]["next"] for part in more if part]
            cells.append(f"{np.mean(aucs):.4f}" if aucs else "")
            violations = [part["max_violation"] for part in more if "max_violation" in part]
            cells.append(f"{max(violations):.2f}" if violations else "")
            text.append("| " + " | ".join(cells) + " |")
            lift = float(by_seed.mean() / means[BLEND].mean() - 1)
            is_ranker = name not in (BLEND, EARLIER_BLEND)
            rows.append(
                Row(
                    name=f"{data_set}, {split}, {name}: {METRIC}, mean of {len(found)} seeds",
                    value=float(by_seed.mean()),
                    unit="",
                    peer=f"blend, served: {means[BLEND].mean():.4f}" if is_ranker else None,
                    ratio=1 + lift if is_ranker else None,
                    goal=">= 5% over the blend" if is_ranker else None,
                    met=lift >= GOAL if is_ranker else None,
                )
            )
    return rows, "\n".join(text)


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--arrays", type=Path, required=True)
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
    if given.prepare:
        prepare(given.prepare, given.arrays)
    data = loaded(given.arrays, given.held_back, given.max_queries)
    if given.max_epochs is not None:
        data = data.with_epochs(given.max_epochs)
    if given.lists_before is not None:
        for seed in given.seeds:
            before = lists_of(data, "before", seed, given.splits, device_named("auto"))
            write_lists(before, given.lists_before / f"before-{seed}.npz")
        return
    if not given.only_collect:
        for seed in given.seeds:
            run_seed(given, data, seed, Recipe())
    if given.only_keep:
        return
    if "test" in given.splits:
        note_test_looks(data.prepared.name, given.seeds)
    rows, text = collected(data.prepared.name, given.kept)
    name = f"ranker_{data.prepared.name.replace('-', '_')}"
    write_results(name, rows, notes=text, device=given.device_name or device_name())


if __name__ == "__main__":
    main()
