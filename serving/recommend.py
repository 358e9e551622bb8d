"""One request, answered: hydrate, filter, retrieve, rank, select.

`Recommender.answer` is the only way a list is made: HTTP, batch scoring and the parity check all
call it, one query at a time, so equal requests get equal scores to the last bit.

Axes: k list length, S sources.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from recsys.data.item_mask import ItemMask
from recsys.retrieval.blend import ABSENT, CONSTANT, Blended, reciprocal_rank_fusion
from serving.bundle import Bundle, load_bundle
from serving.explain import reasons
from serving.filters import eligible_items
from serving.query import Query, hydrate
from serving.schemas import Context, RecommendedItem, Reply, Request, ServedBy, Source
from serving.sources import sources_of
from serving.surfaces import SURFACES, Surface

if TYPE_CHECKING:
    import polars as pl


class _Stopwatch:
    """Milliseconds by stage."""

    def __init__(self) -> None:
        self._started = self._lap = time.perf_counter()
        self.timings_ms: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        passed = time.perf_counter()
        self.timings_ms[stage] = round(1_000 * (passed - self._lap), 3)
        self._lap = passed

    def total(self) -> dict[str, float]:
        total = round(1_000 * (time.perf_counter() - self._started), 3)
        return {**self.timings_ms, "total": total}


class Recommender:
    """Answers requests from one loaded bundle; safe to share between threads."""

    def __init__(self, bundle: Bundle, surfaces: Mapping[str, Surface] = SURFACES) -> None:
        self.bundle = bundle
        self._surfaces = surfaces
        self._sources = sources_of(bundle)
        self._served_by = ServedBy(
            bundle=bundle.version,
            index=_index_name(bundle),
            semantic_ids=bundle.semantic_ids.version if bundle.semantic_ids else None,
        )

    @classmethod
    def load(cls, path: str | Path) -> Recommender:
        """Verify and load ``bundle-<version>`` or ``current``.

        Raises:
            ValueError: If it is not a bundle, or anything in it is not as it was released.
        """
        return cls(load_bundle(Path(path)))

    def answer(self, request: Request, *, names_history: bool = True) -> Reply:
        """Make one list.

        Args:
            names_history: Whether a reason may name items of the user's stored history.

        Raises:
            UnknownItemError: If surface ``similar`` is asked about an item that is not there.
        """
        surface, clock = self._surfaces[request.surface], _Stopwatch()
        with torch.inference_mode():
            query = hydrate(request, self.bundle, surface)
            clock.lap("hydrate")
            eligible, given_up = eligible_items(query, self.bundle)
            clock.lap("filter")
            names = ("popular",) if given_up else tuple(surface.weights)
            candidates = self._retrieve(names, query, eligible)
            clock.lap("retrieve")
            ranked = _rank(candidates, surface.weights, request.k)
            clock.lap("rank")
            items = self._select(ranked, query, names_history)
            clock.lap("select")
        return Reply(
            request_id=uuid.uuid4().hex,
            items=items,
            served_by=self._served_by,
            degraded=[*query.degraded, *given_up, *_shortage(items, request.k)],
            fallback="popular" if set(candidates) == {"popular"} else None,
            timings_ms=clock.total(),
        )

    def recommend(
        self, users: pl.DataFrame | Sequence[str], k: int = 20, unix_time: int | None = None
    ) -> pl.DataFrame:
        """Make a list for each user; the same lists and scores as over HTTP.

        Args:
            users: User ids, or a frame with a column ``user_id``.
            k: List length.
            unix_time: Answer as of this second, by default now.

        Returns:
            Columns user_id, rank (from 1), item_id, display_text, score, source, semantic_id
            (null where the item has none).

        Raises:
            ValueError: If there is no such column, or k is out of range.
        """
        import polars as pl

        rows: list[tuple[str, int, str, str, float, str, str | None]] = []
        context = Context(unix_time=unix_time)
        texts, row_of = self.bundle.catalogue.display_texts, self.bundle.catalogue.row_of
        for user_id in _user_ids(users):
            request = Request(user_id=user_id, k=k, context=context)
            for rank, item in enumerate(self.answer(request).items, start=1):
                text = texts[row_of(item.item_id) or 0]
                rows.append(
                    (user_id, rank, item.item_id, text, item.score, item.source, item.semantic_id)
                )
        schema = {
            "user_id": pl.String,
            "rank": pl.Int64,
            "item_id": pl.String,
            "display_text": pl.String,
            "score": pl.Float64,
            "source": pl.String,
            "semantic_id": pl.String,
        }
        return pl.DataFrame(rows, schema=schema, orient="row")

    def _retrieve(
        self, names: Sequence[str], query: Query, eligible: ItemMask
    ) -> dict[str, Tensor]:
        """Ask sources, [1, k_s] each; absent ones and those with nothing to say are left out."""
        wanted = max(query.request.k, query.surface.num_candidates)
        k = max(1, min(wanted, eligible.count()))
        lists: dict[str, Tensor] = {}
        for name in names:
            if (source := self._sources.get(name)) is None:
                continue
            rows = source.candidates(query, eligible, k)
            if rows is not None and bool((rows > 0).any()):
                lists[name] = rows
        return lists

    def _select(
        self, ranked: Blended | None, query: Query, names_history: bool
    ) -> list[RecommendedItem]:
        """Name the items of a ranked list and what brought each there."""
        if ranked is None:
            return []
        rows = [row for row in ranked.item_rows[0].tolist() if row > 0]
        scores, ranks = ranked.scores[0].tolist(), ranked.source_ranks[0].tolist()
        weights = query.surface.weights
        sources = [_leading_source(ranked.sources, ranks[i], weights) for i in range(len(rows))]
        why: Sequence[str | None] = [None] * len(rows)
        if query.request.explain:
            why = reasons(rows, sources, query, self.bundle, names_history=names_history)
        item_ids, semantic_ids = self.bundle.catalogue.item_ids, self.bundle.semantic_ids
        codes = [None] * len(rows) if semantic_ids is None else semantic_ids.texts(rows)
        return [
            RecommendedItem(item_ids[row], score, source, reason, semantic_id)
            for row, score, source, reason, semantic_id in zip(
                rows, scores, sources, why, codes, strict=False
            )
        ]


def _rank(candidates: Mapping[str, Tensor], weights: Mapping[str, float], k: int) -> Blended | None:
    """Merge the sources' lists by reciprocal rank; a fallback that is alone counts in full."""
    if not candidates:
        return None
    used = {name: weights[name] for name in candidates}
    if not any(used.values()):
        used = dict.fromkeys(used, 1.0)
    return reciprocal_rank_fusion(candidates, k, used)


def _leading_source(
    sources: Sequence[str], ranks: Sequence[int], weights: Mapping[str, float]
) -> Source:
    """Name the source that contributed most to an item; the surface's order settles ties."""
    present = [(name, rank) for name, rank in zip(sources, ranks, strict=True) if rank != ABSENT]
    name, _ = max(present, key=lambda pair: weights[pair[0]] / (CONSTANT + pair[1]))
    return cast(Source, name)


def _shortage(items: Sequence[RecommendedItem], k: int) -> list[str]:
    return [] if len(items) == k else [f"short_list: {len(items)} of {k}"]


def _index_name(bundle: Bundle) -> str | None:
    if bundle.retriever is None:
        return None
    index = bundle.retriever.index
    return f"{index.kind}-{index.num_item_rows - 1}x{index.dim}"


def _user_ids(users: pl.DataFrame | Sequence[str]) -> list[str]:
    columns = getattr(users, "columns", None)
    if columns is None:
        return list(cast(Sequence[str], users))
    if "user_id" not in columns:
        raise ValueError(f"users needs a column user_id, it has {list(columns)}; rename one")
    user_ids = cast("pl.DataFrame", users)["user_id"]
    if user_ids.null_count():
        row = user_ids.is_null().arg_max()
        raise ValueError(f"user_id of row {row} is null; drop such rows, or fill them with any id")
    return [str(user_id) for user_id in user_ids.to_list()]
