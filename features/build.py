"""Raw events and catalogue to everything that models read: the build_features artefact.

    files -> validated rows | quarantine -> integer records -> histories, duplicates out -> k-core
          -> dense rows -> sequences in every tie order, splits, features of the moment
          -> events by day, what was shown, catalogue, users, vocabularies

``build_features`` writes into a folder that its caller makes and publishes. Events are never in
memory all at once; what is per user or per item is.

Axes: U user ranks, I item ranks (ids before anything is dropped).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.counts import Core
from features.days import MICROS_PER_DAY, days_of, write_days, write_shown
from features.events import as_text
from features.histories import Part, SequenceWriter, sequence_part
from features.ingest import Dictionaries, Ingested, OnlineEvents, read_events
from features.ordering import OrderedEvents, Ranks, order_events
from features.parallel import in_order
from features.point_in_time import FEATURES, Feature
from features.quarantine import Quarantine
from features.records import RecordFile, Records, Rows, compressed
from features.report import FeaturesReport
from features.scan import read_whole
from features.schema import (
    ITEM_ID,
    FeaturesConfig,
    FilterConfig,
    SourceConfig,
    SplitConfig,
    TieOrder,
)
from features.splits import (
    Cuts,
    Ends,
    global_time,
    leave_one_out,
    midnights,
    newest_of_some,
)
from features.tables import aligned, catalogue, read_table, write_categories, write_user_features
from features.vocabulary import extended, read_vocabulary, write_vocabulary

__all__ = [
    "FeaturesConfig",
    "FeaturesReport",
    "FilterConfig",
    "SourceConfig",
    "SplitConfig",
    "build_features",
]


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@dataclass
class DenseRows:
    """Dense row of each rank and code, 0 for what was dropped, and the ids by row."""

    of_rank: NDArray[np.uint32]
    of_code: NDArray[np.uint32]
    """Of an id's code in the files."""
    ids: pl.Series

    @classmethod
    def of(cls, ranks: Ranks, kept: NDArray[np.bool_]) -> DenseRows:
        """Number what is kept from 1; an earlier vocabulary's ids keep their rows regardless."""
        stays = kept.copy()
        stays[: ranks.num_previous] = True
        rows = np.cumsum(stays).astype(np.uint32)
        rows[~stays] = 0
        return cls(rows, rows[ranks.of_code], ranks.ids.filter(stays))


class KeptEvents:
    """The ordered events that the k-core left, with dense rows."""

    def __init__(
        self, ordered: OrderedEvents, core: Core, users: DenseRows, items: DenseRows
    ) -> None:
        self.ordered = ordered
        self.core = core
        self.users = users
        self.items = items
        counts = np.zeros(len(users.ids) + 1, np.int64)
        counts[users.of_rank[core.users]] = core.user_counts[core.users]
        self.offsets: Rows = np.concatenate([[0], np.cumsum(counts)])

    def dense(self, records: Records) -> Records:
        """Drop what the k-core dropped and put rows for ranks."""
        kept = self.core.users[records["user"]] & self.core.items[records["item"]]
        records = compressed(records, kept)
        records["user"] = self.users.of_rank[records["user"]]
        records["item"] = self.items.of_rank[records["item"]]
        return records

    def dense_of_codes(self, records: Records) -> Records:
        """Drop what the k-core dropped of records as they were read, and put rows for codes."""
        users, items = self.users.of_code[records["user"]], self.items.of_code[records["item"]]
        kept = (users > 0) & (items > 0)
        records = compressed(records, kept)
        records["user"], records["item"] = users[kept], items[kept]
        return records

    def slices(self) -> Iterator[Records]:
        """Read all ordered events front to back; a user's are in one slice."""
        return self.ordered.records.slices(self.ordered.bounds)


class _Build:
    """State of one build; its methods run in the order in which ``build_features`` calls them."""

    def __init__(self, config: FeaturesConfig, out: Path, scratch: Path) -> None:
        self.config = config
        self.out = out
        self.scratch = scratch
        self.report = FeaturesReport()
        self.quarantine = Quarantine(out / "quarantine")
        self.texts = Dictionaries.empty()
        self.features: tuple[Feature, ...] = ()
        self.day_counts = np.zeros(0, np.int64)
        self.first_day = 0

    def read(self) -> Ingested:
        """Read the event files."""
        now = self.config.now or datetime.now(UTC)
        ingested = read_events(
            self.config.events,
            self.config.filters,
            self.quarantine,
            self.scratch,
            now,
            self._online_events(),
        )
        self.texts = ingested.texts
        report = self.report
        report.rows_in = ingested.rows_in
        report.quarantined = self.quarantine.counts.copy()
        report.filtered = ingested.dropped
        if not ingested.records.length:
            raise self._nothing_left()
        if not ingested.has_time:
            report.warnings.append(
                "the events have no event_time: time decay, global_time splits and the context "
                "features of time are off"
            )
        names = self.config.context_features
        chosen = (FEATURES[name] for name in names)
        self.features = tuple(f for f in chosen if ingested.has_time or not f.needs_time)
        self.first_day = ingested.min_time // MICROS_PER_DAY
        return ingested

    def _online_events(self) -> OnlineEvents | None:
        online, items = self.config.online_events, self.config.items
        if online is None:
            return None
        catalogue = None
        if items is not None:
            tables = [read_whole(path, items, (ITEM_ID,)) for path in items.paths]
            ids = [one.select(as_text(ITEM_ID, one.schema[ITEM_ID])) for one in tables]
            catalogue = pl.concat(ids)[ITEM_ID].drop_nulls().unique()
        return OnlineEvents(online, catalogue)

    def _previous(self, name: str) -> pl.Series | None:
        if self.config.previous is None:
            return None
        return read_vocabulary(self.config.previous / "vocabularies" / f"{name}.parquet")

    def order(self, ingested: Ingested) -> KeptEvents:
        """Sort into histories, drop repetitions, caps and the k-core; give rows.

        Raises:
            ValueError: If nothing is left, or all that is left is of one user or one item.
        """
        users = Ranks.of(ingested.texts.users, self._previous("users"))
        items = Ranks.of(ingested.texts.items, self._previous("items"))
        ordered = order_events(ingested, users, items, self.config.filters, self.scratch)
        core = ordered.core(self.config.filters)
        report = self.report
        report.duplicates = ordered.num_duplicates
        report.over_user_cap = ordered.num_over_cap
        report.events = int(core.user_counts.sum())
        report.k_core_rounds = core.num_rounds
        report.dropped_by_k_core = ordered.records.length - report.events
        if report.events == 0:
            raise self._nothing_left()
        for name, kept, ranks in (("user", core.users, users), ("item", core.items, items)):
            if np.count_nonzero(kept) == 1:
                only = ranks.ids[int(kept.argmax())]
                raise ValueError(
                    f"all {report.events} events are of one {name} ({only!r}): there is nothing "
                    f"to learn. Is the column of {name}_id the right one? If the filters left "
                    "this, loosen them"
                )
        return KeptEvents(
            ordered, core, DenseRows.of(users, core.users), DenseRows.of(items, core.items)
        )

    def _nothing_left(self) -> ValueError:
        report, filters = self.report, self.config.filters
        return ValueError(
            f"no event is left of {report.rows_in}: {sum(report.quarantined.values())} bad, "
            f"{dict(report.filtered)} filtered, {report.duplicates} repeated, "
            f"{report.dropped_by_k_core} without enough events (min_user_events = "
            f"{filters.min_user_events}, min_item_events = {filters.min_item_events}); "
            "loosen the filters"
        )

    def write_sequences(self, events: KeptEvents) -> None:
        """Write the sequences of every tie order, then where their splits end."""
        splits, directory = self.config.splits, self.out / "sequences"
        has_time = "time" in (events.ordered.records.dtype.names or ())
        if splits.kind == "global_time" and not has_time:
            raise ValueError(
                "a global_time split needs event_time, which the events do not have; use "
                "leave_one_out"
            )
        writer = SequenceWriter(
            directory, splits.tie_orders, self.report.events, self.features, has_time=has_time
        )

        def part_of(records: Records) -> tuple[Part, Rows, tuple[int, int] | None]:
            records = events.dense(records)
            part = sequence_part(records, splits.tie_orders, self.features, self.config.seed)
            if not has_time or not len(records):
                return part, np.array([len(records)]), None
            days = np.bincount(days_of(records) - self.first_day)
            return part, days, (int(records["time"].min()), int(records["time"].max()))

        spans = []
        for part, days, span in in_order(part_of, events.slices()):
            writer.append(part)
            self._add_days(days)
            spans += [span] if span else []
        writer.close()
        if spans:
            self.report.first_time = as_iso(min(low for low, _ in spans) // 1_000_000)
            self.report.last_time = as_iso(max(high for _, high in spans) // 1_000_000)
        ends = self._ends(events, splits.tie_orders[0])
        for order in splits.tie_orders:
            np.save(directory / order / "offsets.npy", events.offsets)
            np.save(directory / order / "train_end.npy", events.offsets[:-1] + ends.train)
            np.save(directory / order / "validation_end.npy", events.offsets[:-1] + ends.validation)
        counts = np.diff(events.offsets)
        self.report.labels = {
            "train": int((ends.train - (ends.train > 0)).sum()),
            "validation": int((ends.validation - ends.train).sum()),
            "test": int((counts - ends.validation).sum()),
        }

    def _add_days(self, counts: Rows) -> None:
        missing = max(0, len(counts) - len(self.day_counts))
        self.day_counts = np.pad(self.day_counts, (0, missing))
        self.day_counts[: len(counts)] += counts

    def _ends(self, events: KeptEvents, order: TieOrder) -> Ends:
        counts, newest = np.diff(events.offsets), self.config.newest
        if newest is None and self.config.splits.kind == "leave_one_out":
            return leave_one_out(counts)
        if newest is not None:
            times = np.load(self.out / "sequences" / order / "times.npy", mmap_mode="r")
            return newest_of_some(times, events.offsets, newest)
        cuts: Cuts = midnights(self.day_counts, self.first_day, self.config.splits)
        self.report.validation_from, self.report.test_from = (as_iso(cut) for cut in cuts)
        times = np.load(self.out / "sequences" / order / "times.npy", mmap_mode="r")
        return global_time(times, events.offsets, cuts)

    def write_events(self, events: KeptEvents) -> None:
        """Write the kept events by day."""
        if not self.config.write_events:
            return
        # The records as they were read are not needed again.
        target = RecordFile(self.scratch / "read", events.ordered.records.dtype)
        directory = self.out / "events"
        counts, first_day = self.day_counts, self.first_day
        write_days(events.slices(), events.dense, target, counts, first_day, self.texts, directory)
        target.close()

    def write_shown(self, events: KeptEvents, shown: RecordFile) -> None:
        """Write what was shown to the users that are left, of the items that are left."""
        types = self.config.filters.shown_types
        if not shown.length:
            if types:
                self.report.warnings.append(f"no event is of shown_types = {types}")
            return
        if "time" not in (shown.dtype.names or ()):
            self.report.warnings.append(
                f"{shown.length} rows of shown_types are left out: without event_time nothing says "
                "what came before them"
            )
            return
        parts = (events.dense_of_codes(part) for part in shown.slices())
        self.report.shown = write_shown(parts, self.texts, self.out / "shown")

    def write_tables(self, events: KeptEvents) -> None:
        """Write catalogue, users, their features and every vocabulary."""
        config, report = self.config, self.report
        before = self.quarantine.counts.copy()
        max_bad = config.filters.max_bad_share
        items = users = None
        if config.items:
            items = read_table(config.items, "item_id", self.quarantine, max_bad)
        if config.users:
            users = read_table(config.users, "user_id", self.quarantine, max_bad)
        report.quarantined_in_tables = self.quarantine.counts - before
        item_ids, user_ids = events.items.ids, events.users.ids
        if config.catalogue_only_items and items is not None:
            item_ids = extended(items["item_id"], item_ids)
        if items is not None:
            known = item_ids.is_in(items["item_id"].implode())
            report.items_without_catalogue = int((~known).sum())
            if report.items_without_catalogue:
                report.warnings.append(
                    f"{report.items_without_catalogue} of {len(item_ids)} items are not in the "
                    "catalogue; their id stands in for a title"
                )
        (self.out / "vocabularies").mkdir()
        write_vocabulary(item_ids, self.out / "vocabularies" / "items.parquet")
        write_vocabulary(user_ids, self.out / "vocabularies" / "users.parquet")
        laid_out = catalogue(items, item_ids, config.items)
        laid_out.write_parquet(self.out / "items.parquet")
        categories = write_categories(laid_out, self.out, self._previous("categories"))
        people = aligned(users, user_ids, "user_id", "user_row")
        people.write_parquet(self.out / "users.parquet")
        cardinality, warnings = write_user_features(
            people, config.user_columns, self.out, config.previous
        )
        report.warnings += warnings
        report.users, report.items = len(user_ids), len(item_ids)
        described = {
            "num_user_rows": report.users + 1,
            "num_item_rows": report.items + 1,
            "num_categories": len(categories) + 1,
            "user_features": [{"name": n, "cardinality": c} for n, c in cardinality.items()],
            "context_features": [
                {"name": f.name, "cardinality": f.cardinality} for f in self.features
            ],
        }
        write_json(self.out / "features.json", described)


def as_iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def build_features(config: FeaturesConfig, out: Path) -> FeaturesReport:
    """Build the whole artefact in ``out``, an empty folder.

    Raises:
        ValueError: If a file or its rows cannot be used; names the file and what to do.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=out) as scratch:
        build = _Build(config, out, Path(scratch))
        ingested = build.read()
        events = build.order(ingested)
        build.write_sequences(events)
        build.write_events(events)
        build.write_shown(events, ingested.shown)
        build.write_tables(events)
    write_json(out / "report.json", build.report.as_dict())
    return build.report
