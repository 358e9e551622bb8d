"""Raw events and catalogue to everything that models read: the build_features artefact.

    partitions of files -> validated rows | quarantine -> integer records, ids
        -> one order of ids -> ranges of users -> histories, duplicates out -> k-core
        -> dense rows -> sequences, splits, features of the moment
        -> events, catalogue, users, vocabularies, impressions

``build_features`` writes into a folder that its caller makes and publishes. Events are never in
memory all at once; arrays per user or per item are. What is done for each partition of the files,
range of users or day is a task of its own, several run in threads at a time; the artefact's bytes
do not depend on the number of partitions.

Axes: U user ranks, I item ranks (ids before anything is dropped).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from features.encoding import extended, find_rows, read_vocabulary, write_vocabulary
from features.event_tables import write_event_tables
from features.events import as_text
from features.ingest import OPTIONAL_FIELDS, SHOWN, open_events, record_dtype
from features.parallel import in_order
from features.people import APPLIED, FORGOTTEN, ForgottenUsers, read_applied
from features.point_in_time import FEATURES
from features.preparation.ids import (
    TextColumns,
    forget_texts,
    merge_ids,
    merge_texts,
    rank_partition,
)
from features.preparation.prepare import (
    Prepared,
    PrepareTask,
    divide_files,
    known_items,
    number_of_partitions,
    prepare_partition,
)
from features.preparation.ranges import order_events, ranges
from features.preparation.sequences import (
    EVENT_TYPES,
    MICROS_PER_DAY,
    NEGATIVE,
    TARGETS,
    DenseRows,
    Ingested,
    KeptEvents,
    SequenceFiles,
    WrittenSequences,
    write_all_sequences,
)
from features.reading.scan import read_whole
from features.records import Rows
from features.report import FeaturesReport, Quarantine
from features.schema import (
    EVENT_TIME,
    GIVEN,
    ITEM_ID,
    FeaturesConfig,
    FilterConfig,
    SourceConfig,
    SplitConfig,
)
from features.shown import write_shown
from features.splits import (
    Cuts,
    Ends,
    Flags,
    global_time,
    leave_one_out,
    midnights,
    newest_of_some,
    num_held_out,
    why_not_by_time,
)
from features.tables import (
    aligned,
    catalogue,
    described,
    read_table,
    write_categories,
    write_user_features,
)

__all__ = [
    "FeaturesConfig",
    "FeaturesReport",
    "FilterConfig",
    "SourceConfig",
    "SplitConfig",
    "build_features",
]
FEATURES_FILE = "features.json"
"""Sizes of all features, for the models that read them."""
BYTES_OF_TABLE = 12
"""Approximate bytes of an event in the table of events."""
SCRATCH = ".scratch-preparation"
"""Folder in the artefact for what tasks hand each other; gone when it is built."""


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class _Build:
    """State of one build; its methods run in the order in which ``build_features`` calls them."""

    def __init__(self, config: FeaturesConfig, out: Path, scratch: Path, memory: int) -> None:
        self.config = config
        self.out = out
        self.scratch = scratch
        self.memory = memory
        self.report = FeaturesReport()
        self.quarantine = Quarantine(out / "quarantine")
        self.forgotten = ForgottenUsers(config.forgotten)
        self.features: tuple[str, ...] = ()
        self.written: list[WrittenSequences] = []
        self.event_types = pl.Series("id", dtype=pl.String)
        self.first_day = 0

    def read(self) -> Ingested:
        """Read the event files, then the online events."""
        parts = self._prepare()
        report = self.report
        report.rows_in = sum(part.rows_in for part in parts)
        if report.rows_in == 0:
            names = ", ".join(str(path) for path in self.config.events.paths)
            raise ValueError(f"{names}: no data rows; there must be at least one event")
        for part in parts:
            self.quarantine.take(part.quarantine)
        num_bad = sum(part.num_bad for part in parts)
        max_bad = self.config.filters.max_bad_share
        self.quarantine.check_share("event", num_bad, report.rows_in, max_bad)
        report.quarantined = self.quarantine.counts.copy()
        for part in parts:
            report.filtered.update(part.dropped)
        if not any(part.num_records for part in parts):
            raise self._nothing_left()
        self._check_room(parts)
        texts, codes = merge_texts(parts)
        min_time = min((part.min_time for part in parts if part.min_time is not None), default=0)
        ingested = Ingested(parts, texts, codes, min_time)
        if not ingested.has_time:
            report.warnings.append(
                "the events have no event_time: time decay, global_time splits and the context "
                "features of time are off"
            )
        names_of = self.config.context_features
        self.features = tuple(
            name for name in names_of if ingested.has_time or not FEATURES[name].needs_time
        )
        self.first_day = min_time // MICROS_PER_DAY
        return ingested

    def _prepare(self) -> list[Prepared]:
        """Prepare every partition of the files, then those collected online."""
        config, now = self.config, self.config.now or datetime.now(UTC)
        files = open_events(config.events)
        online = config.online_events
        later = open_events(online) if online else []
        if later and EVENT_TIME not in files[0].schema:
            raise ValueError(
                f"{files[0].path} has no event_time, so nothing says which of its events come "
                "before those collected online; map a column to event_time, or leave out "
                "online_events"
            )
        present = {name for file in [*files, *later] for name in file.schema}
        fields = tuple(name for name, one in OPTIONAL_FIELDS.items() if one.column in present)

        def tasks(source: SourceConfig, first: int, **more: Any) -> list[PrepareTask]:
            number = config.file_groups or number_of_partitions(source, self.memory)
            return [
                PrepareTask(
                    source=part, filters=config.filters, fields=fields, now=now,
                    folder=self.scratch / f"partition-{place:05d}",
                    forgotten=config.forgotten, **more,
                )
                for place, part in enumerate(divide_files(source, number), first)
            ]  # fmt: skip

        parts = list(in_order(prepare_partition, tasks(config.events, 0)))
        if online is not None:
            ids, known = self._catalogue_ids(), None
            if ids is not None:
                known = self.scratch / "known_items.ipc"
                known_items(parts, ids, known)
            behind = tasks(online, len(parts), online=True, known_items=known)
            parts += in_order(prepare_partition, behind)
        return parts

    def _check_room(self, parts: list[Prepared]) -> None:
        """Stop before the long part where the disk cannot hold it."""
        num = sum(part.num_records for part in parts)
        of_sequences = 16 + len(self.config.context_features)
        an_event = record_dtype(parts[0].fields).itemsize
        an_event += of_sequences
        an_event += BYTES_OF_TABLE if self.config.write_events else 0
        free = shutil.disk_usage(self.out).free
        if num * an_event > free:
            raise OSError(
                f"preparing {num:,} events needs {num * an_event / 1e9:.1f} GB of disk more, "
                f"{free / 1e9:.1f} GB are free on {self.out}: make room, put the workspace on a "
                "larger disk, or set features.write_events = false"
            )

    def _catalogue_ids(self) -> pl.Series | None:
        items = self.config.items
        if items is None:
            return None
        tables = [read_whole(path, items, (ITEM_ID,)) for path in items.paths]
        ids = [one.select(as_text(ITEM_ID, one.schema[ITEM_ID])) for one in tables]
        return pl.concat(ids)[ITEM_ID].drop_nulls().unique()

    def _previous(self, name: str) -> pl.Series | None:
        if self.config.previous is None:
            return None
        found = read_vocabulary(self.config.previous / "vocabularies" / f"{name}.parquet")
        if name != "users" or not self.forgotten:
            return found
        return self.forgotten.renamed(found, read_applied(self.config.previous))

    def _previous_types(self) -> pl.Series | None:
        if self.config.previous is None:
            return None
        described = json.loads((self.config.previous / FEATURES_FILE).read_text(encoding="utf-8"))
        return pl.Series(described[EVENT_TYPES]) if EVENT_TYPES in described else None

    def order(self, ingested: Ingested) -> KeptEvents:
        """Sort into histories, drop repetitions, caps and the k-core; give rows."""
        parts, scratch = ingested.parts, self.scratch
        users, items = (
            merge_ids(parts, name, self._previous(f"{name}s"), scratch / f"{name}_ids.ipc")
            for name in ("user", "item")
        )
        paths = {"user": users.path, "item": items.path}
        for _ in in_order(partial(rank_partition, ids=paths), parts):
            pass
        ranged = ranges(parts, ingested.codes, len(users.ids), scratch / "ranged")
        # A file that is written over needs no new pages.
        (parts[0].folder / "records").replace(scratch / "ordered")
        for part in parts[1:]:
            (part.folder / "records").unlink()
        cap = self.config.filters.max_user_events
        num_users, num_items = len(users.ids), len(items.ids)
        ordered = order_events(ranged, num_users, num_items, cap, scratch / "ordered")
        core = ordered.core(self.config.filters, scratch)
        report = self.report
        report.duplicates = ordered.num_duplicates
        report.over_user_cap = ordered.num_over_cap
        report.events = int(core.user_counts.sum())
        report.dropped_by_k_core = ordered.length - report.events
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
            ordered, core, DenseRows.of(users, core.users), DenseRows.of(items, core.items), scratch
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

    def write_sequences(self, events: KeptEvents, texts: TextColumns) -> None:
        """Write the sequences, then where their splits end."""
        splits, directory = self.config.splits, self.out / "sequences" / GIVEN
        has_time = "time" in events.ordered.ranges[0].fields
        if splits.kind == "global_time" and not has_time:
            raise ValueError(
                "a global_time split needs event_time, which the events do not have; use "
                "leave_one_out"
            )
        chosen = self.config.target_types
        names, previous = pl.Series(texts.types), self._previous_types()
        types = extended(names, previous)
        type_rows = find_rows(names, types)
        negative = names.is_in(self.config.filters.negative_types).to_numpy()
        allowed = (names.is_in(chosen).to_numpy() if chosen else True) & ~negative
        flags = {TARGETS: allowed} if chosen or negative.any() else {}
        if negative.any():
            flags[NEGATIVE] = negative
        files = SequenceFiles(
            directory=directory,
            features=self.features,
            num_events=self.report.events,
            has_time=has_time,
            type_rows=type_rows if len(types) > 1 else type_rows[:0],
            flags=flags,
        )
        self.written = write_all_sequences(
            events.ordered.ranges, events.places(), events.rows, files, self.first_day
        )
        codes = sum((one.type_counts for one in self.written), Counter[int]())
        self.report.event_types = {names[code]: codes[code] for code in sorted(codes)}
        has_negative = 0 < int(negative[sorted(codes)].sum()) < len(codes)
        several = previous is not None or len(codes) > 1
        # An increment reads what the models before it read.
        reads_types = self.config.history_event_types or has_negative or previous is not None
        self.event_types = types if several and reads_types else types.clear()
        kept = {EVENT_TYPES: len(self.event_types), NEGATIVE: has_negative}
        for name, keeps in (kept | {TARGETS: chosen or has_negative}).items():
            if not keeps:
                (directory / f"{name}.npy").unlink(missing_ok=True)
        if spans := [one.span for one in self.written if one.span]:
            self.report.first_time = as_iso(min(low for low, _ in spans) // 1_000_000)
            self.report.last_time = as_iso(max(high for _, high in spans) // 1_000_000)
        self._write_splits(events, directory, has_targets=bool(chosen) or has_negative)

    def _write_splits(self, events: KeptEvents, directory: Path, *, has_targets: bool) -> None:
        """Write where each user's splits end, and count their labels."""
        targets = np.load(directory / f"{TARGETS}.npy", mmap_mode="r") if has_targets else None
        ends = self._ends(events, targets)
        np.save(directory / "offsets.npy", events.offsets)
        np.save(directory / "train_end.npy", events.offsets[:-1] + ends.train)
        np.save(directory / "validation_end.npy", events.offsets[:-1] + ends.validation)
        validation, test = num_held_out(events.offsets, ends, targets)
        self.report.labels = {
            "train": int((ends.train - (ends.train > 0)).sum()),
            "validation": int(validation.sum()),
            "test": int(test.sum()),
        }
        chosen = self.config.target_types
        if chosen and self.config.newest is None and not (validation.any() and test.any()):
            raise ValueError(
                f"evaluation.target_types = {list(chosen)}: validation or test has no such event; "
                f"there are {sorted(self.report.event_types)}. Name a type that both have"
            )

    def _ends(self, events: KeptEvents, targets: Flags | None) -> Ends:
        counts, kind, report = np.diff(events.offsets), self.config.splits.kind, self.report
        if self.config.newest is not None:
            return newest_of_some(self._times(), events.offsets, self.config.newest)
        if kind == "auto" and "time" not in events.ordered.ranges[0].fields:
            kind, report.split_reason = "leave_one_out", "events have no times"
        if kind == "leave_one_out":
            return leave_one_out(counts, targets)
        num_days = max(len(one.day_counts) for one in self.written)
        day_counts = np.sum(
            [np.pad(one.day_counts, (0, num_days - len(one.day_counts))) for one in self.written],
            axis=0,
        )
        try:
            cuts: Cuts = midnights(day_counts, self.first_day, self.config.splits)
        except ValueError:
            if kind == "global_time":
                raise
            report.split_reason = f"all events are of {len(day_counts)} days"
            return leave_one_out(counts, targets)
        ends = global_time(self._times(), events.offsets, cuts)
        held_out = num_held_out(events.offsets, ends, targets)
        if kind == "auto" and (why := why_not_by_time(ends, held_out)):
            report.split_reason = why
            return leave_one_out(counts, targets)
        report.split_kind = "global_time"
        report.validation_from, report.test_from = (as_iso(cut) for cut in cuts)
        return ends

    def _times(self) -> Rows:
        times: Rows = np.load(self.out / "sequences" / GIVEN / "times.npy", mmap_mode="r")
        return times

    def write_events(self, events: KeptEvents, texts: TextColumns) -> None:
        """Write the table of the kept events."""
        if self.config.write_events:
            write_event_tables(events.ordered.ranges, events.rows, texts, self.out / "events")

    def _catalogue_only(self, items: pl.DataFrame) -> pl.DataFrame:
        """Return the catalogue items that can be recommended without an event."""
        chosen = self.config.catalogue_only_items
        if chosen == "auto":
            return described(items) if self.config.filters.min_item_events <= 1 else items.clear()
        return items if chosen else items.clear()

    def write_tables(self, events: KeptEvents) -> None:
        """Write catalogue, users, their features and every vocabulary."""
        config, report = self.config, self.report
        before = self.quarantine.counts.copy()
        max_bad = config.filters.max_bad_share
        items = users = None
        if config.items:
            items = read_table(config.items, "item_id", self.quarantine, max_bad)
        if config.users:
            users = read_table(config.users, "user_id", self.quarantine, max_bad, self.forgotten)
        report.quarantined_in_tables = self.quarantine.counts - before
        item_ids, user_ids = events.items.ids, events.users.ids
        if items is not None:
            item_ids = extended(self._catalogue_only(items)["item_id"], item_ids)
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
            people, config.user_features, self.out, config.previous
        )
        report.warnings += warnings
        report.users, report.items = len(user_ids), len(item_ids)
        if self.forgotten:
            self.forgotten.counts["events"] = report.filtered[FORGOTTEN]
            report.forgotten = self.forgotten.counts
            write_json(self.out / APPLIED, dict(self.forgotten.until.moments))
        described = {
            "num_user_rows": report.users + 1,
            "num_item_rows": report.items + 1,
            "num_categories": len(categories) + 1,
            "user_features": [{"name": n, "cardinality": c} for n, c in cardinality.items()],
            "context_features": [
                {"name": name, "cardinality": FEATURES[name].cardinality} for name in self.features
            ],
        }
        if len(self.event_types):
            described[EVENT_TYPES] = self.event_types.to_list()
        write_json(self.out / FEATURES_FILE, described)


def as_iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def build_features(config: FeaturesConfig, out: Path, *, memory: int = 8 << 30) -> FeaturesReport:
    """Build the whole artefact in ``out``, an empty folder."""
    out.mkdir(parents=True, exist_ok=True)
    scratch = out / SCRATCH
    # What a killed build left.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        build = _Build(config, out, scratch, memory)
        ingested = build.read()
        events = build.order(ingested)
        build.write_sequences(events, ingested.texts)
        build.write_events(events, ingested.texts)
        build.write_tables(events)
        shown = (sorted((part.folder / SHOWN).glob("*.parquet")) for part in ingested.parts)
        if files := [file for own in shown for file in own]:
            write_shown(files, out)
    finally:
        forget_texts()
        shutil.rmtree(scratch, ignore_errors=True)
    write_json(out / "report.json", build.report.as_dict())
    return build.report
