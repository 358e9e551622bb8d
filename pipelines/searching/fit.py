"""Fit what a text search needs: words, and the weights of what is known of a find.

Queries are made of the texts of validation events' items. The item that a user took next is what
such a query looks for.

Axes: N item rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.engine.stage import StageContext
from pipelines.inputs.content_models import make_encoder
from pipelines.searching.logged import read_logged
from pipelines.searching.meanings import fit_meanings
from pipelines.searching.texts import MadeQuery, QueryMaker, item_texts, read_described, title_index
from recsys.data.threads import one_thread
from recsys.fitting.blend import ProfileBlend
from recsys.fitting.queries import EvaluationQueries, ModelInputs
from recsys.models.text_search.logged import Learned, fit_logged
from recsys.models.text_search.meaning import Meanings
from recsys.models.text_search.search import (
    MEANING,
    START,
    VALUES,
    SearchCandidates,
    TextSearch,
    fit_weights,
    scale_counts,
)
from recsys.models.text_search.tokens import ItemText, split
from recsys.models.text_search.words import WordIndex
from recsys.retrieval.sources import Source, lists_of, rank_by_all
from serving.items import ItemSearch, TitleIndex

Rows = NDArray[np.int64]
MAX_QUERIES = 500
MIN_QUERIES = 50
"""Below which the weights stay where they start."""


@dataclass(frozen=True)
class SearchQueries:
    """Queries, by held-out event."""

    queries: EvaluationQueries
    """Those whose items are judged."""
    targets: tuple[int, ...]
    """Item row that each looks for."""
    made: tuple[MadeQuery, ...]

    @classmethod
    def of(
        cls, queries: EvaluationQueries, texts: Mapping[int, ItemText], seed: int
    ) -> SearchQueries:
        """Make a query of each held-out item."""
        targets = queries.held_out.targets
        first = [int(targets.values[begin]) for begin in targets.offsets[:-1].tolist()]
        readable = {row for row, text in texts.items() if split(text.text)}
        kept = [place for place, row in enumerate(first) if row in readable]
        maker = QueryMaker(seed)
        made = tuple(maker.make(texts[first[place]]) for place in kept)
        held_out = queries.held_out.take(np.array(kept, np.int64))
        return cls(replace(queries, held_out=held_out), tuple(first[p] for p in kept), made)

    def __len__(self) -> int:
        return len(self.targets)

    def found(
        self, search: TextSearch, titles: TitleIndex, popularity: NDArray[np.float32]
    ) -> list[SearchCandidates]:
        """Search for each query's text."""
        finder = ItemSearch(titles, search, popularity)
        found = [finder.find(one.text).candidates for one in self.made]
        return [one for one in found if one is not None]


def personal_orders(
    judged: SearchQueries,
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


def fit_text_search(
    texts: Sequence[ItemText],
    queries: EvaluationQueries,
    sources: Mapping[str, Source],
    blend: ProfileBlend,
    item_counts: torch.Tensor,
    seed: int,
    meanings: Meanings | None = None,
) -> TextSearch | None:
    """Fit a search; None where no item has a text.

    Made queries have words of items, so they teach nothing of meanings, which count as much as
    words do.

    Args:
        item_counts: Events of each item on train, [N].
    """
    documents = [[], *(split(text.text) for text in texts)]
    if sum(map(bool, documents)) < 2:
        return None
    popularity = scale_counts(item_counts.numpy())
    search = TextSearch(WordIndex.of(documents), START)
    known = {text.item_row: text for text in texts}
    judged = SearchQueries.of(queries.sample(MAX_QUERIES, seed), known, seed)
    if len(judged) < MIN_QUERIES:
        return TextSearch(search.words, START, meanings)
    found = judged.found(search, title_index(texts, popularity), popularity)
    orders = personal_orders(judged, found, sources, blend, item_counts)
    features = [one.personal(order) for one, order in zip(found, orders, strict=True)]
    places = []
    for target, one in zip(judged.targets, found, strict=True):
        places.append(np.flatnonzero(one.item_rows == target)[:1].tolist())
    chosen = [row for row, place in enumerate(places) if place]
    weights = fit_weights([features[row] for row in chosen], [places[row][0] for row in chosen])
    weights[MEANING] = weights[VALUES] = weights[0]
    return TextSearch(search.words, weights, meanings)


def fit_search(
    context: StageContext,
    inputs: ModelInputs,
    queries: EvaluationQueries,
    sources: Mapping[str, Source],
    blend: ProfileBlend,
) -> tuple[TextSearch, Learned | None] | None:
    """Fit what finds items by a text, and learn from the log's queries; None if no item has one."""
    config = context.config
    folders = context.inputs["build_features"], context.inputs["enrich_items"]
    items, found = read_described(*folders)
    texts = item_texts(items, found)
    content = inputs.catalogue.content.numpy()
    encoder = make_encoder(config.content)
    most = config.search.meaning_words
    meanings = fit_meanings(texts, encoder, content, most)
    counts = inputs.item_counts("train")
    with one_thread():
        search = fit_text_search(texts, queries, sources, blend, counts, config.seed, meanings)
        if search is None:
            return None
        log = config.data.online_events
        rows = dict(items.select("item_id", "item_row").iter_rows())
        logged = read_logged(Path(log), rows, config.filters.online_types) if log else []
        if not logged:
            return search, None
        popularity = scale_counts(counts.numpy())
        finder = ItemSearch(title_index(texts, popularity), search, popularity)
        learned = fit_logged(search, lambda text: finder.find(text).candidates, logged)
    if learned is None:
        return search, None
    return TextSearch(search.words, learned.weights, search.meanings), learned
