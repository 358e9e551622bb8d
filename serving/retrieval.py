"""Query the sources for candidates, and rank what they found into one list.

A source or ranker that fails or is late takes nothing from a list but what it would have added; the
reply says so.

Axes: k list length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from logging import WARNING
from typing import NamedTuple

from recsys.data.top_k import ItemMask, OneList, all_finite
from recsys.models.names import CONTENT
from recsys.retrieval.blend.one import OneQueryBlend
from recsys.retrieval.ranked import FILLER, RankedItems, by_reciprocal_rank, with_new_items
from recsys.retrieval.sources import LateError, lists_together
from serving.bundle.adapters import Adapters
from serving.bundle.load import Bundle
from serving.bundle.ranker import PROFILE, CandidateRanker, LateRankerError
from serving.items import Searched
from serving.log import is_logged, log
from serving.query import Query
from serving.schemas import Degraded, DegradedCode
from serving.settings import ServingOptions
from serving.sources import sources_of
from serving.surfaces import SEARCH, Surface

Lists = dict[str, OneList]
"""Candidates by source."""


class Candidates(NamedTuple):
    """Candidates of the sources for one query."""

    lists: Lists
    """Lists by source; those without candidates are left out."""
    blend: OneQueryBlend | None
    """Learned weights that merge the lists; None merges by reciprocal rank."""
    missing: list[Degraded]
    """A note on each source that was late or failed."""
    were_sought: bool
    """False if no source was queried, since no item may be shown."""


class Retrieval:
    """The sources, blends and ranker of one bundle; safe to share between threads."""

    def __init__(self, bundle: Bundle, options: ServingOptions, adapters: Adapters) -> None:
        self._bundle = bundle
        self.failures: Counter[str] = Counter()
        """Times that each source or stage failed."""
        self._blends = {
            name: OneQueryBlend(blend, bundle.item_counts) for name, blend in bundle.blends.items()
        }
        self._blend = self._blends.get(options.profile)
        learned_content = self._blend is not None and CONTENT.name in self._blend.sources
        self.sources = sources_of(bundle, options, adapters, learned_content=learned_content)
        self._ranker: CandidateRanker | None = None
        if bundle.ranker is not None and options.profile == PROFILE:
            self._ranker = CandidateRanker(bundle.ranker, options.ranker_timeout_ms)

    def retrieve(
        self, query: Query, mask: ItemMask, searched: Searched | None, *, relaxed: bool
    ) -> Candidates:
        """Find the candidates of a list.

        Args:
            mask: Items that the list may show.
            searched: What the request's text found; None without a text.
            relaxed: Whether the list shows the history, because nothing else is left.
        """
        blend = self._blend if query.surface.learned and not relaxed else None
        if not mask.count():
            return Candidates({}, blend, [], False)
        lengths = self._list_lengths(query, blend, relaxed)
        lists, missing = self.query_sources(lengths, query, mask)
        if searched is not None:
            lists = _with_search(searched, lists, blend, query, mask)
        if missing and blend is not None:
            # The weights that were learned without the slow source.
            blend = self._blends.get("fast", blend)
        return Candidates(lists, blend, missing, bool(lengths or lists))

    def query_sources(
        self, lengths: Mapping[str, int], query: Query, eligible: ItemMask
    ) -> tuple[dict[str, OneList], list[Degraded]]:
        """Query the sources; those without candidates are left out.

        Returns:
            Lists by source, and a note on each source that was late or failed.
        """
        longest = max(1, eligible.count())
        lists: dict[str, OneList] = {}
        missing: list[Degraded] = []
        together = lists_together(self.sources, lengths, query, eligible)
        for name, length in lengths.items():
            if (found := together.get(name)) is not None:
                if len(found.item_rows):
                    lists[name] = found
                continue
            if (source := self.sources.get(name)) is None:
                continue
            try:
                found = source.one(query, eligible, min(length, longest))
                if found is not None and not all_finite(found.scores):
                    raise ValueError(f"scores of source {name} are not finite")
            except LateError:
                missing.append(Degraded("late_source", name))
                continue
            except Exception:
                # Whatever went wrong, the other sources can be served.
                missing.append(self._failed("failed_source", name))
                continue
            if found is not None and len(found.item_rows):
                lists[name] = found
        return lists, missing

    def _failed(self, code: DegradedCode, part: str) -> Degraded:
        """Note and count a failed part; the log has its first failure, then every 2nd, 4th, 8th."""
        self.failures[part] += 1
        times = self.failures[part]
        if is_logged(times):
            fields = {"part": part, "times": times, "bundle": self._bundle.version}
            log(code, fields, level=WARNING, failed=True)
        return Degraded(code, part)

    def _list_lengths(
        self, query: Query, blend: OneQueryBlend | None, relaxed: bool
    ) -> dict[str, int]:
        """Decide how many items to request from each source."""
        surface = query.surface
        longest = max(query.request.k, surface.num_candidates)
        if relaxed:
            return {FILLER: longest}
        if blend is None:
            return dict.fromkeys(self._weights(surface), longest)
        # A blend counts scores from a list's last place: its lists do not grow with the request.
        return {**dict.fromkeys(blend.sources, surface.num_candidates), FILLER: longest}

    def _weights(self, surface: Surface) -> Mapping[str, float]:
        """Return the weights of a surface's fusion; 1 for models of other packages if learned."""
        if not surface.learned or surface.kind == SEARCH:
            return surface.weights
        return {**surface.weights, **dict.fromkeys(self._bundle.outside, 1.0)}

    def rank(
        self, found: Candidates, query: Query, k: int
    ) -> tuple[RankedItems | None, str | None, list[Degraded]]:
        """Merge lists into one of k items.

        Returns:
            The list, the version of the ranker that ordered it, and a note where the ranker failed.
        """
        if not found.lists:
            return None, None, []
        share, num_seen = query.surface.max_seen_share, len(query.seen)
        if share >= 1 or not num_seen:
            return self._merge(found, query, k)
        ranked, ranker, notes = self._merge(found, query, k + num_seen)
        return with_new_items(ranked, query.seen, k, share), ranker, notes

    def _merge(
        self, found: Candidates, query: Query, k: int
    ) -> tuple[RankedItems, str | None, list[Degraded]]:
        """Merge lists without a limit on seen items; at least one has an item."""
        lists, blend, length = found.lists, found.blend, query.surface.num_candidates
        blended = {
            name: lists[name].first(length)
            for name in (blend.sources if blend is not None else ())
            if name in lists
        }
        if blend is None or not blended or lists.keys() == {FILLER}:
            return by_reciprocal_rank(lists, self._weights(query.surface), k), None, []
        read, num_events = blend.read(blended, query.history, query.times, query.moment, k)
        # A ranker learns from people who come back, no visit or absence (a length below 0).
        ranked, ranker, notes = None, None, list[Degraded]()
        if num_events >= 0:
            ranked, ranker, notes = self._by_ranker(blended, query, k)
        if ranked is None:
            merged = blend.merge(read, num_events, k)
            ranked = RankedItems.of_merged(merged, tuple(blended))
        return ranked, ranker, notes

    def _by_ranker(
        self, blended: Mapping[str, OneList], query: Query, k: int
    ) -> tuple[RankedItems | None, str | None, list[Degraded]]:
        """Order the list by the ranker; None where there is none, or it failed."""
        if self._ranker is None:
            return None, None, []
        try:
            counts = self._bundle.item_counts
            history = query.positive.history_tensor
            found = self._ranker.ranked(blended, history, query.categorical, counts, k)
        except LateRankerError:
            return None, None, [Degraded("late_stage", "ranker")]
        except Exception:
            # Whatever went wrong, the blend's order can be served.
            return None, None, [self._failed("failed_stage", "ranker")]
        return found, self._ranker.version, []


def _with_search(
    searched: Searched,
    lists: dict[str, OneList],
    blend: OneQueryBlend | None,
    query: Query,
    eligible: ItemMask,
) -> dict[str, OneList]:
    """Rank search hits; on learned surfaces blend in the user's own list."""
    if blend is None:
        return {**lists, SEARCH: searched.listed(eligible)}
    own = {name: lists[name] for name in blend.sources if name in lists}
    if not query.has_history or not own or searched.candidates is None:
        return {SEARCH: searched.listed(eligible)}
    merged = blend.merge(own, len(query.history), len(searched.item_rows))
    return {SEARCH: searched.listed(eligible, merged.item_rows)}
