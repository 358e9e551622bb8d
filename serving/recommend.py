"""Answer one request: hydrate, filter, retrieve, rank, select.

`Recommender.make` is the only way a list is made: HTTP, batch scoring and the parity check all
call it, one query at a time, so equal requests get equal scores to the last bit.

Axes: k list length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from recsys.retrieval.ranked import FILLER, RankedItems, compiled_or_why
from serving.arrangement.arrange import Arranged, Arranger, build_items
from serving.bundle.adapters import NO_ADAPTERS, Adapters, load_adapters, models_of
from serving.bundle.load import Bundle, load_bundle
from serving.configuration.file import ServingConfiguration, read_configuration
from serving.configuration.resolve import Resolved, Resolver
from serving.exclusions import SEEN_ITEMS_SHOWN, Eligible, Exclusions, read_cursor
from serving.items import MAX_FOUND, ItemCards, ItemSearch, build_search
from serving.live import LiveState, Opener, Visitor
from serving.online.store import new_request_id, read_seed, time_of
from serving.query import NOTHING, Query, Rows, fitted, hydrate
from serving.retrieval import Candidates, Lists, Retrieval
from serving.schemas import Assigned, Context, Degraded, RecommendedItem, Reply, Request, ServedBy
from serving.settings import ServingOptions
from serving.steering import NO_WISHES, NUM_LIKE, Ranked, Steering, TopicItems, Wishes, named_wishes

if TYPE_CHECKING:
    import polars as pl


class _Stopwatch:
    """Milliseconds by stage."""

    def __init__(self) -> None:
        self._started = self._lap = time.perf_counter()
        self.timings_ms: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        passed = time.perf_counter()
        # A third of the time of round().
        self.timings_ms[stage] = int(1e6 * (passed - self._lap) + 0.5) / 1_000
        self._lap = passed

    def total(self) -> dict[str, float]:
        self._lap = self._started
        self.lap("total")
        return self.timings_ms


def _inference_mode() -> AbstractContextManager[None]:
    """Enter inference mode, unless it is on: a worker is in it, since to enter takes time."""
    return nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode()


MAX_KEPT = 64
"""Lists that are kept for visitors of whom nothing is known, by surface and k."""


@dataclass(eq=False)
class Listed:
    """The items of a list, and what they were made from."""

    candidates: Candidates
    ranked: Ranked
    arranged: Arranged
    describe: Callable[[], list[RecommendedItem]]
    written: tuple[list[bytes], bytes] | None = None
    """The items of a reply over HTTP, see ``list_record.write_items``."""

    @cached_property
    def items(self) -> list[RecommendedItem]:
        """The items of a reply in Python."""
        return self.describe()


@dataclass(eq=False)
class Made:
    """A list, and what it was made from."""

    head: Reply
    """The reply without its items."""
    query: Query
    visitor: Visitor
    eligible: Eligible
    resolved: Resolved
    listed: Listed
    seed: int
    wishes: Wishes

    @cached_property
    def reply(self) -> Reply:
        """The reply in Python; over HTTP its items are written as bytes instead."""
        return replace(self.head, items=self.listed.items)

    @property
    def ranked(self) -> RankedItems | None:
        return self.listed.ranked.items


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
        self.bundle, self.adapters, self.options = bundle, adapters, options
        self.profile = options.profile
        """The profile that is served: ``fast`` if the bundle has no slow models."""
        self.cards = ItemCards(bundle)
        self.live = LiveState(bundle)
        excluded = options.exclude_history
        self.configuration = configuration or ServingConfiguration()
        if unknown := list(self.configuration.unknown_sources(bundle.outside)):
            raise ValueError(f"{self.configuration.source}: {'; '.join(unknown)}")
        self._resolver = Resolver(
            self.configuration, bundle.exclude_history if excluded is None else excluded
        )
        self.arranger = Arranger(bundle)
        rule_rows = self.arranger.rule_rows
        self._kept: dict[tuple[int, int] | None, Listed] = {}
        """Lists for visitors of whom nothing is known; see `_kept_key`."""
        self._exclusions = Exclusions(bundle=bundle, rule_rows=rule_rows, live=self.live)
        self.retrieval = Retrieval(bundle, options, adapters)
        items = TopicItems(
            bundle, lambda words: self.search.titles.search(words, MAX_FOUND), self._find_similar
        )
        self.steering = Steering(bundle, self.retrieval, self.arranger.vectors, items)
        of_all = ServedBy(
            bundle=bundle.version,
            index=bundle.retriever.index_name if bundle.retriever else None,
            semantic_ids=bundle.semantic_ids.version if bundle.semantic_ids else None,
            profile=self.profile,
        )
        self._served_by: dict[tuple[str | None, str | None], ServedBy] = {(None, None): of_all}
        """By adapter and ranker."""
        self.others: dict[str, Recommender] = {}
        """Those of the bundles that arms name, by version; a server loads them."""

    @cached_property
    def search(self) -> ItemSearch:
        """Search of items by a text; built on first use."""
        return build_search(self.bundle)

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
        bundle = load_bundle(Path(path), loaded)
        adapters = load_adapters(Path(path).parent, models_of(bundle))
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
            "compiled": compiled_or_why(),
            "num_items": bundle.num_item_rows - 1,
            "semantic_ids": bundle.semantic_ids.version if bundle.semantic_ids else None,
            "adapters": dict(self.adapters.versions),
            "adapters_refused": dict(self.adapters.refused),
            "reads_wishes": self.configuration.wishes is not None,
            "arm_bundles": {name: other.bundle.digest for name, other in self.others.items()},
        }

    def connect(self, opener: Opener, *, keeps_lists: bool = False) -> None:
        """Read visitors' events and hidden items from a store, which is opened on first use.

        Args:
            keeps_lists: Whether records of the lists are written.
        """
        self.live = LiveState(self.bundle, opener, keeps_lists=keeps_lists)
        self._exclusions = replace(self._exclusions, live=self.live)
        for other in self.others.values():
            other.connect(opener, keeps_lists=keeps_lists)

    def for_arm(self, request: Request) -> Recommender:
        """Return the recommender of the bundle that the user's arm names, itself by default."""
        if not self.others:
            return self
        return self.others.get(
            self._resolved(request, time.time_ns() // 1_000_000).bundle or "", self
        )

    def maker(self, digest: str) -> Recommender:
        """Return the recommender of a bundle by its digest, itself if none has it."""
        return next((one for one in self.others.values() if one.bundle.digest == digest), self)

    def answer(
        self, request: Request, *, names_history: bool = True, now_ms: int | None = None
    ) -> Reply:
        """Make one list; arguments are those of `make`.

        Raises:
            UnknownItemError: The item of surface ``related`` is not in the catalogue.
            CursorError: The cursor is none that a reply gave.
        """
        return self.make(request, names_history=names_history, now_ms=now_ms).reply

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
        """Make one list, with the values that its record is written from.

        Args:
            names_history: Whether the reply may name items of the user's stored history, and the
                topics that are kept.
            now_ms: The clock in unix milliseconds, by default now.
            visitor: Events and shown items of the user, by default from the store.
            seed: Seed of draws, by default from the list's own id.
            without: Items of the history that models do not get to read.
            depth: Least number of ranked items that are kept.
        """
        self.live.properties.refresh()
        clock, request_id = _Stopwatch(), new_request_id(now_ms)
        now_ms, seed = time_of(request_id), read_seed(request_id) if seed is None else seed
        page = None if request.cursor is None else read_cursor(request.cursor, now_ms)
        now_ms = now_ms if page is None else page.now_ms
        resolved = self._resolved(request, now_ms)
        surface, request = resolved.surface, fitted(request, resolved.surface)
        unreadable: tuple[Degraded, ...] = ()
        if visitor is None:
            visitor, unreadable = self.live.visitor(request, surface.max_history, page and now_ms)
        with _inference_mode():
            wishes = self.steering.read(request, visitor, without, now_ms / 1_000)
            query = hydrate(request, self.bundle, surface, visitor, now_ms // 1_000, wishes.unread)
            clock.lap("hydrate")
            searched = self.search.find(text) if (text := query.request.query) else None
            eligible = self._exclusions.decide(
                query, resolved.rules, searched, page, wishes.exclusions, visitor, now_ms
            )
            clock.lap("filter")
            key = self._kept_key(query, resolved, wishes, eligible, depth)
            if (listed := self._kept.get(key)) is not None:
                clock.timings_ms |= {"retrieve": 0.0, "rank": 0.0}
            else:
                found = self.retrieval.retrieve(
                    query, eligible.mask, searched, relaxed=SEEN_ITEMS_SHOWN in eligible.notes
                )
                clock.lap("retrieve")
                length = max(depth, self.arranger.length(resolved, request))
                ranked = self.steering.rank(found, query, wishes, eligible.mask, length)
                clock.lap("rank")
                shown = self.arranger.arrange(ranked.items, resolved, query, eligible.mask, seed)
                shared = (self.bundle, self.cards, names_history)
                describe = partial(build_items, shown, query, *shared)
                listed = self._keep(key, Listed(found, ranked, shown, describe))
            clock.lap("select")
        found, ranked = listed.candidates, listed.ranked
        parts = (*query.degraded, *unreadable, *wishes.notes, *eligible.notes)
        head = Reply(
            request_id=request_id,
            items=[],
            served_by=self._parts_used(query, found.lists, ranked.ranker),
            degraded=[*parts, *found.missing, *ranked.notes, *_shortage(listed, request.k)],
            fallback=FILLER if set(found.lists) == {FILLER} else None,
            timings_ms=clock.total(),
            experiment=_assigned(resolved),
            steered=named_wishes(ranked.steered, request, names_history),
            cursor=None if page is None else page.after([one.item_id for one in listed.items]),
        )
        return Made(head, query, visitor, eligible, resolved, listed, seed, wishes)

    def _kept_key(
        self, query: Query, resolved: Resolved, wishes: Wishes, eligible: Eligible, depth: int
    ) -> tuple[int, int] | None:
        """Return what alone a list depends on, if nothing is known of its visitor; else None.

        Every item may be shown, and nothing is drawn: such a list is the popular items.
        """
        plain = eligible.mask is self._exclusions.everything and wishes is NO_WISHES and not depth
        if not plain or query.item_row or query.has_history or len(query.seen):
            return None
        request = query.request
        if request.explain or request.query or self.arranger.arranges(resolved, request):
            return None
        return id(resolved.surface), request.k

    def _keep(self, key: tuple[int, int] | None, listed: Listed) -> Listed:
        """Keep a list that all visitors of whom nothing is known get, if popularity made it."""
        found = listed.candidates
        if key is not None and found.lists.keys() == {FILLER} and not found.missing:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = listed
        return listed

    def _find_similar(self, item_row: int) -> list[int]:
        item_id = self.bundle.catalogue.item_ids[item_row]
        k = min(NUM_LIKE, 1 + self.bundle.num_item_rows // 20)
        made = self.make(Request(surface="related", item_id=item_id, k=k))
        return [] if made.ranked is None else made.ranked.item_rows.tolist()

    def _resolved(self, request: Request, now_ms: int) -> Resolved:
        """Resolve the surface, rules and experiment of a request."""
        moment, domain = request.context.unix_time, request.context.domain
        seconds = now_ms / 1_000 if moment is None else float(moment)
        found = self._resolver.resolve(request.surface, request.user_id, seconds, domain)
        if found.bundle in (None, self.bundle.version, *self.others):
            return found
        # The list is not of the arm's bundle, so it is no list of the arm.
        return Resolved(self._resolver.surfaces[request.surface], found.rules)

    def _parts_used(self, query: Query, candidates: Lists, ranker: str | None) -> ServedBy:
        """Return the parts of the bundle that made the list."""
        queried = () if query.item_row else candidates
        domain = query.request.context.domain
        parts = self.adapters.used(domain, queried), ranker
        if (known := self._served_by.get(parts)) is None:
            adapter, ranker = parts
            known = replace(self._served_by[None, None], adapter=adapter, ranker=ranker)
            self._served_by[parts] = known
        return known

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
        import polars as pl

        rows = []
        context = Context(unix_time=unix_time)
        texts, row_of = self.bundle.catalogue.display_texts, self.bundle.catalogue.row_of
        for user_id in _user_ids(users):
            request = Request(user_id=user_id, k=k, context=context)
            for rank, item in enumerate(self.answer(request).items, start=1):
                text = texts[row_of(item.item_id) or 0]
                found = (item.item_id, text, item.score, item.source, item.semantic_id)
                rows.append((user_id, rank, *found))
        names = ("user_id", "rank", "item_id", "display_text", "score", "source", "semantic_id")
        schema = {**dict.fromkeys(names, pl.String), "rank": pl.Int64, "score": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row")


def _assigned(resolved: Resolved) -> Assigned | None:
    return None if resolved.arm is None else Assigned(resolved.experiment or "", resolved.arm)


def _shortage(listed: Listed, k: int) -> tuple[Degraded, ...]:
    number, were_sought = len(listed.arranged.sources), listed.candidates.were_sought
    is_short = were_sought and number < k
    return (Degraded("short_list", f"{number} of {k}"),) if is_short else ()


def _user_ids(users: pl.DataFrame | Sequence[str]) -> list[str]:
    """Read user ids from a list, or from the column ``user_id`` of a frame."""
    columns = getattr(users, "columns", None)
    if columns is None:
        return [str(user_id) for user_id in users]
    if "user_id" not in columns:
        raise ValueError(f"users needs a column user_id, it has {list(columns)}; rename one")
    found = cast("pl.DataFrame", users)["user_id"]
    if found.null_count():
        row = found.is_null().arg_max()
        raise ValueError(f"user_id of row {row} is null; drop such rows, or fill them with any id")
    return [str(user_id) for user_id in found.to_list()]
