"""Items whose semantic IDs a generative model generates, as a source.

Axes: B queries of a batch, N item rows, k list length.
"""

from __future__ import annotations

import time
from collections import Counter
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.kernels.choice import is_on
from recsys.layers.codes.decoder import Beams, Decoded
from recsys.models.generative.model import BeamState, GenerativeContext, GenerativeModel
from recsys.retrieval.beam_search import BeamSearch, CapturedSearch, check_scores
from recsys.retrieval.sources import LateError, Ranking, Source, with_history
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.trie import Trie

ContextT = TypeVar("ContextT")
ContextT_co = TypeVar("ContextT_co", covariant=True)
StateT = TypeVar("StateT")

CAPTURED_UP_TO = 64
"""Queries of a batch up to which launches, not the work, take the time of a beam search."""
CAPTURED_FROM = 3
"""Searches of one shape, of which the last is captured."""
MAX_CAPTURED = 8
"""Shapes that are captured, each with memory of its own."""


class Generator(Protocol[ContextT_co]):
    """A model that generates semantic IDs; its ``decode_step`` is in the beam search."""

    def context(self, queries: JaggedBatch) -> ContextT_co:
        """Encode histories as what all beams of a query share."""
        ...


class GeneratedSource(Source, Generic[ContextT, StateT]):
    """Items whose semantic IDs a generative model finds most probable.

    On a GPU searches of a shape that comes often are captured, each as one CUDA graph. A graph
    reads the weights in place: a model that is trained on or loaded in place stays valid.
    """

    def __init__(
        self, model: Generator[ContextT], beam_search: BeamSearch[ContextT, StateT]
    ) -> None:
        self._model = model
        self._beam_search = beam_search
        self._calls: Counter[tuple[int, ...]] = Counter()
        self._captured: dict[tuple[int, ...], CapturedSearch[Any, StateT]] = {}
        self._one_at_a_time = Lock()

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        trie = self._beam_search.trie
        if allowed.shape[1] < trie.num_item_rows:
            raise ValueError(
                f"the item mask has {allowed.shape[1]} item rows, the trie {trie.num_item_rows}; "
                "build both from the same catalogue"
            )
        context, allowed = self._model.context(queries), allowed[:, : trie.num_item_rows]
        captured = self._captured_for(context, k) if len(allowed) <= CAPTURED_UP_TO else None
        if captured is None:
            lists = self._beam_search.lists(context, k, trie.restrict_rows(allowed))
        else:
            with self._one_at_a_time:
                lists = captured.lists(context, allowed)
        return Ranking(with_history(check_scores(lists), queries), None)

    def _captured_for(self, context: Any, k: int) -> CapturedSearch[Any, StateT] | None:
        """Find or capture the search of a context's shape; None where it is not worth it."""
        if not (self._beam_search.trie.device.type == "cuda" and is_on("captured_search")):
            return None
        if not (isinstance(context, tuple) and all(isinstance(one, Tensor) for one in context)):
            return None
        key = (k, *(size for part in context for size in part.shape))
        with self._one_at_a_time:
            self._calls[key] += 1
            if self._calls[key] == CAPTURED_FROM and len(self._captured) < MAX_CAPTURED:
                own = type(context)(*(part.clone() for part in context))
                search: Any = self._beam_search
                self._captured[key] = CapturedSearch(search, own, k)
        return self._captured.get(key)


def generated_source(model: GenerativeModel, item_codes: ItemCodes, beam_width: int) -> Source:
    """Search a model's semantic IDs on its device."""
    trie = Trie.of_items(item_codes).to(next(model.parameters()).device)
    search = BeamSearch(
        model.decode_step,
        trie,
        beam_width=beam_width,
        semantic_ids_version=model.inputs.semantic_ids,
    )
    return GeneratedSource(model, search)


class _Timed(NamedTuple):
    """A context with the moment by which the search has to be done."""

    context: GenerativeContext
    deadline: float


class _TimedModel:
    """A generative model that gives up when a request's time is over."""

    def __init__(self, model: GenerativeModel, timeout_ms: float | None) -> None:
        self._model = model
        self._timeout_seconds = float("inf") if timeout_ms is None else timeout_ms / 1_000

    def context(self, queries: JaggedBatch) -> _Timed:
        """Read the history, once for all beams."""
        deadline = time.perf_counter() + self._timeout_seconds
        return _Timed(self._model.context(queries), deadline)

    def decode_step(self, timed: _Timed, beams: Beams[BeamState] | None, /) -> Decoded[BeamState]:
        if time.perf_counter() > timed.deadline:
            raise LateError
        return self._model.decode_step(timed.context, beams)


def timed_source(
    model: GenerativeModel, trie: Trie, beam_width: int, timeout_ms: float | None
) -> Source:
    """Search a model's semantic IDs for a limited time.

    Args:
        trie: Of IDs whose version was compared with the model's.
        timeout_ms: How long a search may take; None is as long as it takes. Looked at before each
            level, so a search ends at most a level's time later.
    """
    timed = _TimedModel(model, timeout_ms)
    search = BeamSearch(
        timed.decode_step, trie, beam_width=beam_width, semantic_ids_version=trie.version
    )
    return GeneratedSource(timed, search)
