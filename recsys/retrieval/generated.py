"""Items whose semantic IDs a generative model generates, as a source.

Axes: B queries of a batch, N item rows, k list length.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.layers.codes.decoder import Beams, Decoded
from recsys.models.generative.model import BeamState, GenerativeContext, GenerativeModel
from recsys.retrieval.beam_search import BeamSearch, check_scores
from recsys.retrieval.sources import LateError, Ranking, Source, with_history
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.trie import Trie


class _Timed(NamedTuple):
    """Histories with the moment by which their search has to be done."""

    context: GenerativeContext
    deadline: float


class GeneratedSource(Source):
    """Items whose semantic IDs a generative model finds most probable."""

    def __init__(
        self, model: GenerativeModel, trie: Trie, beam_width: int, timeout_ms: float | None = None
    ) -> None:
        """Search a model's semantic IDs, for a limited time.

        Args:
            trie: Of the IDs that the model was trained on, and those appended since, on its device.
            timeout_ms: How long a search may take; None is as long as it takes. Looked at before
                each level, so a search ends at most a level's time later.
        """
        self._model = model
        self._timeout_seconds = float("inf") if timeout_ms is None else timeout_ms / 1_000
        self._beam_search = BeamSearch(self._decode_step, trie, beam_width=beam_width)

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        trie = self._beam_search.trie
        if allowed.shape[1] < trie.num_item_rows:
            raise ValueError(
                f"the item mask has {allowed.shape[1]} item rows, the trie {trie.num_item_rows}; "
                "build both from the same catalogue"
            )
        deadline = time.perf_counter() + self._timeout_seconds
        timed = _Timed(self._model.context(queries), deadline)
        restriction = trie.restrict_rows(allowed[:, : trie.num_item_rows])
        lists = self._beam_search.lists(timed, k, restriction)
        return Ranking(with_history(check_scores(lists), queries), None)

    def _decode_step(self, timed: _Timed, beams: Beams[BeamState] | None, /) -> Decoded[BeamState]:
        if time.perf_counter() > timed.deadline:
            raise LateError
        return self._model.decode_step(timed.context, beams)


def generated_source(model: GenerativeModel, item_codes: ItemCodes, beam_width: int) -> Source:
    """Search a model's semantic IDs on its device."""
    model.inputs.check_version(item_codes.version)
    trie = Trie.of_items(item_codes).to(next(model.parameters()).device)
    return GeneratedSource(model, trie, beam_width)
