"""Sources of candidates: each ranks the items that a query may be shown.

Models have one name everywhere (folders, rows of metrics); a source has its model's name in a blend
and in serving, but for popularity, which is ``popular`` there.

Axes: B queries of a batch, N item rows, F width of item vectors, k list length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import NO_ROW, TopK, select_top_k
from recsys.models.generative.model import GenerativeModel
from recsys.retrieval.beam_search import BeamSearch, check_scores
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.trie import Trie

ContextT = TypeVar("ContextT")
ContextT_co = TypeVar("ContextT_co", covariant=True)
StateT = TypeVar("StateT")
Score = Callable[[JaggedBatch], Tensor]

MODELS = (
    "popularity",
    "item_to_item",
    "ease",
    "item_knn",
    "repeats",
    "next_basket",
    "content",
    "two_tower",
    "sequence",
    "ensemble",
    "generative",
)
"""Retrieval models, in the order of their rows in a table. Where a sequence model has
``fast_members``, these are ``sequence`` and all of its members are ``ensemble``."""
REPEATING = ("repeats", "next_basket")
"""Models for lists that may hold the history."""
ITEM_WEIGHTS = ("item_to_item", "ease", "item_knn", *REPEATING)
"""Models that are one table of weights between items, ``recsys.models.item_weights``."""
SLOW_MODELS = ("ensemble", "generative")
"""Left out of profile ``fast``."""


def source_name(model: str) -> str:
    """Name the source of a model, as blends and serving do."""
    return "popular" if model == "popularity" else model


class Ranking(NamedTuple):
    """What a source returns for a batch of queries."""

    lists: TopK
    """The best items that each query may be shown, [B, k]."""
    scores: Tensor | None
    """Of every item, shown or not, [B, N]; None where a source knows nothing beyond its lists."""


class Source(Protocol):
    """Ranks items for a batch of queries."""

    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        """Rank; lists are empty for queries that the source knows nothing of.

        Args:
            queries: On the device of the source's model.
            allowed: Items that each query may be shown, [B, N] bool.
            k: The same for fitting a blend, for measuring and for serving, because a blend counts
                scores from a list's last place.
        """
        ...


class ScoredSource:
    """A model that scores the whole catalogue."""

    def __init__(
        self,
        score: Score,
        *,
        needs_history: bool = True,
        item_vectors: Callable[[], Tensor] | None = None,
    ) -> None:
        """Take a model's ``score``: [B, N], -inf for what it knows nothing of.

        Args:
            needs_history: Whether lists are empty for queries without a history.
            item_vectors: Returns the model's vectors of all items, [N, F], where a ranker reads
                them.
        """
        self._score = score
        self._needs_history = needs_history
        self._item_vectors = item_vectors

    @torch.no_grad()
    def item_vectors(self) -> Tensor | None:
        """Return the model's vectors of all items, [N, F]; None where no ranker reads them."""
        return None if self._item_vectors is None else self._item_vectors().detach().cpu()

    @torch.no_grad()
    def scores(self, queries: JaggedBatch, allowed: Tensor) -> Tensor:
        """Score the catalogue that ``allowed`` covers, [B, N] float32."""
        if len(allowed) != queries.batch_size:
            raise ValueError(
                f"{len(allowed)} item masks for {queries.batch_size} queries; give one for each"
            )
        scores = self._score(queries).float()
        missing = allowed.shape[1] - scores.shape[1]
        if missing < 0:
            raise ValueError(
                f"the item mask covers {allowed.shape[1]} item rows, the catalogue has "
                f"{scores.shape[1]}; build the mask from the same bundle"
            )
        # A model from before the catalogue grew knows nothing of what was appended.
        return functional.pad(scores, (0, missing), value=-torch.inf) if missing else scores

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        scores = self.scores(queries, allowed)
        lists = select_top_k(eligible_scores(scores, allowed), k)
        return Ranking(with_history(lists, queries) if self._needs_history else lists, scores)


class Generator(Protocol[ContextT_co]):
    """A model that generates semantic IDs; its ``decode_step`` is in the beam search."""

    def context(self, queries: JaggedBatch) -> ContextT_co:
        """Encode histories as what all beams of a query share."""
        ...


class GeneratedSource(Generic[ContextT, StateT]):
    """Items whose semantic IDs a generative model finds most probable."""

    def __init__(
        self, model: Generator[ContextT], beam_search: BeamSearch[ContextT, StateT]
    ) -> None:
        self._model = model
        self._beam_search = beam_search

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        trie = self._beam_search.trie
        if allowed.shape[1] < trie.num_item_rows:
            raise ValueError(
                f"the item mask has {allowed.shape[1]} item rows, the trie {trie.num_item_rows}; "
                "build both from the same catalogue"
            )
        context, restriction = self._model.context(queries), trie.restrict_rows(allowed)
        lists = check_scores(self._beam_search.lists(context, k, restriction))
        return Ranking(with_history(lists, queries), None)


def generated_source(model: GenerativeModel, item_codes: ItemCodes, beam_width: int) -> Source:
    """Search a model's semantic IDs on its device.

    Raises:
        ValueError: If the model was trained for another version of the IDs.
    """
    trie = Trie.of_items(item_codes).to(next(model.parameters()).device)
    search = BeamSearch(
        model.decode_step,
        trie,
        beam_width=beam_width,
        semantic_ids_version=model.inputs.semantic_ids,
    )
    return GeneratedSource(model, search)


def rank_by_all(
    sources: Mapping[str, Source], queries: JaggedBatch, allowed: Tensor, k: int
) -> dict[str, Ranking]:
    """Rank by every source, by model."""
    return {model: source(queries, allowed, k) for model, source in sources.items()}


def lists_of(rankings: Mapping[str, Ranking]) -> dict[str, TopK]:
    """Take the lists, by source."""
    return {source_name(model): ranking.lists for model, ranking in rankings.items()}


def behaviour_vectors(sources: Mapping[str, Source]) -> Tensor | None:
    """Return the sequence model's vectors of all items, [N, F]; None without one."""
    source = sources.get("sequence")
    return source.item_vectors() if isinstance(source, ScoredSource) else None


def allowed_items(
    seen: Jagged | None, num_queries: int, num_item_rows: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Allow each query every item that it has not seen, [B, N] bool; row 0 is no item."""
    allowed = torch.ones(num_queries, num_item_rows, dtype=torch.bool, device=device)
    if seen is not None:
        allowed[seen.segments(), seen.values] = False
    allowed[:, 0] = False
    return allowed


def eligible_scores(scores: Tensor, allowed: Tensor) -> Tensor:
    """Write -inf over what may not be shown, [B, N]."""
    return scores.masked_fill(~allowed, -torch.inf)


def with_history(found: TopK, queries: JaggedBatch) -> TopK:
    """Empty the lists of queries without a history."""
    empty = (queries["history"].lengths() == 0)[:, None]
    return TopK(
        found.scores.masked_fill(empty, -torch.inf), found.item_rows.masked_fill(empty, NO_ROW)
    )


def lists_of_rows(top: TopK, rows: Tensor) -> TopK:
    """Take the lists of some queries."""
    return TopK(top.scores[rows], top.item_rows[rows])


def joined_lists(parts: list[TopK]) -> TopK:
    """Put the lists of consecutive queries below each other."""
    return TopK(
        torch.cat([part.scores for part in parts]), torch.cat([part.item_rows for part in parts])
    )
