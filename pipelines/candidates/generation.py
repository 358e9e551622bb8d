"""Generation by semantic ID: the codes of every item row, and a model with its beam as a source.

Axes: B queries, N item rows, L levels, k list length.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipelines.candidates.blends import dense
from pipelines.candidates.sources import Answer
from pipelines.semantic_ids.artefact import ID_ROWS, ORDERS, read_version
from recsys.data.batch import JaggedBatch
from recsys.data.item_mask import ItemMask
from recsys.data.top_k import TopK
from recsys.models.generative.model import GenerativeModel
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.blend.source_lists import GeneratedItems
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.quality import invalid_share
from recsys.semantic_ids.trie import Trie
from serving.surfaces import HOME


class ItemCodes(NamedTuple):
    """Semantic IDs by item row."""

    codes: Tensor
    """[N, L] int64, -1 where an item has none."""
    level_sizes: tuple[int, ...]
    version: str

    @classmethod
    def load(cls, artefact: Path, order: str | None = None) -> ItemCodes:
        """Read the artefact of build_semantic_ids.

        Args:
            order: Of tied times that is measured; None and the released order have the published
                IDs.

        Raises:
            ValueError: There are no semantic IDs.
        """
        made = read_version(artefact)
        if made is None:
            raise ValueError(
                "there are no semantic IDs to generate: no item has content, or "
                'semantic_ids.method = "none". Give items text, or set '
                "generative_training.enabled = false"
            )
        if order is not None and (artefact / ORDERS / order).exists():
            own = SemanticIds.load(artefact / ORDERS / order)
            return cls(own.codes.long(), tuple(own.level_sizes), own.version)
        id_rows = np.load(artefact / ID_ROWS, allow_pickle=False)
        codes = made.ids.codes[torch.from_numpy(id_rows)].long()
        return cls(codes, tuple(made.ids.level_sizes), made.ids.version)

    def invalid_rate(self, item_rows: Tensor) -> float:
        """Say what share of generated items [B, k] is no item with an ID; 0 where none is there."""
        return invalid_share(item_rows, self.codes) or 0.0

    def trie(self, device: torch.device | str = "cpu") -> Trie:
        """Build the tree of the IDs there are."""
        trie = Trie.of_item_codes(self.codes, self.level_sizes, version=self.version)
        return trie.to(device)


class GeneratedSource:
    """What the beam finds, as serving asks for it; other items have no score."""

    def __init__(self, model: GenerativeModel, codes: ItemCodes) -> None:
        self._device = next(model.parameters()).device
        self._num_item_rows = len(codes.codes)
        search = BeamSearch(
            model.decode_step,
            codes.trie(self._device),
            beam_width=HOME.beam_width,
            semantic_ids_version=model.inputs.semantic_ids,
        )
        self._items = GeneratedItems(model, search)

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, masks: Sequence[ItemMask], k: int) -> Answer:
        found = self._items(queries.to(self._device), masks, k)
        top = TopK(found.scores.cpu(), found.item_rows.cpu())
        return Answer(dense(top, self._num_item_rows), top)
