"""The generative model with its beam as a source."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipelines.candidates.blends import dense
from pipelines.candidates.sources import Answer
from recsys.data.batch import JaggedBatch
from recsys.data.item_mask import ItemMask
from recsys.data.top_k import TopK
from recsys.models.generative.model import GenerativeModel
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.blend.source_lists import GeneratedItems
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.trie import Trie
from serving.surfaces import HOME


class GeneratedSource:
    """What the beam finds, as serving asks for it; other items have no score."""

    def __init__(self, model: GenerativeModel, codes: ItemCodes) -> None:
        self._device = next(model.parameters()).device
        self._num_item_rows = len(codes.codes)
        search = BeamSearch(
            model.decode_step,
            Trie.of_items(codes).to(self._device),
            beam_width=HOME.beam_width,
            semantic_ids_version=model.inputs.semantic_ids,
        )
        self._items = GeneratedItems(model, search)

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, masks: Sequence[ItemMask], k: int) -> Answer:
        found = self._items(queries.to(self._device), masks, k)
        top = TopK(found.scores.cpu(), found.item_rows.cpu())
        return Answer(dense(top, self._num_item_rows), top)
