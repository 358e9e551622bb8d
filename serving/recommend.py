"""Answer one request: hydrate, filter, retrieve, rank, select.

`Recommender.make` is the only way a list is made: HTTP, batch scoring and the parity check all
call it, one query at a time, so equal requests get equal scores to the last bit.

Axes: k list length.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.item_mask import ItemMask
from recsys.data.top_k import OneList
from recsys.models.names import CONTENT
from recsys.retrieval.blend.one import OneQueryBlend
from recsys.retrieval.sources import LateError
from serving.arrangement import Arranged, Arranger
from serving.bundle.adapters import NO_ADAPTERS, Adapters, load_adapters, models_of
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import Profile
from serving.bundle.published import permitted, served_adapters
from serving.bundle.ranker import PROFILE, CandidateRanker, LateRankerError
from serving.configuration.file import ServingConfiguration, read_configuration
from serving.configuration.resolve import Resolved, Resolver
from serving.cursor import read_cursor
from serving.exclusions import Eligible, Exclusions
from serving.frames import frame, user_ids
from serving.items import ItemCards, ItemSearch, Searched, TitleIndex
from serving.live import LiveState, Opener
from serving.log import is_logged, log
from serving.online.records import new_request_id, read_seed, record_document, time_of
from serving.online.store import Visitor
from serving.query import NOTHING, Query, fitted, hydrate
from serving.ranking import FILLER, RankedItems, by_reciprocal_rank, with_new_items
from serving.reasons import reasons
from serving.schemas import (
    Assigned,
    Context,
    Degraded,
    DegradedCode,
    RecommendedItem,
    Reply,
    Request,
    ServedBy,
)
from serving.settings import ServingOptions
from serving.snapshot import build_snapshot, is_kept
from serving.sources import sources_of
from serving.surfaces import SEARCH, Surface

if TYPE_CHECKING:
    import polars as pl

Rows = NDArray[np.int64]


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


class Made(NamedTuple):
    """A list, and what it was made from."""

    reply: Reply
    query: Query
    visitor: Visitor
    eligible: Eligible
    candidates: Mapping[str, OneList]
    """Lists by source."""
    ranked: RankedItems | None
    resolved: Resolved
    arranged: Arranged
    seed: int


class Recommender:
    """Answers requests from one loaded bundle; safe to share between threads."""

    def __init__(
        self,
        bundle: Bundle,
        options: ServingOptions | None = None,
        *,
        adapters: Adapters = NO_ADAPTERS,
        configuration: ServingConfiguration | None = None,
    ) -> None:
        """Make the sources of a profile; of a bundle without slow models, ``full`` is ``fast``.

        Args:
            configuration: Surfaces, rules and experiments, by default the built-in surfaces.
        """
        options = options or ServingOptions()
        if bundle.generative is None and bundle.ensemble is None:
            options = replace(options, profile="fast")
        self.bundle, self.adapters, self._options = bundle, adapters, options
        self.cards = ItemCards(bundle)
        self.live = LiveState(bundle)
        self.failures: Counter[str] = Counter()
        """Times that each source or stage failed."""
        excluded = options.exclude_history
        self.configuration = configuration or ServingConfiguration()
        self._resolver = Resolver(
            self.configuration, bundle.exclude_history if excluded is None else excluded
        )
        self.arranger = Arranger(bundle)
        rule_rows = self.arranger.rule_rows
        self._exclusions = Exclusions(bundle=bundle, rule_rows=rule_rows, live=self.live)
        self._blends = {
            name: OneQueryBlend(blend, bundle.item_counts) for name, blend in bundle.blends.items()
        }
        self._blend = self._blends.get(self.profile)
        learned_content = self._blend is not None and CONTENT.source in self._blend.sources
        self._sources = sources_of(bundle, options, adapters, learned_content=learned_content)
        self._ranker: CandidateRanker | None = None
        if bundle.ranker is not None and self.profile == PROFILE:
            self._ranker = CandidateRanker(
                bundle.ranker, options.ranker_timeout_ms, adapters.ranker
            )
        self._served_by = ServedBy(
            bundle=bundle.version,
            index=_index_name(bundle),
            semantic_ids=bundle.semantic_ids.version if bundle.semantic_ids else None,
            profile=self.profile,
        )

    @property
    def profile(self) -> Profile:
        """The profile that is served: ``fast`` if the bundle has no slow models."""
        return self._options.profile

    @cached_property
    def titles(self) -> TitleIndex:
        """The index of titles; built on first use."""
        order = torch.sort(self.bundle.popularity.item_scores, descending=True, stable=True).indices
        rows = order[order > 0].tolist()
        return TitleIndex((row, self.bundle.catalogue.title_of(row)) for row in rows)

    @cached_property
    def search(self) -> ItemSearch:
        """Search of items by a text; built on first use."""
        logs = torch.log1p(self.bundle.item_counts)
        popularity = (logs / logs.max().clamp_min(1e-9)).float().numpy()
        return ItemSearch(
            self.titles, self.bundle.text_search, popularity, self.bundle.catalogue.title_of
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: ServingOptions | None = None,
        *,
        loaded: Bundle | None = None,
    ) -> Recommender:
        """Verify and load ``bundle-<version>`` or ``current``, and the adapters next to it.

        An adapter that does not fit is left out, see ``adapters.refused``.

        Args:
            loaded: A bundle to share with, see ``load_bundle``.
        """
        with permitted():
            bundle = load_bundle(Path(path), loaded)
            adapters = load_adapters(served_adapters(Path(path).parent), models_of(bundle))
        file = None if options is None else options.config
        configuration = None if file is None else read_configuration(file)
        return cls(bundle, options, adapters=adapters, configuration=configuration)

    def warm(self) -> Recommender:
        """Index the titles and answer one request, so that the first real ones are fast."""
        # Once, not in each forked worker during its first search.
        _ = self.search
        users = self.bundle.users
        owner = users.user_ids[1] if users.num_user_rows > 1 else None
        self.answer(Request(user_id=owner, k=1))
        return self

    def description(self) -> dict[str, object]:
        """Describe the parts that are served, as ``/readyz`` does."""
        bundle = self.bundle
        return {
            "bundle": bundle.version,
            "digest": bundle.digest,
            "profile": self.profile,
            "num_items": bundle.num_item_rows - 1,
            "semantic_ids": bundle.semantic_ids.version if bundle.semantic_ids else None,
            "adapters": dict(self.adapters.versions),
            "adapters_refused": dict(self.adapters.refused),
        }

    def connect(self, opener: Opener, *, keeps_lists: bool = False) -> None:
        """Read visitors' events and hidden items from a store, which is opened on first use.

        Args:
            keeps_lists: Whether records of the lists are written.
        """
        self.live = LiveState(self.bundle, opener, keeps_lists=keeps_lists)
        self._exclusions = replace(self._exclusions, live=self.live)

    def answer(
        self,
        request: Request,
        *,
        names_history: bool = True,
        now_ms: int | None = None,
        visitor: Visitor | None = None,
    ) -> Reply:
        """Make one list.

        Args:
            names_history: Whether a reason may name items of the user's stored history.
            now_ms: The clock in unix milliseconds, by default now.
            visitor: What is known of the user, by default what the store says.

        Raises:
            UnknownItemError: The item of surface ``similar`` is not in the catalogue.
            CursorError: The cursor is none that a reply gave.
        """
        made = self.make(request, names_history=names_history, now_ms=now_ms, visitor=visitor)
        return made.reply

    def make(
        self,
        request: Request,
        *,
        names_history: bool = True,
        now_ms: int | None = None,
        visitor: Visitor | None = None,
        seed: int | None = None,
        without: Rows = NOTHING,
        depth: int = 0,
    ) -> Made:
        """Make one list, as `answer` does, with what its record is written from.

        Args:
            seed: Seed of draws, by default from the list's own id.
            without: Items of the history that models do not get to read.
            depth: Least number of ranked items that are kept.
        """
        clock, request_id = _Stopwatch(), new_request_id(now_ms)
        now_ms, seed = time_of(request_id), read_seed(request_id) if seed is None else seed
        page = None if request.cursor is None else read_cursor(request.cursor, now_ms)
        now_ms = now_ms if page is None else page.now_ms
        resolved = self._resolved(request, now_ms)
        surface, request = resolved.surface, fitted(request, resolved.surface)
        unreadable: tuple[Degraded, ...] = ()
        if visitor is None:
            visitor, unreadable = self.live.visitor(request, surface.max_history, page and now_ms)
        with torch.inference_mode():
            query = hydrate(request, self.bundle, surface, visitor, now_ms // 1_000, without)
            clock.lap("hydrate")
            searched = self.search.find(text) if (text := query.request.query) else None
            eligible = self._exclusions.decide(
                query, resolved.rules, searched, page, visitor=visitor, now_ms=now_ms
            )
            mask, relaxed = eligible.mask, eligible.shows_seen
            clock.lap("filter")
            blend = self._blend if surface.learned and not relaxed else None
            lengths = self._list_lengths(query, blend, relaxed) if mask.count() else {}
            candidates, missing = self._retrieve(lengths, query, mask)
            if searched is not None and mask.count():
                candidates = self._searched(searched, candidates, blend, query, mask)
            clock.lap("retrieve")
            if missing:
                # The weights that were learned without the slow source.
                blend = blend and self._blends.get("fast", blend)
            length = max(depth, self.arranger.length(resolved, request))
            ranked, ranker, not_ranked = self._rank(candidates, blend, query, length)
            clock.lap("rank")
            arranged = self.arranger.arrange(ranked, resolved, query, mask, seed)
            items = self._select(arranged.ranked, query, names_history)
            clock.lap("select")
        short = []
        if len(items) < request.k and (lengths or candidates):
            short.append(Degraded("short_list", f"{len(items)} of {request.k}"))
        parts = (*query.degraded, *unreadable, *eligible.notes)
        arm = None if resolved.arm is None else Assigned(resolved.experiment or "", resolved.arm)
        reply = Reply(
            request_id=request_id,
            items=items,
            served_by=self._parts_used(query, candidates, ranker),
            degraded=[*parts, *missing, *not_ranked, *short],
            fallback=FILLER if set(candidates) == {FILLER} else None,
            timings_ms=clock.total(),
            experiment=arm,
            cursor=None if page is None else page.after([item.item_id for item in items]),
        )
        return Made(reply, query, visitor, eligible, candidates, ranked, resolved, arranged, seed)

    def _resolved(self, request: Request, now_ms: int) -> Resolved:
        """Find the surface, the rules and the arm of a request."""
        moment, domain = request.context.unix_time, request.context.domain
        seconds = now_ms / 1_000 if moment is None else float(moment)
        return self._resolver.resolve(request.surface, request.user_id, seconds, domain)

    def record(self, made: Made) -> bytes:
        """Write the record of a list."""
        visitor, resolved, arranged = made.visitor, made.resolved, made.arranged
        made_of: dict[str, object] = {
            "digest": self.bundle.digest,
            "configuration": self.configuration.version,
            "unix_time": made.query.moment,
            "live": [list(event) for event in visitor.events],
            "forgotten_ms": visitor.forgotten_ms,
            "experiment": made.reply.experiment,
            "rules": [rule.name for rule in resolved.rules],
            "seed": None if arranged.propensities is None else made.seed,
            "exclude_history": self._options.exclude_history,
            "hidden": self.live.hidden_items,
            "items_version": self.live.items_version if self.live.hidden_items is None else None,
            "shown": list(made.eligible.shown),
        }
        if is_kept(made.reply.request_id, self._options.log_features_share):
            made_of["features"] = build_snapshot(made.query, arranged.ranked)
        return record_document(made.query.request, made.reply, made_of, _slots(made))

    def recommend(
        self, users: pl.DataFrame | Sequence[str], k: int = 20, unix_time: int | None = None
    ) -> pl.DataFrame:
        """Make a list for each user; the same lists and scores as over HTTP.

        Args:
            users: User ids, or a frame with a column ``user_id``.
            unix_time: Time of the requests in unix seconds, by default now.

        Returns:
            Columns user_id, rank (from 1), item_id, display_text, score, source, semantic_id
            (null where the item has none).
        """
        rows = []
        context = Context(unix_time=unix_time)
        texts, row_of = self.bundle.catalogue.display_texts, self.bundle.catalogue.row_of
        for user_id in user_ids(users):
            request = Request(user_id=user_id, k=k, context=context)
            for rank, item in enumerate(self.answer(request).items, start=1):
                text = texts[row_of(item.item_id) or 0]
                found = (item.item_id, text, item.score, item.source, item.semantic_id)
                rows.append((user_id, rank, *found))
        items = ("item_id", "display_text", "score", "source", "semantic_id")
        return frame(rows, "user_id", "rank", *items)

    def _retrieve(
        self, lengths: Mapping[str, int], query: Query, eligible: ItemMask
    ) -> tuple[dict[str, OneList], list[Degraded]]:
        """Query the sources; those without candidates are left out.

        Returns:
            Lists by source, and a note on each source that was late or failed.
        """
        longest = max(1, eligible.count())
        lists: dict[str, OneList] = {}
        missing: list[Degraded] = []
        for name, length in lengths.items():
            if (source := self._sources.get(name)) is None:
                continue
            try:
                found = source.one(query, eligible, min(length, longest))
                if found is not None and not _all_finite(found.scores):
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

    def _searched(
        self,
        searched: Searched,
        lists: dict[str, OneList],
        blend: OneQueryBlend | None,
        query: Query,
        eligible: ItemMask,
    ) -> dict[str, OneList]:
        """Order what a text found; a learned surface lets the user's own list have its say."""
        if blend is None:
            return {**lists, SEARCH: searched.listed(eligible)}
        own = {name: lists[name] for name in blend.sources if name in lists}
        if not query.has_history or not own or searched.candidates is None:
            return {SEARCH: searched.listed(eligible)}
        merged = blend.merge(own, len(query.history), len(searched.item_rows))
        return {SEARCH: searched.listed(eligible, merged.item_rows)}

    def _failed(self, code: DegradedCode, part: str) -> Degraded:
        """Note and count a failed part; the log has its first failure, then every 2nd, 4th, 8th."""
        self.failures[part] += 1
        times = self.failures[part]
        if is_logged(times):
            fields = {"part": part, "times": times, "bundle": self.bundle.version}
            log(code, fields, level=WARNING, failed=True)
        return Degraded(code, part)

    def _rank(
        self,
        candidates: Mapping[str, OneList],
        blend: OneQueryBlend | None,
        query: Query,
        k: int,
    ) -> tuple[RankedItems | None, str | None, list[Degraded]]:
        """Merge lists into one.

        Returns:
            The list, the version of the ranker that ordered it, and a note where the ranker failed.
        """
        if not candidates:
            return None, None, []
        surface = query.surface
        if surface.max_seen_share < 1 and len(query.seen):
            longer = k + len(query.seen)
            found, ranker, notes = self._rank_all(candidates, blend, query, longer)
            return with_new_items(found, query.seen, k, surface.max_seen_share), ranker, notes
        return self._rank_all(candidates, blend, query, k)

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
        return {**surface.weights, **dict.fromkeys(self.bundle.outside, 1.0)}

    def _rank_all(
        self,
        candidates: Mapping[str, OneList],
        blend: OneQueryBlend | None,
        query: Query,
        k: int,
    ) -> tuple[RankedItems, str | None, list[Degraded]]:
        """Merge lists without a limit on seen items; at least one has an item."""
        length = query.surface.num_candidates
        blended = {
            name: OneList(candidates[name].scores[:length], candidates[name].item_rows[:length])
            for name in (blend.sources if blend is not None else ())
            if name in candidates
        }
        if blend is None or not blended or candidates.keys() == {FILLER}:
            return by_reciprocal_rank(candidates, self._weights(query.surface), k), None, []
        ranked, ranker, notes = self._by_ranker(blended, query, k)
        if ranked is None:
            merged = blend.merge(blended, len(query.history), k)
            ranked = RankedItems.of_merged(merged, tuple(blended))
        return ranked, ranker, notes

    def _by_ranker(
        self, blended: Mapping[str, OneList], query: Query, k: int
    ) -> tuple[RankedItems | None, str | None, list[Degraded]]:
        """Order the list by the ranker; None where there is none, or it failed."""
        if self._ranker is None:
            return None, None, []
        try:
            counts, domain = self.bundle.item_counts, query.request.context.domain
            found, scored = self._ranker.ranked(
                blended, query.history_tensor, query.categorical, counts, k, domain
            )
        except LateRankerError:
            return None, None, [Degraded("late_stage", "ranker")]
        except Exception:
            # Whatever went wrong, the blend's order can be served.
            return None, None, [self._failed("failed_stage", "ranker")]
        return RankedItems.of_merged(found, tuple(blended), scored), self._ranker.version, []

    def _parts_used(
        self, query: Query, candidates: Mapping[str, OneList], ranker: str | None
    ) -> ServedBy:
        """Return the parts of the bundle that made the list."""
        queried = () if query.item_row else candidates
        domain = query.request.context.domain
        adapter = self.adapters.used(domain, queried, ranked=ranker is not None)
        if adapter is None and ranker is None:
            return self._served_by
        return replace(self._served_by, adapter=adapter, ranker=ranker)

    def _select(
        self, ranked: RankedItems | None, query: Query, names_history: bool
    ) -> list[RecommendedItem]:
        """Build the items of a reply, with reasons if requested."""
        if ranked is None:
            return []
        rows, sources = ranked.item_rows.tolist(), ranked.leading()
        why: Sequence[str | None] = [None] * len(rows)
        shares: Sequence[dict[str, float] | None] = [None] * len(rows)
        if query.request.explain:
            why = reasons(rows, sources, query, self.bundle, names_history=names_history)
            shares = ranked.shares()
        cards = map(self.cards.of, rows)
        return [
            RecommendedItem(
                card.item_id,
                score,
                source,
                card.title,
                card.categories,
                card.semantic_id,
                reason,
                parts,
            )
            for card, score, source, reason, parts in zip(
                cards, ranked.scores.tolist(), sources, why, shares, strict=True
            )
        ]


def _all_finite(scores: NDArray[np.float32]) -> bool:
    # Counting takes a third of the time of all().
    return int(np.count_nonzero(np.isfinite(scores))) == len(scores)


def _slots(made: Made) -> list[dict[str, object]]:
    """Build a record's further fields of each slot: chance and rules."""
    arranged, number = made.arranged, len(made.reply.items)
    chances = arranged.propensities or (None,) * number
    rules = arranged.rules or ((),) * number
    slots: list[dict[str, object]] = []
    for chance, names in zip(chances, rules, strict=True):
        slot: dict[str, object] = {} if chance is None else {"propensity": chance}
        slots.append({**slot, "rules": list(names)} if names else slot)
    return slots


def _index_name(bundle: Bundle) -> str | None:
    if bundle.retriever is None:
        return None
    index = bundle.retriever.index
    return f"{index.kind}-{index.num_item_rows - 1}x{index.dim}"
