"""Tables of ``benchmark_trunks`` from the numbers that its seeds left.

Axes: S seeds, U users.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.evaluation.significance import holm, sign_flip_p_values
from tests.benchmarks.harness import RESULTS, Row, write_results
from tests.benchmarks.ranker.seeds import BLEND, CORRECTION, EARLIER_BLEND, METRIC, TRUNKS

GOAL = 0.05
DENSE = "dense"
HEADER = (
    "row",
    "seeds",
    "NDCG@10",
    "deviation of seeds",
    "over the blend",
    "lift",
    "p",
    "over dense",
    "p",
    "kFLOP",
    "AUC",
    "MaxVio",
    "dead experts",
)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """All seeds of a data set."""

    data_set: str
    diagnostics: list[dict[str, Any]]
    """Diagnostics of each seed, S."""
    values: dict[tuple[str, str], dict[int, NDArray[np.float32]]]
    """By row and split, then by seed, [U]; a seed that was cut lacks rows."""

    @property
    def names(self) -> list[str]:
        order = (BLEND, EARLIER_BLEND, CORRECTION, *TRUNKS)
        return sorted({name for name, _ in self.values}, key=order.index)

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(split for _, split in self.values))

    def of(self, name: str, split: str, like: str | None = None) -> NDArray[np.float32]:
        """Give a row's values, [S, U]; of the seeds that another one has too."""
        own, other = self.values[name, split], self.values[like or name, split]
        return np.stack([own[seed] for seed in sorted(own.keys() & other.keys())])

    def lift(self, name: str, split: str) -> float:
        """Say by what share of the served blend a row is ahead of it."""
        return float(self.of(name, split).mean() / self.of(BLEND, split, name).mean() - 1)


def read_kept(folder: Path) -> dict[str, Kept]:
    """Read what seeds left, by data set."""
    found: dict[str, Kept] = {}
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_text())
        if not (
            isinstance(document, dict) and "data_set" in document and "diagnostics" in document
        ):
            continue
        name = document["data_set"]
        kept = found.setdefault(name, Kept(data_set=name, diagnostics=[], values={}))
        kept.diagnostics.append(document)
        with np.load(path.with_suffix(".npz")) as file:
            for key in file.files:
                row, _, split = key.rpartition("/")
                kept.values.setdefault((row, split), {})[document["seed"]] = file[key]
    return found


def against(kept: Kept, split: str, baseline: str) -> dict[str, tuple[float, float, float]]:
    """Compare rows with a baseline, user by user, each user's seeds averaged.

    Returns:
        By row: the difference, its standard error, p by signs flipped at random, by Holm.
    """
    others = [name for name in kept.names if name not in (baseline, BLEND, EARLIER_BLEND)]
    if (baseline, split) not in kept.values:
        return {}
    table = np.stack(
        [
            (kept.of(name, split, baseline) - kept.of(baseline, split, name)).mean(0)
            for name in others
        ],
        axis=1,
    )
    p_values = holm(sign_flip_p_values(table))
    errors = table.std(0, ddof=1) / math.sqrt(len(table))
    return {
        name: (float(table[:, place].mean()), float(errors[place]), float(p_values[place]))
        for place, name in enumerate(others)
    }


def table_of(kept: Kept, split: str) -> list[str]:
    """Write the rows of one split."""
    baselines = [against(kept, split, one) for one in (BLEND, DENSE)]
    lines = ["| " + " | ".join(HEADER) + " |", "| " + " | ".join(["---"] * len(HEADER)) + " |"]
    for name in kept.names:
        by_seed = kept.of(name, split).mean(1)
        spread = by_seed.std(ddof=1) if len(by_seed) > 1 else math.nan
        cells = [name, f"{len(by_seed)}", f"{by_seed.mean():.4f}", f"{spread:.4f}"]
        for place, compared in enumerate(baselines):
            ahead = compared.get(name)
            cells.append("" if ahead is None else f"{ahead[0]:+.4f} +- {ahead[1]:.4f}")
            if place == 0:
                cells.append("" if ahead is None else f"{kept.lift(name, split):+.1%}")
            cells.append("" if ahead is None else f"{ahead[2]:.3f}")
        diagnostics = [
            one["diagnostics"][name] for one in kept.diagnostics if name in one["diagnostics"]
        ]
        cells += _cells_of(diagnostics, split) if diagnostics else [""] * 4
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cells_of(diagnostics: Sequence[dict[str, Any]], split: str) -> list[str]:
    cells = [
        f"{diagnostics[0]['flops'] / 1000:.1f}",
        f"{np.mean([one[f'auc/{split}']['next'] for one in diagnostics]):.4f}",
    ]
    if "max_violation" not in diagnostics[0]:
        return [*cells, "", ""]
    cells.append(f"{max(one['max_violation'] for one in diagnostics):.2f}")
    return [*cells, f"{max(one['dead_experts'] for one in diagnostics)}"]


def rows_of(kept: Kept) -> list[Row]:
    """Hold every ranker against the goal."""
    rows = []
    for split in kept.splits:
        for name in kept.names:
            blend = float(kept.of(BLEND, split, name).mean())
            is_ranker, lift = name not in (BLEND, EARLIER_BLEND), kept.lift(name, split)
            seeds = len(kept.values[name, split])
            rows.append(
                Row(
                    name=f"{kept.data_set}, {split}, {name}: {METRIC}, mean of {seeds} seeds",
                    value=float(kept.of(name, split).mean()),
                    peer=f"blend, served: {blend:.4f}" if is_ranker else None,
                    ratio=1 + lift if is_ranker else None,
                    goal=">= 5% over the blend" if is_ranker else None,
                    met=lift >= GOAL if is_ranker else None,
                )
            )
    return rows


def seeds_of(kept: Kept) -> str:
    """Say what varies over the seeds."""
    by_sources: dict[int, list[int]] = {}
    for one in kept.diagnostics:
        by_sources.setdefault(one["seed_of_sources"], []).append(one["seed"])
    if all(len(seeds) == 1 for seeds in by_sources.values()):
        return "A seed is that of sources, of events and of rankers."
    parts = [f"{source} (rankers {sorted(seeds)})" for source, seeds in sorted(by_sources.items())]
    return (
        f"Seeds are of rankers, over sources and events of {len(by_sources)} seeds: "
        f"{', '.join(parts)}. Over the same sources, the blend and the straight line are the same "
        "for all rankers."
    )


def sources_of(kept: Kept) -> str:
    """Name the sources, where they are known."""
    sources = kept.diagnostics[0].get("source_names")
    return f"Sources: {', '.join(sources)}. " if sources else ""


def write_set(kept: Kept, device: str, commit: str | None) -> None:
    """Write one data set's result."""
    first = kept.diagnostics[0]
    text = [
        f"Learned from {first['queries']} earlier events a seed, of which "
        f"{first['found']} have their item among the candidates (seed {first['seed']}). "
        f"{sources_of(kept)}"
        f"{seeds_of(kept)} p: signs of the users' differences flipped at random, each user's seeds "
        "averaged, by Holm over the rows. A row of fewer seeds is compared over those; the others "
        "were cut off. MaxVio and dead experts: the largest of the seeds.",
    ]
    for split in kept.splits:
        users = kept.of(BLEND, split).shape[1]
        text += [f"\n{kept.data_set}, {split}, {users} users\n"]
        text += table_of(kept, split)
    name = f"{kept.data_set.replace('-', '_')}"
    write_results(name, rows_of(kept), notes="\n".join(text), device=device, commit=commit)


def write_sets(found: dict[str, Kept], device: str, commit: str | None) -> None:
    """Write what every row gains over the blend on every data set, and the mean of validation."""
    names = [CORRECTION, *TRUNKS]
    splits = ("validation", "test")
    columns = [(data_set, split) for split in splits for data_set in found]
    head = [*(f"{data_set}, {split}" for data_set, split in columns), "mean of validation"]
    text = [
        "NDCG@10 over the blend as served, in percent of it; means of the seeds. Each data set's "
        "own file has deviations, p-values, operations and the use of experts.\n",
        "| row | " + " | ".join(head) + " |",
        "| " + " | ".join(["---"] * (len(head) + 1)) + " |",
    ]
    rows = []
    for name in names:
        lifts = {
            (data_set, split): found[data_set].lift(name, split)
            for data_set, split in columns
            if (name, split) in found[data_set].values
        }
        if any((data_set, "validation") not in lifts for data_set in found):
            continue
        mean = float(np.mean([lifts[data_set, "validation"] for data_set in found]))
        cells = [f"{lifts[key]:+.1%}" if key in lifts else "" for key in columns]
        text.append("| " + " | ".join([name, *cells, f"{mean:+.2%}"]) + " |")
        rows.append(
            Row(
                name=f"{name}: lift on validation, mean of {len(found)} data sets",
                value=mean,
                goal=">= 5% over the blend",
                at_least=GOAL,
            )
        )
    write_results("sets", rows, notes="\n".join(text), device=device, commit=commit)


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
