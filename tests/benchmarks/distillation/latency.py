"""What one request takes of a teacher or a student of ``benchmark_retrievers.py``, as served.

Vectors of the catalogue are made before any request and laid out by columns, as a server does.
What a request takes does not depend on trained weights, so models are as large as those that were
trained, and not trained again; neighbours are counted, and blends weigh every source equally.

Axes: N item rows, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import TopK
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_to_item import ItemToItem
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.reproduction.generation import codes_of, generative_inputs
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.recipe import SOURCES
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.one import OneQueryBlend
from recsys.retrieval.blend.source_features import FEATURES
from recsys.semantic_ids.trie import Trie
from tests.benchmarks.harness import alternating_ms

LIST = 100
EVENTS = 20
SECONDS = 8.0

Request = Callable[[], Any]
Numbers = dict[str, Any]


class Timed:
    """Models of the sizes of a data set, each answering one request."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.recipe = prepared, prepared.recipe
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(1, prepared.num_item_rows, (EVENTS,), generator=generator)
        bounds = torch.tensor([0, EVENTS])
        features = {"history": Jagged(rows, bounds)}
        if prepared.order("given").times is not None:
            times = torch.arange(EVENTS) * 86_400 + 1_300_000_000
            features["history.times"] = Jagged(times, bounds)
        self.queries = JaggedBatch(features)
        self.counts = torch.ones(prepared.num_item_rows, dtype=torch.int64)

    def sequence(
        self, dim: int | None = None, members: int | None = None, k: int = LIST
    ) -> Request:
        config = self.recipe.sequence
        config = replace(
            config,
            embedding_dim=dim or config.embedding_dim,
            num_members=members or config.num_members,
        )
        prepared = self.prepared
        model = SequenceModel(config, prepared.sizes(), prepared.catalogue, self.counts).eval()
        columns = model.all_item_vectors().T.contiguous()  # [D, N]
        return lambda: (model.query_vectors(self.queries, only_last=True) @ columns).topk(k)

    def two_tower(self, dim: int | None = None, k: int = LIST) -> Request:
        config = self.recipe.two_tower
        config = replace(config, embedding_dim=dim or config.embedding_dim)
        prepared = self.prepared
        model = TwoTower(config, prepared.sizes(), prepared.catalogue, self.counts).eval()
        columns = model.all_item_vectors().T.contiguous()
        return lambda: (model.query_vectors(self.queries) @ columns).topk(k)

    def generative(self, k: int = LIST) -> Callable[[], TopK]:
        prepared, codes = self.prepared, codes_of(self.prepared)
        config, width = self.recipe.generative, self.recipe.sequence.embedding_dim
        reads_vectors = config.items == "codes_vectors"
        model = GenerativeModel(
            config,
            generative_inputs(prepared, codes, width if reads_vectors else 0),
            codes.codes,
            prepared.catalogue,
            self.counts,
            torch.randn(prepared.num_item_rows, width) if reads_vectors else None,
        ).eval()
        trie = Trie.of_items(codes)
        search = BeamSearch(
            model.decode_step,
            trie,
            beam_width=self.recipe.beam_width,
            semantic_ids_version="timed",
        )
        return lambda: search.lists(model.context(self.queries), k)

    @cached_property
    def _neighbours(self) -> ItemToItem:
        sequences = self.prepared.order("given")
        return ItemToItem.fit(
            np.asarray(sequences.item_rows),
            np.asarray(sequences.offsets[:-1]),
            np.asarray(sequences.train_end),
            self.prepared.num_item_rows,
            self.recipe.item_to_item,
        )

    def _source(self, name: str, k: int) -> Request:
        """Make a source of a blend, giving the scores and item rows of its list."""
        if name == "popularity":
            fixed = torch.rand(1, self.prepared.num_item_rows).topk(k)
            return lambda: fixed
        if name == "item_to_item":
            model = self._neighbours
            return lambda: model.score(self.queries).topk(k)
        if name == "content":
            content = self.prepared.catalogue.content
            similarity = ContentSimilarity(self.recipe.content, content)
            columns = similarity.vectors.T.contiguous()
            return lambda: (similarity.query_vectors(self.queries) @ columns).topk(k)
        make: dict[str, Callable[..., Request]] = {
            "sequence": self.sequence,
            "two_tower": self.two_tower,
            "generative": self.generative,
        }
        return make[name](k=k)

    def blend(self, which: str) -> Request:
        """Query every source and merge their lists."""
        k = self._num_candidates
        parts = self.recipe.parts(which)
        return self._merged({SOURCES.get(name, name): self._source(name, k) for name in parts})

    def beside_neighbours(self, dim: int | None, members: int | None) -> Request:
        """Query a sequence model and item-to-item and merge their lists."""
        k, name = self._num_candidates, "item_to_item"
        return self._merged(
            {"sequence": self.sequence(dim, members, k), name: self._source(name, k)}
        )

    @property
    def _num_candidates(self) -> int:
        return min(self.recipe.num_candidates, self.prepared.num_item_rows - 1)

    def _merged(self, sources: dict[str, Request]) -> Request:
        kinds = (len(self.recipe.blend.history_bounds) + 2, len(self.recipe.blend.item_bounds) + 2)
        weights = torch.ones(*kinds, len(sources), len(FEATURES))
        blend = LearnedBlend(self.recipe.blend, tuple(sources), weights, torch.ones(len(sources)))
        merging = OneQueryBlend(blend, self.counts)

        def request() -> object:
            lists = {name: TopK(*source()) for name, source in sources.items()}
            # What has no evidence is a hole.
            lists = {
                name: top._replace(item_rows=top.item_rows.masked_fill(top.scores.isinf(), -1))
                for name, top in lists.items()
            }
            return merging.merge(lists, EVENTS, LIST)

        return request

    def request(self, row: Numbers) -> Request:
        """Make what a row of numbers is of."""
        if "student" in row and row["student"] == "sequence":
            size = row["embedding_dim"], row["num_members"]
            return self.beside_neighbours(*size) if row["beside"] else self.sequence(*size)
        if "student" in row:
            return self.two_tower(row["embedding_dim"])
        if row["teacher"] == "generative":
            return self.generative()
        if row["teacher"] != "ensemble":
            return self.blend(row["teacher"])
        return self._ensemble(row["members"])

    def _ensemble(self, members: int) -> Request:
        """The mean of members' scores is the cosine of their vectors laid end to end."""
        prepared, config = self.prepared, self.recipe.sequence
        models = [
            SequenceModel(config, prepared.sizes(), prepared.catalogue, self.counts).eval()
            for _ in range(members)
        ]
        columns = torch.cat([one.all_item_vectors() for one in models], dim=1).T.contiguous()

        def request() -> object:
            parts = [one.query_vectors(self.queries, only_last=True) for one in models]
            vector: Tensor = torch.cat(parts, dim=1)
            return (vector @ columns).topk(LIST)

        return request


def kind_of(row: Numbers) -> str:
    """Name what decides a latency."""
    if "student" in row:
        return f"{row['student']} {row['embedding_dim']} {row['num_members']} {row['beside']}"
    return f"{row['teacher']} {row.get('members', 1)}"


@torch.inference_mode()
def median_ms(requests: dict[str, Request]) -> dict[str, float]:
    """Alternate the requests; the process's own milliseconds of each."""
    return alternating_ms(requests, seconds=SECONDS, clock=time.process_time)
