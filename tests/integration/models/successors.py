"""A retriever of another package, whole: what came next, most often, after the last item."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.dataset import FitSplit
from recsys.fitting.spec import Data, Fitted, ModelSpec, Start, counted
from recsys.models.names import ModelName


@dataclass(frozen=True, kw_only=True)
class SuccessorsConfig:
    """Settings of Successors."""

    smoothing: float = 0.0
    """Added to every count."""


class Successors:
    """Counts of the item that came next, [N, N]."""

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts

    def score(self, queries: JaggedBatch) -> Tensor:
        """Score every item for each query, [B, N]; -inf without a history or a count."""
        history = queries["history"]
        known = history.lengths() > 0
        last = torch.where(known, history.offsets[1:] - 1, 0)
        scores = self.counts[history.values[last] if len(history.values) else last]
        return scores.masked_fill((scores <= 0) | ~known[:, None], -torch.inf)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file({"counts": self.counts}, directory / "successors.safetensors")

    @classmethod
    def load(cls, directory: Path) -> Successors:
        return cls(load_file(directory / "successors.safetensors")["counts"])


def fit(
    config: SuccessorsConfig, data: Data, until: FitSplit, _: Start, /
) -> Fitted[Successors] | None:
    """Count pairs of consecutive events of a split."""
    sequences, num_rows = data.inputs.sequences, data.inputs.sizes.num_item_rows
    counts = torch.full((num_rows, num_rows), config.smoothing)
    ends = np.asarray(sequences.visible_end(until))
    for begin, end in zip(np.asarray(sequences.offsets[:-1]), ends, strict=True):
        rows = torch.from_numpy(np.array(sequences.item_rows[begin:end]))
        pairs = (rows[:-1], rows[1:])
        counts.index_put_(pairs, torch.ones(len(pairs[0])), accumulate=True)
    return counted(Successors(counts))


SPEC = ModelSpec(
    names=ModelName(
        name="successors",
        label="successors",
        meaning="what came next most often after the last item",
        reason="came next before",
        explanation="came next after the last item of others",
    ),
    config=SuccessorsConfig,
    fit=fit,
    load=lambda folder, _: Successors.load(folder),
)
NO_SPEC = 1
