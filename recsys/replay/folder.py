"""The files of a replay: the requests of each step, and every row's lists.

    replay.json                     the replay: data, recipe, settings, steps
    ledger.jsonl                    the look at the steps, which nothing may be tuned on
    choices.json                    what the warm-up chose
    models/<policy>/<t>/<model>/    trained weights that later steps continue
    steps/<t>/lists/<name>.npz      item_rows [Q, 50] int32, 0 where a list is short; fit_seconds,
                                    rank_seconds. <name> is <policy>.<row>
    steps/<t>/sources/<policy>.<model>.npz   lists with scores that blends are made of; removed
                                             once every blend is made
    steps/<t>/<policy>.json         written last: the policy's models have answered the step

Axes: Q queries, k list length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recsys.data.durable import write_durably
from recsys.data.top_k import NO_ROW, TopK

KEPT = 50
"""Places of a row's lists that are kept."""
SERVED = "served"
"""The row that is served."""
WARM_UP = "warm-up"
"""The policy of the models that answer the warm-up, the same for every policy."""
FIRST = "first"
"""The policy of the models of the first judged step, the same for every policy."""


@dataclass(frozen=True)
class ReplayFolder:
    """Paths of a replay's files."""

    path: Path

    def step(self, number: int) -> Path:
        return self.path / "steps" / str(number)

    def lists(self, number: int, policy: str, row: str) -> Path:
        return self.step(number) / "lists" / f"{policy}.{row}.npz"

    def source(self, number: int, policy: str, model: str) -> Path:
        return self.step(number) / "sources" / f"{policy}.{model}.npz"

    def done(self, number: int, policy: str) -> Path:
        return self.step(number) / f"{policy}.json"

    def models(self, number: int, policy: str) -> Path:
        return self.path / "models" / policy / str(number)

    def is_done(self, number: int, policy: str) -> bool:
        return self.done(number, policy).exists()


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(document, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a document."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays as one file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **arrays)
    part.replace(path)


def save_lists(
    path: Path, item_rows: torch.Tensor, fit_seconds: float, rank_seconds: float
) -> None:
    """Write a row's first places, [Q, k]."""
    kept = item_rows[:, :KEPT].clamp_min(0).numpy().astype(np.int32)
    save_arrays(
        path,
        item_rows=np.pad(kept, ((0, 0), (0, KEPT - kept.shape[1]))),
        fit_seconds=fit_seconds,
        rank_seconds=rank_seconds,
    )


def save_source(path: Path, lists: TopK) -> None:
    """Write lists with their scores."""
    save_arrays(
        path, scores=lists.scores.numpy(), item_rows=lists.item_rows.numpy().astype(np.int32)
    )


def load_source(path: Path) -> TopK:
    """Read what ``save_source`` wrote."""
    with np.load(path, allow_pickle=False) as file:
        rows = torch.from_numpy(file["item_rows"].astype(np.int64))
        return TopK(torch.from_numpy(file["scores"]), rows.masked_fill(rows < 1, NO_ROW))
