"""Raw events and catalogue to everything that models read: the build_features artefact.

    files -> validated rows | quarantine -> codes in buckets -> duplicates out -> k-core
          -> dense rows -> sequences in every tie order, splits, features of the moment
          -> events by day, catalogue, users, vocabularies

``build_features`` writes into a folder that its caller makes and publishes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.events import REASON, scan_events
from features.histories import (
    MICROS,
    RowMaps,
    SequenceWriter,
    gathered_ranges,
    usable_features,
)
from features.point_in_time import FEATURES
from features.scan import ROW, naming, scan_file
from features.schema import FilterConfig, SourceConfig, SplitConfig
from features.spill import (
    EVENT_DTYPE,
    Codes,
    Core,
    Spill,
    k_core,
    latest,
    sorted_by_user,
    without_duplicates,
)
from features.splits import SECONDS_PER_DAY, Cuts, Ends, global_time, leave_one_out, midnights
from features.tables import (
    aligned,
    catalogue,
    read_table,
    write_categories,
    write_user_features,
)
from features.vocabulary import extended, read_vocabulary, rows_of, write_vocabulary

Rows = NDArray[np.int64]

BATCH_ROWS = 1_000_000
EVENTS_PER_BUCKET = 4_000_000
BYTES_PER_EVENT = 8
"""A low guess of an event's size in a compressed file; it only decides the number of buckets."""
FILE_SHIFT = 40
"""A global row number is (file number << 40) + row in the file."""


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """Everything that turns raw files into features."""

    events: SourceConfig
    items: SourceConfig | None = None
    users: SourceConfig | None = None
    filters: FilterConfig = field(default_factory=FilterConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)
    user_columns: tuple[str, ...] = ()
    """User columns that become features."""
    context_features: tuple[str, ...] = tuple(FEATURES)
    catalogue_only_items: bool = False
    """Whether catalogue items that no event names get a row as well (cold items)."""
    write_events: bool = True
    """Whether the kept events are written by day as well."""
    previous: Path | None = None
    """An earlier artefact whose rows stay as they are; new ids follow."""
    now: datetime | None = None
    """Events more than a day later are in the future; the clock by default."""
    seed: int = 0
    """Of the shuffled order of tied events."""


@dataclass
class FeaturesReport:
    """What became of every row."""

    rows_in: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    over_user_cap: int = 0
    dropped_by_k_core: int = 0
    k_core_rounds: int = 0
    events: int = 0
    users: int = 0
    items: int = 0
    labels: dict[str, int] = field(default_factory=dict)
    first_time: str | None = None
    last_time: str | None = None
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        for name in ("quarantined", "filtered"):
            values[name] = dict(sorted(values[name].items()))
        return values


class _Build:
    """State of one build; its methods run in the order in which ``build_features`` calls them."""

    def __init__(self, config: FeaturesConfig, out: Path) -> None:
        self.config = config
        self.out = out
        self.report = FeaturesReport()
        self.users = Codes("users")
        self.items = Codes("items")
        self.types = Codes("types")
        self.now = config.now or datetime.now(UTC)
        size = sum(path.stat().st_size for path in config.events.paths if path.exists())
        num_buckets = 1 + size // (EVENTS_PER_BUCKET * BYTES_PER_EVENT)
        self.spill = Spill(out / "spill", int(num_buckets))
        self.has_times = True
        self.times: tuple[int, int] | None = None

    def read(self) -> None:
        """Read every event once: bad rows to the quarantine, the others into the buckets."""
        paths = self.config.events.paths
        scans = [scan_events(path, self.config.events, self.now) for path in paths]
        with_time = ["event_time" in scan.collect_schema().names() for scan in scans]
        if len(set(with_time)) > 1:
            without = paths[with_time.index(False)]
            raise ValueError(f"{without} has no event_time but other event files have one")
        self.has_times = with_time[0]
        for number, (path, scan) in enumerate(zip(paths, scans, strict=True)):
            self._read_file(number, path, scan)
        self._check_share()

    def _read_file(self, number: int, path: Path, scan: pl.LazyFrame) -> None:
        names = scan.collect_schema().names()
        filters = self.config.filters
        good = pl.col(REASON).is_null()
        event_type = "event_type" if "event_type" in names else None
        columns = [
            good.alias("good"),
            pl.col(ROW).cast(pl.Int64),
            REASON,
            pl.when(good).then("user_id").cast(self.users.dtype).to_physical().alias("user"),
            pl.when(good).then("item_id").cast(self.items.dtype).to_physical().alias("item"),
            (self.types.of(event_type) if event_type else pl.lit(0, pl.UInt32)).alias("type"),
            (pl.col("event_time").to_physical() if self.has_times else pl.lit(0)).alias("time"),
            (pl.col("sequence_index") if "sequence_index" in names else pl.lit(0)).alias(
                "sequence"
            ),
            self._filtered(filters, names).alias("filtered"),
        ]
        bad: list[pl.DataFrame] = []
        with naming(path):
            batches = scan.select(columns).collect_batches(
                chunk_size=BATCH_ROWS, maintain_order=True
            )
            for batch in batches:
                self.report.rows_in += batch.height
                bad.append(batch.filter(~pl.col("good")).select(ROW, REASON))
                self._spill(batch.filter("good"), number)
        self._quarantine(number, path, pl.concat(bad) if bad else None)

    @staticmethod
    def _filtered(filters: FilterConfig, names: list[str]) -> pl.Expr:
        """Name the filter that leaves a good row out, null for none."""
        result = pl.lit(None, dtype=pl.String)
        if filters.event_types and "event_type" in names:
            other = ~pl.col("event_type").is_in(filters.event_types)
            result = pl.when(other).then(pl.lit("other event_type")).otherwise(result)
        if filters.min_value is not None and "value" in names:
            low = pl.col("value") < filters.min_value
            result = pl.when(low).then(pl.lit("value below min_value")).otherwise(result)
        return result

    def _spill(self, batch: pl.DataFrame, number: int) -> None:
        left_out = batch["filtered"].drop_nulls()
        if len(left_out):
            counts = left_out.value_counts()
            self.report.filtered.update(dict(counts.iter_rows()))
            batch = batch.filter(pl.col("filtered").is_null())
        events = np.empty(batch.height, EVENT_DTYPE)
        for name in ("user", "item", "type", "time", "sequence"):
            events[name] = batch[name].fill_null(0).to_numpy()
        events["row"] = batch[ROW].to_numpy() + (number << FILE_SHIFT)
        self.spill.append(events)

    def _quarantine(self, number: int, path: Path, bad: pl.DataFrame | None) -> None:
        if bad is None or not bad.height:
            return
        self.report.quarantined.update(dict(bad[REASON].value_counts().iter_rows()))
        raw = scan_file(path, self.config.events)
        columns = [name for name in raw.collect_schema().names() if name != ROW]
        rows = raw.with_columns(pl.col(ROW).cast(pl.Int64)).join(
            bad.lazy(), on=ROW, how="inner", maintain_order="left"
        )
        directory = self.out / "quarantine"
        directory.mkdir(exist_ok=True)
        rows.select(
            pl.lit(str(path)).alias("file"),
            ROW,
            REASON,
            pl.struct(pl.col(columns).cast(pl.String, strict=False))
            .struct.json_encode()
            .alias("raw"),
        ).sink_parquet(directory / f"part-{number:05d}.parquet")

    def _check_share(self) -> None:
        num_bad = sum(self.report.quarantined.values())
        limit = self.config.filters.max_bad_share
        if self.report.rows_in == 0:
            names = ", ".join(str(path) for path in self.config.events.paths)
            raise ValueError(f"{names}: no data rows; the file needs at least one event")
        if num_bad > limit * self.report.rows_in:
            reasons = ", ".join(f"{text}: {n}" for text, n in self.report.quarantined.most_common())
            raise ValueError(
                f"{num_bad} of {self.report.rows_in} event rows are bad, more than "
                f"max_bad_share = {limit} allows ({reasons}). The rows are in "
                f"{self.out / 'quarantine'}; mend the source or raise filters.max_bad_share"
            )

    def clean(self) -> Core:
        """Order every bucket, drop duplicates, cap the crawlers, find the k-core.

        Raises:
            ValueError: If nothing is left.
        """
        filters, report = self.config.filters, self.report
        for bucket, events in self.spill.buckets():
            ordered = without_duplicates(sorted_by_user(events))
            report.duplicates += len(events) - len(ordered)
            if filters.max_user_events is not None:
                capped = latest(ordered, filters.max_user_events)
                report.over_user_cap += len(ordered) - len(capped)
                ordered = capped
            self.spill.replace(bucket, ordered)
        core = k_core(self.spill, filters.min_user_events, filters.min_item_events)
        report.k_core_rounds = core.num_rounds
        report.events = int(core.user_counts.sum())
        lost = sum(report.quarantined.values()) + sum(report.filtered.values())
        lost += report.duplicates + report.over_user_cap
        report.dropped_by_k_core = report.rows_in - lost - report.events
        if report.events == 0:
            raise ValueError(
                f"no event is left of {report.rows_in}: {lost} were bad, filtered or repeated and "
                f"{report.dropped_by_k_core} fell to min_user_events = {filters.min_user_events}, "
                f"min_item_events = {filters.min_item_events}; lower these"
            )
        if np.count_nonzero(core.users) == 1:
            report.warnings.append("all events are of one user: nothing can be learnt from others")
        return core

    def map_rows(self, core: Core) -> tuple[RowMaps, dict[str, pl.Series]]:
        """Give every user and item that is left its dense row."""
        maps, vocabularies = {}, {}
        for name, codes, kept in (
            ("users", self.users, core.users),
            ("items", self.items, core.items),
        ):
            left = np.flatnonzero(kept).astype(np.uint32)
            ids = codes.ids(left)
            vocabulary = extended(ids, self._previous(name))
            rows = np.zeros(len(kept), np.int64)
            rows[left] = rows_of(ids, vocabulary)
            maps[name], vocabularies[name] = rows, vocabulary
        counts = np.zeros(len(vocabularies["users"]) + 1, np.int64)
        counts[maps["users"][core.users]] = core.user_counts[core.users]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return RowMaps(maps["users"], maps["items"], offsets), vocabularies

    def _previous(self, name: str) -> pl.Series | None:
        if self.config.previous is None:
            return None
        return read_vocabulary(self.config.previous / "vocabularies" / f"{name}.parquet")

    def write_sequences(self, maps: RowMaps) -> None:
        """Write the sequences of every tie order, with their split ends."""
        config = self.config
        features = usable_features(config.context_features, has_times=self.has_times)
        if not self.has_times:
            self.report.warnings.append(
                "the events have no event_time: popularity does not decay, tied orders and the "
                "context features that need a time are off"
            )
        orders = config.splits.tie_orders if self.has_times else config.splits.tie_orders[:1]
        writers = [
            SequenceWriter(
                self.out / "sequences" / order,
                order,
                self.has_times,
                features,
                config.seed,
                int(maps.offsets[-1]),
            )
            for order in orders
        ]
        counts = np.diff(maps.offsets)
        cuts = self._cuts(maps) if config.splits.kind == "global_time" else None
        ends = Ends(np.zeros_like(counts), np.zeros_like(counts)) if cuts else leave_one_out(counts)
        for first, end, events in gathered_ranges(
            self.spill, maps, self.out / "spill" / "ranges", EVENTS_PER_BUCKET
        ):
            for writer in writers:
                writer.append(events)
            if len(events):
                self._note_times(events["time"])
            if cuts:
                part = global_time(
                    events["time"] // MICROS, events["user"] - first, end - first, cuts
                )
                ends.train[first:end], ends.validation[first:end] = part
        for writer in writers:
            writer.close(maps.offsets, ends)
        self.report.labels = {
            "train": int((ends.train - (ends.train > 0)).sum()),
            "validation": int((ends.validation - ends.train).sum()),
            "test": int((counts - ends.validation).sum()),
        }
        self._write_described(maps, features)

    def _cuts(self, maps: RowMaps) -> Cuts:
        if not self.has_times:
            raise ValueError(
                "a global_time split needs event_time; use splits.kind = 'leave_one_out'"
            )
        per_day: Counter[int] = Counter()
        for _, events in self.spill.buckets():
            kept = (maps.user_rows[events["user"]] > 0) & (maps.item_rows[events["item"]] > 0)
            days, counts = np.unique(
                events["time"][kept] // (MICROS * SECONDS_PER_DAY), return_counts=True
            )
            per_day.update(dict(zip(days.tolist(), counts.tolist(), strict=True)))
        first, last = min(per_day), max(per_day)
        dense = np.array([per_day[day] for day in range(first, last + 1)])
        return midnights(dense, first, self.config.splits)

    def _note_times(self, times: Rows) -> None:
        low, high = int(times.min()), int(times.max())
        if self.times:
            low, high = min(low, self.times[0]), max(high, self.times[1])
        self.times = (low, high)
        if self.has_times:
            for name, micros in (("first_time", low), ("last_time", high)):
                moment = datetime.fromtimestamp(micros // MICROS, UTC)
                setattr(self.report, name, moment.isoformat())

    def _write_described(self, maps: RowMaps, features: tuple[Any, ...]) -> None:
        self.context = [{"name": f.name, "cardinality": f.cardinality} for f in features]

    def write_tables(self, vocabularies: Mapping[str, pl.Series]) -> None:
        """Write catalogue, users, their features and every vocabulary."""
        config = self.config
        for name, vocabulary in vocabularies.items():
            write_vocabulary(vocabulary, self.out / "vocabularies" / f"{name}.parquet")
        items = read_table(config.items, "item_id") if config.items else None
        separator = config.items.list_separator if config.items else "|"
        laid_out = catalogue(items, vocabularies["items"], separator)
        laid_out.write_parquet(self.out / "items.parquet")
        categories = write_categories(laid_out, self.out, self._previous("categories"))
        users = read_table(config.users, "user_id") if config.users else None
        people = aligned(users, vocabularies["users"], "user_id", "user_row")
        people.write_parquet(self.out / "users.parquet")
        cardinality, warnings = write_user_features(people, config.user_columns, self.out)
        self.report.warnings += warnings
        self.report.users = len(vocabularies["users"])
        self.report.items = len(vocabularies["items"])
        described = {
            "num_user_rows": self.report.users + 1,
            "num_item_rows": self.report.items + 1,
            "num_categories": len(categories) + 1,
            "user_features": [{"name": n, "cardinality": c} for n, c in cardinality.items()],
            "context_features": self.context,
        }
        (self.out / "features.json").write_text(json.dumps(described, indent=2) + "\n")

    def with_cold_items(self, vocabularies: dict[str, pl.Series]) -> dict[str, pl.Series]:
        """Append the catalogue's items that no event names, where the config asks for them."""
        if not self.config.catalogue_only_items or self.config.items is None:
            return vocabularies
        ids = read_table(self.config.items, "item_id")["item_id"]
        return {**vocabularies, "items": extended(ids, vocabularies["items"])}


def build_features(config: FeaturesConfig, out: Path) -> FeaturesReport:
    """Build the whole artefact in ``out``, an empty folder.

    Raises:
        ValueError: If a file or its rows cannot be used; names the file and what to do.
    """
    build = _Build(config, out)
    build.read()
    core = build.clean()
    maps, vocabularies = build.map_rows(core)
    build.write_sequences(maps)
    build.write_tables(build.with_cold_items(vocabularies))
    report = build.report
    (out / "report.json").write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    return report
