"""Made queries whose item is known, what a search finds for them, and in which order.

Each is of a user's held-out event: the item that the user took next is what they look for, and
their history up to then may say which of the items that fit it is.

Axes: Q queries, N item rows, K candidates of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.fitting.blend import ProfileBlend
from recsys.fitting.queries import EvaluationQueries
from recsys.models.text_search.search import SearchCandidates, TextSearch
from recsys.models.text_search.tokens import ItemText, Kind, MadeQuery, QueryMaker, split
from recsys.retrieval.sources import Source, lists_of, rank_by_all
from serving.items import ItemSearch, TitleIndex

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Judged:
    """Queries, by held-out event."""

    queries: EvaluationQueries
    """Those whose items are judged."""
    targets: tuple[int, ...]
    """Item row that each looks for."""
    made: tuple[MadeQuery, ...]

    @classmethod
    def of(
        cls,
        queries: EvaluationQueries,
        texts: Mapping[int, ItemText],
        seed: int,
        kind: Kind | None = None,
    ) -> Judged:
        """Make a query of each held-out item."""
        targets = queries.held_out.targets
        first = [int(targets.values[begin]) for begin in targets.offsets[:-1].tolist()]
        readable = {row for row, text in texts.items() if split(text.text)}
        kept = [place for place, row in enumerate(first) if row in readable]
        maker = QueryMaker(seed)
        made = tuple(maker.make(texts[first[place]], kind) for place in kept)
        held_out = queries.held_out.take(np.array(kept, np.int64))
        return cls(replace(queries, held_out=held_out), tuple(first[p] for p in kept), made)

    def __len__(self) -> int:
        return len(self.targets)

    def found(
        self, search: TextSearch, titles: TitleIndex, popularity: NDArray[np.float32]
    ) -> list[SearchCandidates]:
        """Search for each query's text."""
        finder = ItemSearch(titles, search, popularity, titles.title_of)
        found = [finder.find(one.text).candidates for one in self.made]
        return [one for one in found if one is not None]

    def as_typed(
        self, search: TextSearch, popularity: NDArray[np.float32]
    ) -> list[SearchCandidates]:
        """Search for each query's text without titles and corrections, as BM25 alone would."""
        return [search.candidates(one.text, (), popularity) for one in self.made]


def personal_orders(
    judged: Judged,
    found: Sequence[SearchCandidates],
    sources: Mapping[str, Source],
    blend: ProfileBlend,
    item_counts: torch.Tensor,
) -> list[Rows]:
    """Order the finds of each query by the blend of the user's own lists.

    Args:
        item_counts: Events of each item that the sources were fitted on, [N].
    """
    orders: list[Rows] = []
    queries = judged.queries
    wanted = set(blend.served.sources)
    for batch in queries.batches():
        allowed = torch.zeros_like(batch.allowed)
        for place, row in enumerate(batch.rows.tolist()):
            allowed[place, torch.from_numpy(found[row].item_rows)] = True
        lists = lists_of(rank_by_all(sources, batch.queries, allowed, queries.list_length))
        lists = {name: top for name, top in lists.items() if name in wanted}
        lengths = queries.history_lengths()[batch.rows]
        merged = blend.lists(lists, lengths, item_counts).item_rows.numpy()
        orders += [rows[rows > 0] for rows in merged]
    return orders
