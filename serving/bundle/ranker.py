"""The ranker of a bundle: it orders the first places of what the blend of profile ``fast`` found.

    ranker/   config.json, ranker.safetensors      recsys/models/ranker/model.py
              learned_blend.json, .safetensors     merges the candidates, as when it learned
              ease.safetensors             recsys/models/ease.py
              behaviour.safetensors                a sequence model's item vectors, where it has one
              candidates.json                      how many places it orders
              calibration.json                     what its probabilities are worth, to be read

One request is scored at a time, in tiles of one size, so an item's score has the same bits in a
batch. What cannot be ranked, or not in time, keeps the blend's order, and the reply says so.

Axes: k list length, C candidates that are ranked, S sources.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import TopK
from recsys.models.adapted.ranker import AdaptedRanker
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import RankingBatch
from recsys.models.ranker.model import Ranker
from recsys.retrieval.blend.candidate_features import number_names
from recsys.retrieval.blend.candidate_features_one import OneQueryFeatures
from recsys.retrieval.blend.history_features import HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.one import MergedOne
from serving.bundle.arrays import reading
from serving.bundle.manifest import BundleManifest, Profile
from serving.bundle.model_files import check_inputs, check_rows, encode_items

RANKER = "ranker"
PROFILE: Profile = "fast"
"""Whose candidates it learned to order."""
CANDIDATES = "candidates.json"
WEIGHTS = "ranker.safetensors"


class LateRankerError(Exception):
    """Ranking takes longer than a request can wait."""


@dataclass(frozen=True, kw_only=True)
class RankerPart:
    """A loaded ranker."""

    model: Ranker
    blend: LearnedBlend
    """Merges the same sources' lists as the bundle's blend does."""
    against_history: HistoryFeatures
    num_candidates: int
    version: str
    """First digits of the sha256 of its weights."""


def load_ranker(
    directory: Path,
    manifest: BundleManifest,
    items: ItemCatalogue,
    blends: Mapping[Profile, LearnedBlend],
) -> RankerPart | None:
    """Load the ranker over a catalogue that may have grown; None without.

    Args:
        manifest: Of the bundle as it was released, before any delta.

    Raises:
        ValueError: There is no blend to rank for, it reads other numbers than the blend gives, or
            another part does not fit.
    """
    if RANKER not in manifest.models:
        return None
    path = directory / RANKER
    if PROFILE not in blends:
        raise ValueError(
            f"{path} orders what the blend of profile {PROFILE} finds and the bundle has none; "
            "release them together"
        )
    blend = LearnedBlend.load(path)
    if set(blend.sources) != set(blends[PROFILE].sources):
        raise ValueError(
            f"{path} merges {sorted(blend.sources)}, the bundle's blend of profile {PROFILE} "
            f"{sorted(blends[PROFILE].sources)}; release them together"
        )
    features = {
        "user_features": manifest.user_features,
        "context_features": manifest.context_features,
        "candidate_dense": list(number_names(blend.sources)),
    }
    check_inputs(path / "config.json", manifest, items.content.shape[1], features)
    with reading(path / CANDIDATES):
        num_candidates = json.loads((path / CANDIDATES).read_text())["num_candidates"]
        if not (isinstance(num_candidates, int) and num_candidates >= 1):
            raise ValueError(f"num_candidates must be a whole number >= 1, got {num_candidates!r}")
    with reading(path), torch.no_grad():
        model = Ranker.load(path, items, backend="torch")
        against_history = HistoryFeatures.load(path, items)
        encode_items(model)
    check_rows(path, (model.num_item_rows,), (len(items.content),))
    digest = manifest.files[f"{RANKER}/{WEIGHTS}"].sha256
    return RankerPart(
        model=model,
        blend=blend,
        against_history=against_history,
        num_candidates=num_candidates,
        version=digest[:12],
    )


class CandidateRanker:
    """Orders one query's candidates."""

    def __init__(
        self,
        part: RankerPart,
        timeout_ms: float | None = None,
        adapted: AdaptedRanker | None = None,
    ) -> None:
        """Take a loaded ranker.

        Args:
            adapted: A twin of it with the adapters of some domains.
            timeout_ms: How long ranking may take; None is as long as it takes. Looked at before the
                network runs over the candidates, which takes about a millisecond.
        """
        self._part, self._adapted = part, adapted
        self._laid_out: tuple[Tensor, OneQueryFeatures] | None = None
        self._timeout_seconds = float("inf") if timeout_ms is None else timeout_ms / 1_000

    @property
    def version(self) -> str:
        return self._part.version

    def ranked(
        self,
        lists: Mapping[str, TopK],
        features: JaggedBatch,
        item_counts: Tensor,
        k: int,
        domain: str | None = None,
    ) -> MergedOne:
        """Merge lists [1, k_s] and order their first places; the rest follows as it was.

        Args:
            features: Of the query, as models read them.
            item_counts: Events of each item that models were fitted on.
            domain: Whose adapter judges; the base where it has none.

        Returns:
            At most k items, with what each source added as the blend tells it. Scores are the
            ranker's; what follows the ranked places has the lowest of those.

        Raises:
            LateRankerError: It does not finish in the time it has.
            ValueError: A number of a candidate, or a score, is not finite.
        """
        deadline = time.perf_counter() + self._timeout_seconds
        num_ranked, part = self._part.num_candidates, self._part
        found = self._numbers(item_counts).candidates(
            lists, features["history"].values, max(k, num_ranked)
        )
        merged, count = found.merged, min(num_ranked, len(found.merged.item_rows))
        rows, numbers = torch.from_numpy(merged.item_rows[:count]), found.numbers[:count]
        batch = RankingBatch(features, Jagged(rows, torch.tensor([0, count])), None, numbers)
        if not bool(numbers.isfinite().all()):
            raise ValueError("a number of a candidate is not finite")
        reader = part.model.reader_of(batch, 0)
        if time.perf_counter() > deadline:
            raise LateRankerError
        if self._adapted is not None and self._adapted.knows(domain):
            scores = self._adapted.score_candidates(reader, rows, numbers, domain)
        else:
            scores = part.model.score_candidates(reader, rows, numbers)
        if not bool(scores.isfinite().all()):
            raise ValueError("a score of the ranker is not finite")
        return reordered(merged, scores.numpy(), k)

    def _numbers(self, item_counts: Tensor) -> OneQueryFeatures:
        """Lay out what requests share, once for counts."""
        if self._laid_out is None or self._laid_out[0] is not item_counts:
            part = self._part
            numbers = OneQueryFeatures(part.blend, item_counts, part.against_history)
            self._laid_out = (item_counts, numbers)
        return self._laid_out[1]


def reordered(merged: MergedOne, scores: NDArray[np.float32], k: int) -> MergedOne:
    """Put the first places in the order of new scores [C], and cut the list to k.

    Among equals the order stays. What follows has the lowest of the new scores.
    """
    order = np.argsort(-scores, kind="stable")
    length = len(merged.item_rows)
    places = np.concatenate([order, np.arange(len(order), length)])[:k]
    ranked = scores[order]
    behind = np.repeat(ranked[-1:], length - len(order))
    new = np.concatenate([ranked, behind])[:k]
    taken = MergedOne(*(part[places] for part in merged))
    return taken._replace(scores=new)
