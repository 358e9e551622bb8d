"""The raw tables: column names, file formats, filters and splits.

Every column name is here once. External keys are ``*_id`` strings, dense rows ``*_row`` int64
with row 0 for unknown.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from features.forget_list import NOBODY, ForgetList
from features.point_in_time import FEATURES

SEPARATED = (".csv", ".tsv", ".txt", ".inter")
JSON_LINES = (".jsonl", ".ndjson")
"""Endings of files of text."""
USER_ID = "user_id"
ITEM_ID = "item_id"
EVENT_TIME = "event_time"
SEQUENCE_INDEX = "sequence_index"
EVENT_TYPE = "event_type"
VALUE = "value"
DOMAIN = "domain"
SESSION_ID = "session_id"
REQUEST_ID = "request_id"
SLOT = "slot"
"""Place in the shown list, 0 for its top."""
PROPENSITY = "propensity"
"""Probability that the policy shows this item in this slot, in (0, 1]."""
CLEAN, QUARANTINE = "events-*.parquet", "quarantine"
"""Files and folder of a cleaned partition."""
EVENT_COLUMNS = (
    USER_ID,
    ITEM_ID,
    EVENT_TIME,
    SEQUENCE_INDEX,
    EVENT_TYPE,
    VALUE,
    DOMAIN,
    SESSION_ID,
    REQUEST_ID,
    SLOT,
    PROPENSITY,
)
HISTORY_TYPES = ("view", "click", "cart", "purchase", "like")
"""Types of visitors' actions in the API; an impression only records the shown item."""
REFUSAL_TYPES = frozenset({"hide", "dislike", "undo"})
"""Types by which a visitor refuses an item, and takes that back."""
NEGATIVE_TYPES = ("dislike", "downvote", "hide", "refund", "remove_from_cart", "return", "unlike")
"""Types that say no to an item, by default."""
TEXT_COLUMNS = (USER_ID, ITEM_ID, EVENT_TYPE, DOMAIN, SESSION_ID, REQUEST_ID)

TimeUnit = Literal["s", "ms", "us"]
GIVEN = "given"
"""Folder of the sequences: events of one time are in the order in which they were given."""
SplitKind = Literal["leave_one_out", "global_time", "auto"]
EARLIEST_YEAR = 1990
"""Earlier event times are zeros and broken clocks; their rows are quarantined."""


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """How values are written in the raw files."""

    separator: str = ","
    """Between the values of a CSV file."""
    time_unit: TimeUnit = "s"
    """Unit of event times given as numbers; ISO texts and dates need none."""
    time_format: str | None = None
    """Format of event times that are texts but not ISO, for example "%d.%m.%Y %H:%M"."""
    time_zone: str = "UTC"
    """Zone of times that carry none themselves, for example "Europe/Berlin"."""
    list_separator: str = "|"
    """Between the categories of one item where they are one text."""
    decimal_comma: bool = False
    """True if numbers in texts are written 1.234,50."""

    def source(self, paths: tuple[Path, ...], columns: Mapping[str, str]) -> SourceConfig:
        """Describe the files of one table that are written so."""
        shared = {part.name: getattr(self, part.name) for part in fields(FileFormat)}
        return SourceConfig(paths=paths, columns=columns, **shared)


@dataclass(frozen=True, kw_only=True)
class SourceConfig(FileFormat):
    """Files of one table and how their columns are named."""

    paths: tuple[Path, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our column name -> the file's; a column that is not named is looked for by our name, and one
    that is mapped to "" is not read."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("paths must name at least one file, got none")
        try:
            ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(
                f"time_zone must be a name like UTC or Europe/Berlin, got {self.time_zone!r}"
            ) from None
        if self.time_unit not in get_args(TimeUnit):
            raise ValueError(
                f"time_unit must be one of {get_args(TimeUnit)}, got {self.time_unit!r}"
            )


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """Which events are kept, and when a source is too broken to use."""

    event_types: tuple[str, ...] = ()
    """Kept event types; empty keeps all. Those of online events are ``online_types``."""
    online_types: tuple[str, ...] = HISTORY_TYPES
    """Kept types of online events (data.online_events)."""
    shown_types: tuple[str, ...] = ()
    """Types of impressions: no part of histories; a ranker learns from items not chosen."""
    negative_types: tuple[str, ...] = NEGATIVE_TYPES
    """Types that say no: no model counts such an event or has it as a label. It stays in the
    history, where two-tower and sequence model read its type, and its item is not listed again."""
    min_value: float | None = None
    """Events with a smaller value (a low rating) are left out; online events have no ratings."""
    min_user_events: int = 0
    """Events that a user must have, below which all of theirs are left out."""
    min_item_events: int = 0
    """k-core: repeated until every remaining user and item has both minima; 0 or 1 disables it."""
    max_user_events: int | None = 10_000
    """Most events of a user, the latest ones; a crawler has more."""
    max_bad_share: float = 0.01
    """The run stops when a larger share of a table's rows has to be quarantined."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_bad_share <= 1:
            raise ValueError(f"max_bad_share must be in [0, 1], got {self.max_bad_share}")
        for name in ("event_types", "online_types"):
            if both := set(getattr(self, name)) & set(self.shown_types):
                raise ValueError(
                    f"{sorted(both)} are in {name} and in shown_types; what was shown is no part "
                    "of a history, so name each type in one of them"
                )
        if refused := set(self.online_types) & REFUSAL_TYPES:
            raise ValueError(
                f"{sorted(refused)} are in online_types; what a visitor refuses is no part of a "
                "history, remove it"
            )
        for name in ("min_user_events", "min_item_events"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.max_user_events is not None and self.max_user_events < 1:
            raise ValueError(f"max_user_events must be >= 1, got {self.max_user_events}")


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """How labels are divided into train, validation and test."""

    kind: SplitKind = "leave_one_out"
    """Held-out events: each user's last two events, or the latest events of all. ``auto`` takes
    the latter where events have times and enough users have some on both sides of its cuts; in a
    run with ``auto.enabled = false`` the former."""
    validation_share: float = 0.1
    """Share of the events before those of test, for ``global_time``."""
    test_share: float = 0.1
    """Shares of the events, latest last, for ``global_time``."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(SplitKind):
            raise ValueError(f"kind must be one of {get_args(SplitKind)}, got {self.kind!r}")
        held_out = self.validation_share + self.test_share
        if min(self.validation_share, self.test_share) <= 0 or held_out >= 1:
            raise ValueError(
                "validation_share and test_share must be > 0 and add up to less than 1, got "
                f"{self.validation_share} and {self.test_share}"
            )


@dataclass(frozen=True, kw_only=True)
class NewestSplit:
    """Hold out the newest events of some users, as a day's increment is judged by."""

    since: int
    """Unix seconds; earlier events are in train."""
    share: float
    """Share of the users with events since then whose events since then are the test."""
    min_users: int = 0
    """At least this many are drawn, and at most half of them."""
    seed: int = 0
    """Draws the users, by their rows."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"the share of held-out users must be in [0, 1), got {self.share}")


@dataclass(frozen=True, kw_only=True)
class FeatureChoice:
    """Which features are made."""

    user_features: tuple[str, ...] = ()
    """User columns that the two-tower reads; numbers fall into ten equal parts."""
    context_features: tuple[str, ...] = tuple(FEATURES)
    """Names of features in point_in_time."""
    history_event_types: bool = False
    """Whether models read the types of a history's events (view, cart, purchase), where the data
    has several."""
    catalogue_only_items: bool | Literal["auto"] = False
    """Whether catalogue items that no event names can be recommended, by their content. ``auto``
    takes those with a text or another column, unless ``filters.min_item_events`` > 1, in a run with
    ``auto.enabled``."""
    write_events: bool = True
    """True if the kept events are written as a table too, which adapters of domains read."""
    file_groups: int = 0
    """Groups of event files that are read apart, at most one a file; 0 chooses by their size, the
    memory and the machines. The artefact is the same."""


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig(FeatureChoice):
    """Everything that turns raw files into features."""

    events: SourceConfig
    online_events: SourceConfig | None = None
    """Events that a server collected since: of items of the catalogue or of ``events`` alone, of
    the types in ``filters.online_types``."""
    items: SourceConfig | None = None
    users: SourceConfig | None = None
    filters: FilterConfig = field(default_factory=FilterConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)
    target_types: tuple[str, ...] = ()
    newest: NewestSplit | None = None
    """Split that replaces ``splits``."""
    previous: Path | None = None
    """An earlier artefact whose rows stay as they are; new ids follow."""
    forgotten: ForgetList = NOBODY
    """Users whose rows are left out."""
    now: datetime | None = None
    """Events more than a day later are in the future; the clock by default."""

    def __post_init__(self) -> None:
        if self.file_groups < 0:
            raise ValueError(f"file_groups must be >= 0, got {self.file_groups}; 0 chooses")
        for name in self.context_features:
            if name not in FEATURES:
                near = difflib.get_close_matches(name, FEATURES, n=1, cutoff=0.5)
                hint = f", did you mean {near[0]!r}" if near else ""
                raise ValueError(
                    f"no context feature {name!r}{hint}? There are {', '.join(FEATURES)}"
                )
