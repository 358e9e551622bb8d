"""The ranker of a bundle: it reorders the first places of the blend of profile ``fast``.

    ranker/   config.json, ranker.safetensors      recsys/models/ranker/model.py
              learned_blend.json, .safetensors     merges the candidates, as in training
              ease.safetensors                     recsys/models/item_weights/ease.py
              behaviour.safetensors                a sequence model's item vectors, if there is one
              candidates.json                      how many places it reorders
              calibration.json                     calibration on validation, for people to read

A request is scored on its own, in tiles of one size, so an item's score has the same bits in a
batch. Where ranking fails or is late the reply keeps the blend's order and says so.

Axes: B queries, k list length, C candidates that are ranked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.top_k import OneList, TopK, all_finite, reranked_places
from recsys.kernels.one_query.ranker_op import RankingOfOne
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.model import Ranker
from recsys.retrieval.blend.candidate_features import (
    CandidateBuilder,
    OneQueryFeatures,
    blended_lists,
    feature_names,
)
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.one import MergedOne, demand_by_history
from recsys.retrieval.ranked import RankedItems
from serving.bundle.arrays import check_rows, reading
from serving.bundle.history_models import check_inputs, encode_items
from serving.bundle.manifest import BundleManifest, Profile

RANKER = "ranker"
PROFILE: Profile = "fast"
"""Profile whose candidates it learned to order."""
WEIGHTS = "ranker.safetensors"


class LateRankerError(Exception):
    """Ranking takes longer than a request can wait."""


@dataclass(frozen=True, kw_only=True)
class LoadedRanker:
    """A trained ranker with what builds its candidates."""

    model: Ranker
    builder: CandidateBuilder
    """Merges the same sources' lists as the bundle's blend does."""
    version: str = ""
    """First digits of the sha256 of its weights, in a bundle."""

    @classmethod
    def load(
        cls, directory: Path, catalogue: ItemCatalogue, history_features: Path | None = None
    ) -> LoadedRanker:
        """Read a ranker's directory; arguments as of ``CandidateBuilder.load``."""
        builder = CandidateBuilder.load(directory, catalogue, history_features)
        model = Ranker.load(directory, catalogue, backend="torch")
        return cls(model=in_one_tile(model, builder.num_candidates), builder=builder)

    def grown(self, items: ItemCatalogue) -> LoadedRanker:
        """Rank a catalogue with appended items."""
        features = self.builder.history_features.grown(items)
        builder = replace(self.builder, history_features=features)
        return replace(self, model=self.model.grown(items), builder=builder)

    def with_demand(self, demand: Tensor | None) -> LoadedRanker:
        """Merge candidates by the demand of items as of another moment, [N, D]."""
        blend = self.builder.blend.with_demand(demand)
        return replace(self, builder=replace(self.builder, blend=blend))

    def reranked(
        self, lists: Mapping[str, TopK], queries: JaggedBatch, item_counts: Tensor
    ) -> TopK:
        """Merge lists [B, k_s] of many queries and reorder their first places.

        Args:
            lists: By source, of those that the ranker's blend merges and maybe others.
            item_counts: Events of each item that the sources were fitted on, [N].

        Returns:
            Lists whose scores count down from 0: a ranker's scores and a blend's do not compare.
        """
        blend, history = self.builder.blend, queries["history"]
        merged = {name: lists[name] for name in blend.sources}
        length = sum(top.item_rows.shape[1] for top in merged.values())
        whole = blended_lists(blend, merged, history.lengths(), item_counts, length)
        candidates = self.builder.candidates(merged, history, item_counts)
        scores = self.model.score_lists(candidates, queries)
        rows = whole.item_rows.gather(1, reranked_places(scores, whole.item_rows.shape[1]))
        places = -torch.arange(rows.shape[1], dtype=torch.float32).expand(len(rows), -1)
        return TopK(places.masked_fill(rows < 1, -torch.inf), rows)


def in_one_tile(model: Ranker, num_candidates: int) -> Ranker:
    """Score a request's candidates in one tile that is no longer than they are.

    Bits depend on a tile's size, so serving and evaluation both do this.
    """
    rows = min(model.config.tile_rows, -(-num_candidates // 32) * 32)
    model.config = replace(model.config, tile_rows=rows)
    return model


def load_ranker(
    directory: Path,
    manifest: BundleManifest,
    items: ItemCatalogue,
    blends: Mapping[Profile, LearnedBlend],
    demand: Callable[[], Tensor | None],
) -> LoadedRanker | None:
    """Load a bundle's ranker over a catalogue that may have grown; None without.

    Args:
        manifest: Of the bundle as it was released, before any delta.
        demand: Measures items' demand by all events of the bundle, [N, D], for a blend that reads
            it.
    """
    if RANKER not in manifest.models:
        return None
    path = directory / RANKER
    if PROFILE not in blends:
        raise ValueError(
            f"{path} reorders the blend of profile {PROFILE} and the bundle has none; release them "
            "together"
        )
    with reading(path):
        builder = CandidateBuilder.load(path, items)
    sources = builder.blend.sources
    if set(sources) != set(blends[PROFILE].sources):
        raise ValueError(
            f"{path} merges {sorted(sources)}, the bundle's blend of profile {PROFILE} "
            f"{sorted(blends[PROFILE].sources)}; release them together"
        )
    features = {
        "user_features": manifest.user_features,
        "context_features": manifest.context_features,
        "candidate_dense": list(feature_names(sources)),
    }
    check_inputs(path / "config.json", manifest, items.content.shape[1], features)
    with reading(path), torch.no_grad():
        model = in_one_tile(Ranker.load(path, items, backend="torch"), builder.num_candidates)
        encode_items(model)
    check_rows(path, (model.num_item_rows,), (len(items.content),))
    digest = manifest.files[f"{RANKER}/{WEIGHTS}"].sha256
    ranker = LoadedRanker(model=model, builder=builder, version=digest[:12])
    return ranker if builder.blend.demand is None else ranker.with_demand(demand())


class CandidateRanker:
    """Ranks the candidates of one request at a time."""

    def __init__(self, ranker: LoadedRanker, timeout_ms: float | None = None) -> None:
        """Prepare a bundle's ranker for requests.

        Args:
            timeout_ms: How long ranking may take; None is as long as it takes. Checked before the
                network runs over the candidates, which takes about a millisecond.
        """
        self._ranker = ranker
        self._ranking: RankingOfOne | None = None
        self._prepared: tuple[Tensor, OneQueryFeatures] | None = None
        self._timeout_seconds = float("inf") if timeout_ms is None else timeout_ms / 1_000

    @property
    def version(self) -> str:
        return self._ranker.version

    def ranked(
        self,
        lists: Mapping[str, OneList],
        history: Tensor,
        features: Mapping[str, int],
        item_counts: Tensor,
        k: int,
    ) -> RankedItems:
        """Merge lists and reorder their first places; the rest follows as it was.

        Args:
            lists: Of the sources that its blend merges.
            history: Item rows that the sources read, oldest first.
            features: Row of each ``user.<name>`` and ``context.<name>``.
            item_counts: Events of each item that models were fitted on.
            k: Length of the list.

        Returns:
            At most k items, with each source's contribution to the blend. Scores are the ranker's;
            items after the ranked places have the lowest of those.

        Raises:
            LateRankerError: It does not finish in time.
            ValueError: A candidate's feature or score is not finite.
        """
        deadline = time.perf_counter() + self._timeout_seconds
        model, num_ranked = self._ranker.model, self._ranker.builder.num_candidates
        prepared = self._features(item_counts)
        if time.perf_counter() > deadline:
            raise LateRankerError
        if (one := self._in_one_call(prepared, lists, history, features, k)) is not None:
            return one
        found = prepared.candidates(lists, history, num_ranked, k)
        merged, dense = found.merged, found.features
        rows = torch.from_numpy(merged.item_rows[: len(dense)])
        with torch.no_grad():
            reader = model.reader_of_one(history, features)
        if time.perf_counter() > deadline:
            raise LateRankerError
        scores = model.score_candidates(reader, rows, dense)
        if not all_finite(ranked := scores.numpy()):
            raise ValueError("a score of the ranker is not finite")
        return RankedItems.of_merged(reranked(merged, ranked, k), tuple(lists))

    def _in_one_call(
        self,
        prepared: OneQueryFeatures,
        lists: Mapping[str, OneList],
        history: Tensor,
        features: Mapping[str, int],
        k: int,
    ) -> RankedItems | None:
        """Rank by one compiled function; None if it does not run, or a score is not finite."""
        compiled, blend = self._ranker.model.compiled_of_one(features), prepared.blend
        if compiled is None or blend.compiled is None:
            return None
        network, tasks, fields = compiled
        whole = (blend.compiled, prepared.compiled, network, tasks)
        if self._ranking is None or self._ranking.parts != whole:
            self._ranking = RankingOfOne(*whole, self._ranker.builder.num_candidates)
        chosen = [blend.sources.index(name) for name in lists]
        demand = demand_by_history(len(history))
        found = self._ranking.rank(list(lists.values()), chosen, demand, history, fields, k)
        if found is None:
            return None
        rows, scores, ranks, contributions = found
        return RankedItems(rows, scores, tuple(lists), ranks, contributions)

    def _features(self, item_counts: Tensor) -> OneQueryFeatures:
        """Prepare what requests share, once for each tensor of counts."""
        if self._prepared is None or self._prepared[0] is not item_counts:
            builder = self._ranker.builder
            features = OneQueryFeatures(builder.blend, item_counts, builder.history_features)
            self._prepared = (item_counts, features)
        return self._prepared[1]


def reranked(merged: MergedOne, scores: NDArray[np.float32], k: int) -> MergedOne:
    """Reorder the first places of a list by new scores [C], and cut it to k items.

    Items after those places have the lowest of the new scores.
    """
    places = np.argsort(-scores, kind="stable")[:k]
    ranked = scores.take(places)
    if len(places) < min(k, len(merged.item_rows)):
        after = np.arange(len(scores), min(k, len(merged.item_rows)))
        places = np.concatenate([places, after])
        ranked = np.append(ranked, np.repeat(ranked[-1:], len(after)))
    parts: list[Any] = [part.take(places, 0) for part in merged]
    return MergedOne(*parts)._replace(scores=ranked)
