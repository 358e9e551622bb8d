"""A run with one seed: its settings, its files, and the ledger of looks at test.

A run's folder:

    <row>.npz       its lists of each split, and the ranks of the targets there
    <row>.json      its metrics and how long it took
    checkpoints/    of a training that is not done
    result.json     all rows; written last

Looks at the test split go to ``ledger.jsonl`` in the folder of all runs, before any of its metrics
exist.

Axes: U queries of a split, M targets, k list length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import per_user_metric
from recsys.fitting.queries import RankedQueries
from recsys.fitting.spec import device_named
from tests.benchmarks.recipes.prepared import Prepared

MeasuredSplit = Literal["validation", "test"]
SPLITS: tuple[MeasuredSplit, ...] = ("validation", "test")
METRICS = ("recall@5", "recall@10", "recall@50", "ndcg@5", "ndcg@10", "ndcg@50", "mrr@10")
RESULT = "result.json"
LEDGER = "ledger.jsonl"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What one run is to do."""

    order: str
    """Of events at one time."""
    seed: int
    splits: tuple[MeasuredSplit, ...] = SPLITS
    device: str = "auto"
    why: str = ""
    """Noted in the ledger of test looks."""
    shows_progress: bool = False

    @property
    def name(self) -> str:
        return f"{self.order}-{self.seed}"


def described(prepared: Prepared, settings: RunSettings) -> dict[str, Any]:
    """Say which data, recipe and device metrics are of."""
    return {
        "data_set": prepared.name,
        "data_digest": prepared.data_digest,
        "recipe": prepared.recipe.digest(),
        "order": settings.order,
        "seed": settings.seed,
        "splits": list(settings.splits),
        "device": device_text(device_named(settings.device)),
    }


def device_text(device: torch.device) -> str:
    """Name the hardware of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def metrics_of(ranks: Tensor, targets: Jagged) -> dict[str, float]:
    """Average every metric over the queries with a target.

    Args:
        ranks: Of each target, [M].
        targets: Of U queries.
    """
    ragged = Jagged(ranks, targets.offsets)
    return {name: float(per_user_metric(ragged, name).nanmean()) for name in METRICS}


def read_result(path: Path, prepared: Prepared) -> dict[str, Any] | None:
    """Read a finished part.

    Raises:
        ValueError: It was made from other data or by another recipe; both are named.
    """
    if not path.exists():
        return None
    result = read_json(path)
    for what, here in (("data_digest", prepared.data_digest), ("recipe", prepared.recipe.digest())):
        if result[what] != here:
            raise ValueError(
                f"{path} was made with {what.replace('_', ' ')} {result[what]}, this run has "
                f"{here}; take another folder, or delete that one to run it again"
            )
    return result


def finished_result(
    folder: Path, prepared: Prepared, settings: RunSettings
) -> dict[str, Any] | None:
    """Read the result of an earlier call that measured these splits."""
    done = read_result(folder / RESULT, prepared)
    return None if done is None or not set(settings.splits) <= set(done["splits"]) else done


def finished_row(
    folder: Path, row: str, prepared: Prepared, settings: RunSettings
) -> dict[str, Any] | None:
    """Read a row that an earlier call measured on these splits."""
    done = read_result(folder / f"{row}.json", prepared)
    if done is None or not set(settings.splits) <= set(done["splits"]):
        return None
    metrics: dict[str, Any] = done["row"]
    return metrics


def write_row(
    folder: Path,
    row: str,
    metrics: Mapping[str, Any],
    ranked: Mapping[MeasuredSplit, RankedQueries],
    about: Mapping[str, Any],
) -> None:
    """Write a row's lists, then its metrics and what they are of."""
    save_ranked(folder / f"{row}.npz", ranked)
    write_json(folder / f"{row}.json", {**about, "row": dict(metrics)})


def save_ranked(path: Path, ranked: Mapping[MeasuredSplit, RankedQueries]) -> None:
    """Write lists and ranks of every split into one file."""
    arrays = {}
    for split, one in ranked.items():
        arrays[f"{split}/scores"] = one.lists.scores.numpy()
        arrays[f"{split}/item_rows"] = one.lists.item_rows.numpy().astype(np.int32)
        arrays[f"{split}/ranks"] = one.ranks.numpy()
    part = path.with_suffix(".part.npz")
    np.savez(part, **arrays)  # type: ignore[arg-type]
    part.replace(path)


def load_ranked(path: Path) -> dict[MeasuredSplit, RankedQueries]:
    """Read what `save_ranked` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return {
            split: RankedQueries(
                TopK(
                    torch.from_numpy(file[f"{split}/scores"]),
                    torch.from_numpy(file[f"{split}/item_rows"].astype(np.int64)),
                ),
                torch.from_numpy(file[f"{split}/ranks"]),
            )
            for split in SPLITS
            if f"{split}/ranks" in file.files
        }


def note_test_look(path: Path, prepared: Prepared, settings: RunSettings) -> None:
    """Record that a test split is looked at, by what, and why."""
    entry = {
        "date": datetime.now(UTC).date().isoformat(),
        "data_set": prepared.name,
        "tie_order": settings.order,
        "model": ", ".join(prepared.recipe.rows),
        "seed": settings.seed,
        "config": prepared.recipe.digest(),
        "why": settings.why,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a document."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
