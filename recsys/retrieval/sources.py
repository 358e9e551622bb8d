"""Sources of candidates: each ranks the items that a query may be shown.

Models and their sources are named in `recsys.models.names`.

Axes: B queries of a batch, N item rows, F width of item vectors, k list length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, one_example
from recsys.data.dataset import PastEvents
from recsys.data.top_k import NO_ROW, ItemMask, OneList, TopK, best_of_one, no_items, select_top_k
from recsys.kernels.one_query.op import Step, list_of_one, lists_of_one, nearest, ranked_step
from recsys.models.item_weights.model import ItemWeights
from recsys.models.names import SEQUENCE


class VectorIndex(Protocol):
    """Item vectors that are searched by inner product; many threads may search."""

    @property
    def dim(self) -> int: ...

    @property
    def num_item_rows(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def search(self, queries: Tensor, k: int, mask: ItemMask | None = None) -> TopK:
        """Find the k best items of each query [B, D] among those the mask allows, [B, k]."""
        ...

    def search_one(self, query: Tensor, k: int, mask: ItemMask) -> OneList:
        """Find the k best items of one query [D], which is on the host.

        Its product rounds otherwise than a batch's, so items whose scores differ by no more than
        rounding may be in another order.
        """
        ...


Rows = NDArray[np.int64]
Score = Callable[[JaggedBatch], Tensor]

MAX_HIDDEN = 2_048
"""Items that some queries of a batch may be shown and others not; with more each is searched for by
itself."""


class Ranking(NamedTuple):
    """Reply of a source to a batch of queries."""

    lists: TopK
    """The best items that each query may be shown, [B, k]."""
    scores: Tensor | None
    """Score of every item, shown or not, [B, N]; None if a source has its lists alone."""


@dataclass(kw_only=True)
class SourceQuery:
    """One query as sources read it, on the host; a frozen one would take 4 us longer to make."""

    history: Rows
    """Item rows that models read, oldest first, [M]."""
    times: Rows | None = None
    """Unix seconds of these events, if the data has times, [M]."""
    types: Rows | None = None
    """Rows of their types, if the data has several, [M]."""
    categorical: Mapping[str, int] = field(default_factory=dict)
    """Row of each ``user.<name>`` and ``context.<name>``, and of the ``user`` itself."""
    item_row: int = 0
    """Item to find similar items for; it is then the whole history. 0 for none."""
    negative_types: Rows | None = None
    """Rows of the types of negative events; None if there are none."""

    @property
    def domain(self) -> str | None:
        """Domain whose adapters are used, or None."""
        return None

    @property
    def has_history(self) -> bool:
        return len(self.history) > 0

    def where(self, kept: NDArray[np.bool_]) -> Self:
        """Let models read some events of the history alone, [M]."""
        history, times, types = PastEvents(self.history, self.times, self.types).take(kept)
        return replace(self, history=history, times=times, types=types)

    def without(self, item_rows: Rows) -> Self:
        """Hide items from the models; lists still leave them out as seen."""
        return self.where(~np.isin(self.history, item_rows)) if len(item_rows) else self

    @cached_property
    def positive(self) -> Self:
        """The query without negative events, for models that read no types."""
        if self.types is None or self.negative_types is None:
            return self
        return self.where(~np.isin(self.types, self.negative_types))

    @cached_property
    def history_tensor(self) -> Tensor:
        """The history for models, [M]."""
        return torch.from_numpy(self.history)

    @cached_property
    def event_tensors(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The history for models with its times and types, [M] each."""
        times = None if self.times is None else torch.from_numpy(self.times)
        types = None if self.types is None else torch.from_numpy(self.types)
        return self.history_tensor, times, types

    @cached_property
    def features(self) -> JaggedBatch:
        """The query as a batch of one."""
        names = ("history", "history.times", "history.types")
        events = zip(names, self.event_tensors, strict=True)
        found = {name: one_example(values) for name, values in events if values is not None}
        for name, row in self.categorical.items():
            found[name] = one_example(torch.tensor([row]))
        return JaggedBatch(found)


class Source(Protocol):
    """Ranks items for queries: for a batch as in training and evaluation, for one as in serving.

    Both forms give the same lists, up to rounding. A source that inherits from this class defines
    the batch; it defines `one` only if that makes requests measurably faster.
    """

    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        """Rank; lists are empty for queries that the source knows nothing of."""
        ...

    def one(self, query: SourceQuery, mask: ItemMask, k: int) -> OneList | None:
        """Rank for one query on the host; None if the source knows nothing of it."""
        if query.item_row or not query.has_history:
            return None
        return OneList.of(self(query.features, mask.as_bool()[None], k).lists)

    def step(self, query: SourceQuery) -> Step | None:
        """Return what `one` does as a step of one compiled call; None if it is more than that."""
        return None

    def item_vectors(self) -> Tensor | None:
        """Return the model's vectors of all items on the host, [N, F]; None if it has none."""
        return None


class LateError(Exception):
    """A source takes longer than a request can wait."""


class ScoredSource(Source):
    """A model that scores the whole catalogue."""

    def __init__(
        self,
        score: Score,
        *,
        needs_history: bool = True,
        item_vectors: Callable[[], Tensor] | None = None,
        list_one: Callable[[SourceQuery, ItemMask, int], OneList] | None = None,
        encode_one: Callable[[SourceQuery], Tensor] | None = None,
        step_one: Callable[[SourceQuery], Step | None] | None = None,
    ) -> None:
        """Take a model's ``score``: [B, N], -inf for what it knows nothing of.

        Args:
            item_vectors: Returns the model's vectors of all items, [N, F], where a ranker reads
                them.
            list_one: A faster way to rank for one query with a history.
            encode_one: Encodes one query as a vector whose products with those of the items are
                their scores, [F].
            step_one: Makes the step of a query with a history; see `Source.step`.
        """
        self._score, self._list_one, self._encode_one = score, list_one, encode_one
        self._step_one = step_one
        self._needs_history = needs_history
        self._item_vectors = item_vectors

    @torch.no_grad()
    def item_vectors(self) -> Tensor | None:
        return None if self._item_vectors is None else self._item_vectors().detach().cpu()

    @cached_property
    def _kept_vectors(self) -> Tensor:
        vectors = self.item_vectors()
        assert vectors is not None
        return vectors.contiguous()

    @torch.no_grad()
    def scores(self, queries: JaggedBatch, allowed: Tensor) -> Tensor:
        """Score the catalogue that ``allowed`` covers, [B, N] float32."""
        scores = self._score(queries).float()
        missing = allowed.shape[1] - scores.shape[1]
        if missing < 0:
            raise ValueError(
                f"the item mask covers {allowed.shape[1]} item rows, the catalogue has "
                f"{scores.shape[1]}; build the mask from the same bundle"
            )
        # A model from before the catalogue grew knows nothing of the appended items.
        return functional.pad(scores, (0, missing), value=-torch.inf) if missing else scores

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        scores = self.scores(queries, allowed)
        lists = select_top_k(eligible_scores(scores, allowed), k)
        return Ranking(with_history(lists, queries) if self._needs_history else lists, scores)

    def one(self, query: SourceQuery, mask: ItemMask, k: int) -> OneList | None:
        if self._needs_history and (query.item_row or not query.has_history):
            return None
        if self._list_one is not None:
            return self._list_one(query, mask, k)
        if self._encode_one is None:
            return OneList.of(self(query.features, mask.as_bool()[None], k).lists)
        vector = self._encode_one(query)
        if (found := nearest(self._kept_vectors, vector, mask, k)) is not None:
            return found
        scores = torch.mv(self._kept_vectors, vector)
        mask.blank(scores.numpy())
        return best_of_one(scores, k)

    def step(self, query: SourceQuery) -> Step | None:
        if self._step_one is None or query.item_row or not query.has_history:
            return None
        return self._step_one(query)


class IndexedSource(Source):
    """Nearest items to the vector of a query: lists alone, without a score for every item."""

    def __init__(
        self,
        encode: Callable[[JaggedBatch], Tensor],
        index: Callable[[], VectorIndex],
        *,
        item_vectors: Callable[[], Tensor] | None = None,
        encode_one: Callable[[SourceQuery], Tensor] | None = None,
        item_vector: Callable[[int], Tensor] | None = None,
        step_one: Callable[[SourceQuery], Step | None] | None = None,
    ) -> None:
        """Take a model's query tower and what builds the index of its item vectors.

        Args:
            encode: Encodes queries, [B, D]; zeros where nothing is known of one.
            encode_one: A faster ``encode`` of one query, [D].
            item_vector: Returns an item's vector, [D], if queries for an item are answered by it.
            step_one: Makes the step of a query with a history; see `Source.step`.
        """
        self._step_one = step_one
        self._encode, self._build = encode, index
        self._encode_one, self._item_vector = encode_one, item_vector
        self._item_vectors = item_vectors

    @cached_property
    def index(self) -> VectorIndex:
        """The index, built when it is first needed."""
        return self._build()

    @torch.no_grad()
    def item_vectors(self) -> Tensor | None:
        return None if self._item_vectors is None else self._item_vectors().detach().cpu()

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        vectors, index = self._encode(queries), self.index
        if allowed.shape[1] < index.num_item_rows:
            raise ValueError(
                f"the item mask covers {allowed.shape[1]} item rows, the index has "
                f"{index.num_item_rows}; build the mask from the same bundle"
            )
        allowed = allowed[:, : index.num_item_rows]
        shared, counts = shared_mask(allowed)
        if len(counts) == 0 or shared.count() - int(counts.min()) <= MAX_HIDDEN:
            lists = self._searched(vectors, allowed, k, shared, counts)
        else:
            parts = [
                self._searched(vectors[[place]], one, k, *shared_mask(one))
                for place, one in enumerate(torch.split(allowed, 1))
            ]
            lists = joined_lists(parts)
        return Ranking(with_history(lists, queries), None)

    def one(self, query: SourceQuery, mask: ItemMask, k: int) -> OneList | None:
        if query.item_row and self._item_vector is not None:
            vector = self._item_vector(query.item_row)
        elif query.item_row or not query.has_history:
            return None
        elif self._encode_one is None:
            vector = self._encode(query.features)[0]
        else:
            vector = self._encode_one(query)
        found = self.index.search_one(vector, k, mask)
        if np.count_nonzero(found.scores) == len(found.scores):
            return found
        # An item without a vector has score 0, and is no more like the query than any other.
        there = found.scores != 0
        return OneList(found.scores[there], found.item_rows[there])

    def step(self, query: SourceQuery) -> Step | None:
        if self._step_one is None or query.item_row or not query.has_history:
            return None
        return self._step_one(query)

    def _searched(
        self, vectors: Tensor, allowed: Tensor, k: int, shared: ItemMask, counts: Rows
    ) -> TopK:
        """Search for queries [B, D] that may be shown nearly the same items, [B, N]."""
        # The index takes one mask for all, so as many more are found as a query may not be shown.
        hidden = shared.count() - int(counts.min()) if len(counts) else 0
        everything = shared.count() == shared.num_item_rows - 1
        found = self.index.search(vectors, k + hidden, None if everything else shared)
        scores, rows = (part.to(allowed.device) for part in found)
        # An item without a vector has score 0, and is no more like the query than any other.
        shown = (rows > 0) & (scores != 0) & allowed.gather(1, rows.clamp_min(0))
        shown &= vectors.any(1, keepdim=True)
        return first_shown(TopK(scores, rows), shown, k)


class WeightsSource(Source):
    """Items by their weights from those of the history: work by its length, not by the catalogue's.

    The lists are those of a `ScoredSource`; no item has a score beyond them.
    """

    def __init__(self, model: ItemWeights) -> None:
        self._model = model

    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        return one_by_one(self, queries, allowed, k)

    def one(self, query: SourceQuery, mask: ItemMask, k: int) -> OneList | None:
        if (step := self.step(query)) is None:
            return None
        if (found := list_of_one(step, mask, k)) is not None:
            return found
        scores = eligible_scores(self._model.score(query.features), mask.as_bool()[None])
        return OneList.of(select_top_k(scores, k))

    def step(self, query: SourceQuery) -> Step | None:
        return self._model.of_one.step(query.history_tensor) if query.has_history else None


class PopularSource(Source):
    """The same items for every query, best first, less those that it may not be shown."""

    def __init__(self, item_scores: Tensor) -> None:
        """Take the score of each item row, [N]; row 0 is no item."""
        scores, rows = item_scores.sort(descending=True, stable=True)
        self._ranked = OneList(scores.numpy(), rows.numpy())
        self._step = ranked_step(self._ranked)

    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        return one_by_one(self, queries, allowed, k)

    def one(self, query: SourceQuery, mask: ItemMask, k: int) -> OneList:
        if (found := list_of_one(self._step, mask, k)) is not None:
            return found
        scores, rows = self._ranked
        places = np.flatnonzero(mask.allows(rows))[:k]
        return OneList(scores[places], rows[places])

    def step(self, query: SourceQuery) -> Step:
        return self._step


class PositiveSource(Source):
    """A source whose model reads no types, and so no negative events."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def item_vectors(self) -> Tensor | None:
        return self._source.item_vectors()

    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        return self._source(queries.positive, allowed, k)

    def one(self, query: SourceQuery, mask: ItemMask, k: int) -> OneList | None:
        return self._source.one(query.positive, mask, k)

    def step(self, query: SourceQuery) -> Step | None:
        return self._source.step(query.positive)


class DeviceSource(Source):
    """A source whose model is on a device, for callers on the host."""

    def __init__(self, source: Source, device: torch.device) -> None:
        self._source, self._device = source, device

    def item_vectors(self) -> Tensor | None:
        return self._source.item_vectors()

    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        lists, scores = self._source(queries.to(self._device), allowed.to(self._device), k)
        on_host = TopK(*(part.cpu() for part in lists))
        return Ranking(on_host, None if scores is None else scores.cpu())


def one_by_one(source: Source, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
    """Rank a batch by a source's form for one query; the source has to read histories alone."""
    histories = queries["history"].to("cpu")
    lists = no_items(len(allowed), k)
    parts = torch.split(histories.values, histories.lengths().tolist())
    for place, (history, own) in enumerate(zip(parts, allowed.cpu(), strict=True)):
        query = SourceQuery(history=history.numpy())
        if (found := source.one(query, ItemMask(own.numpy()), k)) is not None:
            lists.scores[place, : len(found.scores)] = torch.from_numpy(found.scores)
            lists.item_rows[place, : len(found.scores)] = torch.from_numpy(found.item_rows)
    return Ranking(TopK(*(part.to(allowed.device) for part in lists)), None)


def rank_by_all(
    sources: Mapping[str, Source], queries: JaggedBatch, allowed: Tensor, k: int
) -> dict[str, Ranking]:
    """Rank by every source, by model."""
    return {model: source(queries, allowed, k) for model, source in sources.items()}


def lists_of(rankings: Mapping[str, Ranking]) -> dict[str, TopK]:
    """Take the lists, by source."""
    return {model: ranking.lists for model, ranking in rankings.items()}


def behaviour_vectors(sources: Mapping[str, Source]) -> Tensor | None:
    """Return the sequence model's vectors of all items, [N, F]; None without one."""
    source = sources.get(SEQUENCE.name)
    return None if source is None else source.item_vectors()


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


def shared_mask(allowed: Tensor) -> tuple[ItemMask, Rows]:
    """Allow what any query may be shown, and count what each may, [B, N] bool."""
    if allowed.is_cuda:
        return ItemMask(allowed.any(0).cpu().numpy()), allowed.sum(1).cpu().numpy()
    rows = allowed.numpy()
    # A tenth of the time of torch's sums, which count in 64 bits.
    counts = np.array([np.count_nonzero(one) for one in rows], np.int64)
    return ItemMask(np.logical_or.reduce(rows, axis=0)), counts


def first_shown(found: TopK, shown: Tensor, k: int) -> TopK:
    """Keep the first k of each list that are shown, [B, L] bool; shorter lists end in no row."""
    place = shown.cumsum(1) - 1
    kept = shown & (place < k)
    lists = no_items(len(shown), k, shown.device)
    query, column = kept.nonzero(as_tuple=True)
    lists.scores[query, place[query, column]] = found.scores[query, column]
    lists.item_rows[query, place[query, column]] = found.item_rows[query, column]
    return lists


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
    return TopK(*(torch.cat(part) for part in zip(*parts, strict=True)))


def lists_together(
    sources: Mapping[str, Source], lengths: Mapping[str, int], query: SourceQuery, mask: ItemMask
) -> dict[str, OneList]:
    """Make the lists of all sources that one compiled call can query, as far as it can."""
    longest = max(1, mask.count())
    steps: dict[str, tuple[Step, int]] = {}
    for name, length in lengths.items():
        try:
            step = sources[name].step(query)
        except Exception:
            # Whatever it is, the source itself will raise it.
            continue
        if step is not None:
            steps[name] = (step, min(length, longest))
    found = zip(steps, lists_of_one(list(steps.values()), mask), strict=True)
    return {name: own for name, own in found if own is not None}
