"""Defects planted into a generated world's events, each with a known count.

A defect is an added row; the world's own rows stay as they are, and each row says which it is.

Axes: E events.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

START = 1_704_067_200
"""Unix seconds of the first event, 2024-01-01 UTC."""
HOUR = 3600
FAR_FUTURE = START + 100 * 365 * 24 * HOUR
CRAWLER = "crawler"


@dataclass(frozen=True, kw_only=True)
class Defects:
    """How many rows of each defect are added; 0 switches it off."""

    duplicates: int = 0
    """Exact copies of different rows."""
    future_times: int = 0
    early_times: int = 0
    """Times of 1970."""
    nan_values: int = 0
    nul_ids: int = 0
    """User ids with a NUL character."""
    missing_ids: int = 0
    """Empty item ids."""
    unknown_items: int = 0
    """Events of items that the catalogue does not have, each another one."""
    crawler_events: int = 0
    """Impressions of one user within an hour or so, one a second."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if getattr(self, one.name) < 0:
                raise ValueError(f"{one.name} must be >= 0, got {getattr(self, one.name)}")


DEFECT_NAMES = ("none", *(one.name for one in fields(Defects)))
"""Name of each code in ``EventTable.defects``."""


@dataclass(frozen=True, kw_only=True)
class EventTable:
    """Raw events by column, all [E]."""

    user_ids: NDArray[np.str_]
    item_ids: NDArray[np.str_]
    times: NDArray[np.int64]
    """Unix seconds."""
    event_types: NDArray[np.str_]
    values: NDArray[np.float64]
    """Price of a purchase, otherwise 1."""
    domains: NDArray[np.str_]
    session_ids: NDArray[np.str_]
    request_ids: NDArray[np.str_]
    slots: NDArray[np.int64]
    """From 0."""
    propensities: NDArray[np.float64]
    hints: NDArray[np.bool_]
    """The leaky feature: whether the impression is clicked. Empty where it is switched off."""
    impressions: NDArray[np.int64]
    """Impression that each row came from; a defect's is that of the row it copies."""
    defects: NDArray[np.int8]
    """Place in DEFECT_NAMES, 0 for a good row."""

    def __len__(self) -> int:
        return len(self.user_ids)

    def take(self, rows: NDArray[np.int64]) -> EventTable:
        """Return rows in the given order."""
        return EventTable(
            **{
                one.name: column[rows] if len(column := getattr(self, one.name)) else column
                for one in fields(self)
            }
        )


def with_defects(
    events: EventTable, defects: Defects, num_items: int, rng: np.random.Generator
) -> EventTable:
    """Add rows at drawn places; without any, return the events as they are.

    Raises:
        ValueError: If more rows are to be copied than there are.
    """
    counts = astuple(defects)
    if not sum(counts):
        return events
    if max(counts[:-1]) > len(events):
        raise ValueError(
            f"defects copy up to {max(counts[:-1])} different rows, but there are only "
            f"{len(events)} events; plant fewer"
        )
    parts = [events]
    keys = [np.arange(len(events))]
    for code, (name, count) in enumerate(zip(DEFECT_NAMES[1:], counts, strict=True), start=1):
        draws = rng.integers(0, 1 << 60, len(events))
        sources = np.argsort(draws, kind="stable")[:count]
        if name == "crawler_events":
            sources = np.arange(count) % len(events)
        part = replace(events.take(sources), defects=np.full(count, code, np.int8))
        parts.append(_spoiled(part, name, num_items))
        keys.append(rng.integers(0, len(events), count))
    joined = EventTable(
        **{
            one.name: np.concatenate([getattr(part, one.name) for part in parts])
            for one in fields(EventTable)
        }
    )
    return joined.take(np.argsort(np.concatenate(keys), kind="stable"))


def _spoiled(part: EventTable, name: str, num_items: int) -> EventTable:
    places = np.arange(len(part))
    match name:
        case "future_times":
            return replace(part, times=FAR_FUTURE + places)
        case "early_times":
            return replace(part, times=places)
        case "nan_values":
            return replace(part, values=np.full(len(part), np.nan))
        case "nul_ids":
            ids = [f"\x00{user_id}" for user_id in part.user_ids.tolist()]
            return replace(part, user_ids=np.array(ids, np.str_))
        case "missing_ids":
            return replace(part, item_ids=np.full(len(part), "", np.dtype("U1")))
        case "unknown_items":
            ids = [f"item-{num_items + place}" for place in places.tolist()]
            return replace(part, item_ids=np.array(ids, np.str_))
        case "crawler_events":
            return replace(
                part,
                user_ids=np.full(len(part), CRAWLER),
                times=START + places,
                event_types=np.full(len(part), "impression"),
                values=np.ones(len(part)),
            )
    return part
