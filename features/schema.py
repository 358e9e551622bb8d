"""The tables that go in: column names, and what a run must say about its files.

Every column name stands here once. External keys are ``*_id`` strings, dense rows ``*_row`` int64
with row 0 for unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

EVENT_COLUMNS = (
    "user_id",
    "item_id",
    "event_time",
    "sequence_index",
    "event_type",
    "value",
    "domain",
    "session_id",
    "request_id",
    "slot",
    "propensity",
)

TimeUnit = Literal["s", "ms", "us"]
TieOrder = Literal["given", "shuffled"]


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Files of one table and how their columns are named.

    Raises:
        ValueError: If no path is given.
    """

    paths: tuple[Path, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our column name -> the file's; a column that is not named is looked for by our name."""
    separator: str = ","
    """Between the values of a CSV file."""
    time_unit: TimeUnit = "s"
    """Unit of event times given as numbers; ISO texts and dates need none."""
    list_separator: str = "|"
    """Between the categories of one item where they are one text."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("paths must name at least one file, got none")
        if self.time_unit not in get_args(TimeUnit):
            raise ValueError(
                f"time_unit must be one of {get_args(TimeUnit)}, got {self.time_unit!r}"
            )


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """Which events count, and when a source is too broken to go on."""

    event_types: tuple[str, ...] = ()
    """Kept event types; empty keeps all."""
    min_value: float | None = None
    """Events with a smaller value (a low rating) are left out."""
    min_user_events: int = 0
    min_item_events: int = 0
    """Iterative k-core: both hold for what is left. 0 and 1 switch it off."""
    max_user_events: int | None = 10_000
    """Only the latest so many events of one user are kept; a crawler has more."""
    max_bad_share: float = 0.01
    """The run stops when a larger share of rows has to be quarantined."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_bad_share <= 1:
            raise ValueError(f"max_bad_share must be in [0, 1], got {self.max_bad_share}")
        if self.max_user_events is not None and self.max_user_events < 1:
            raise ValueError(f"max_user_events must be >= 1, got {self.max_user_events}")


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """How labels are divided into train, validation and test."""

    kind: Literal["leave_one_out", "global_time"] = "leave_one_out"
    validation_share: float = 0.1
    test_share: float = 0.1
    """Shares of the events, latest last, for ``global_time``."""
    tie_orders: tuple[TieOrder, ...] = ("given",)
    """Orders of events at the same time; each gets its own sequences, the first is released."""
