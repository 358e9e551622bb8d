"""Judge the lists of a run on validation by rubrics, and measure the rubrics themselves.

Axes: L users whose lists are judged, k list length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.engine.history import JUDGES, write_result
from pipelines.evaluation.analysis import SERVED
from pipelines.inputs.tensors import CONTENT_FILE, read_inputs, released_order
from recsys.data.dataset import Sequences
from recsys.evaluation.config import BootstrapConfig
from recsys.evaluation.judges import (
    Judge,
    Known,
    available_rubrics,
    click_agreement,
    measure_biases,
    planted_lists,
    rank_correlation,
    separation,
)

LIKELY = 0.5
"""Agreement by chance."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Lists of one run's models for the same users."""

    known: Known
    users: Tensor
    """User rows, [L]."""
    lists: Mapping[str, Tensor]
    """By model, [L, k], 0 after the end of a short list."""
    hits: Mapping[str, Tensor]
    """True if a list has the user's held-out event, [L]."""

    @property
    def served(self) -> str:
        """The model whose lists are served, or the first there is."""
        return next((name for name in SERVED if name in self.lists), next(iter(self.lists)))


def read_lists(workspace: Path, *, k: int, num_users: int, seed: int) -> Judged:
    """Read the lists that evaluate kept for validation."""
    features = workspace / "build_features"
    if not features.is_dir():
        raise ValueError(f"{workspace} has no build_features; run recsys run there first")
    order = released_order(features)
    path = workspace / "evaluate" / f"per_user_{order}_validation.parquet"
    if not path.exists():
        raise ValueError(f"{path} is missing; run recsys run, whose stage evaluate writes it")
    content = workspace / "embed_items"
    inputs = read_inputs(features, content if (content / CONTENT_FILE).exists() else None, order)
    table = pl.read_parquet(path).unique("user_row", keep="first", maintain_order=True)
    chosen = np.random.default_rng(seed).permutation(len(table))[:num_users]
    table = table[chosen.tolist()]
    names = [name.removeprefix("top_k_") for name in table.columns if name.startswith("top_k_")]
    lists = {name: _padded(table[f"top_k_{name}"].to_list(), k) for name in names}
    targets = torch.from_numpy(table["item_row"].to_numpy().copy())
    known = Known(
        histories=inputs.sequences.histories(inputs.sequences.train_end),
        categories=inputs.catalogue.categories,
        num_categories=inputs.sizes.num_categories,
        content=inputs.catalogue.content,
        first_seen=_first_seen(inputs.sequences, inputs.sizes.num_item_rows),
    )
    return Judged(
        known=known,
        users=torch.from_numpy(table["user_row"].to_numpy().copy()),
        lists=lists,
        hits={name: (rows == targets[:, None]).any(1) for name, rows in lists.items()},
    )


def _padded(rows: list[list[int]], k: int) -> Tensor:
    found = torch.zeros(len(rows), k, dtype=torch.int64)
    for place, row in enumerate(rows):
        found[place, : min(k, len(row))] = torch.tensor(row[:k], dtype=torch.int64)
    return found


def _first_seen(sequences: Sequences, num_item_rows: int) -> Tensor | None:
    """Return each item's first training event as a share of the time, [N]."""
    if sequences.times is None:
        return None
    place = np.arange(sequences.num_events)
    owners = np.repeat(np.arange(len(sequences.offsets) - 1), np.diff(sequences.offsets))
    train = place < np.asarray(sequences.train_end)[owners]
    items, times = np.asarray(sequences.item_rows)[train], np.asarray(sequences.times)[train]
    first = np.full(num_item_rows, np.inf)
    np.minimum.at(first, items, times.astype(np.float64))
    if not len(times):
        return None
    low, high = float(times.min()), float(times.max())
    share = (first - low) / max(1.0, high - low)
    return torch.from_numpy(np.where(np.isfinite(first), share, np.nan))


def measured(judge: Judge, judged: Judged, planted: Mapping[str, Tensor]) -> dict[str, Any]:
    """Measure how a judge scores models and planted lists, and its biases."""
    scores = {name: judge(lists, judged.users) for name, lists in judged.lists.items()}
    good = scores[judged.served]
    whole = (judged.lists[judged.served] > 0).all(1)
    separated = {
        kind: separation(good[whole], judge(lists, judged.users[whole]))
        for kind, lists in planted.items()
    }
    clicks = click_agreement(scores, judged.hits, BootstrapConfig(num_resamples=1_000))
    biases = measure_biases(judge, judged.lists[judged.served], judged.users, good)
    return {
        "mean": {name: float(one.nanmean()) for name, one in scores.items()},
        "separates": separated,
        "clicks": None if clicks is None else clicks._asdict(),
        "shown": clicks is not None and clicks.low > LIKELY,
        "position_bias": biases.position,
        "length_bias": biases.length,
        "scores": torch.cat(list(scores.values())),
    }


def judge_lists(
    workspace: Path, *, k: int = 10, num_users: int = 1_000, seed: int = 0
) -> dict[str, Any]:
    """Judge a run's lists by every rubric, and write the document that a release gate reads."""
    judged = read_lists(workspace, k=k, num_users=num_users, seed=seed)
    if not len(judged.users):
        raise ValueError(f"{workspace} has no user with a held-out event of validation")
    lists = judged.lists[judged.served]
    whole = (lists > 0).all(1)
    generator = torch.Generator().manual_seed(seed)
    planted = planted_lists(lists[whole], judged.users[whole], judged.known, generator)
    found = {
        name: measured(partial(rubric, known=judged.known), judged, planted)
        for name, rubric in available_rubrics(judged.known).items()
    }
    scores = {name: one.pop("scores") for name, one in found.items()}
    document = {
        "num_users": len(judged.users),
        "k": k,
        "served": judged.served,
        "judges": found,
        "correlation": {
            one: {
                other: rank_correlation(scores[one], scores[other])
                for other in scores
                if other != one
            }
            for one in scores
        },
    }
    result: dict[str, Any] = finite(document)
    write_result(workspace, JUDGES, result)
    return result


def finite(value: Any) -> Any:
    """Replace NaN by None for JSON."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
