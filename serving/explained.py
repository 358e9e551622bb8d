"""Explanations as they are sent."""

from __future__ import annotations

from dataclasses import dataclass

from serving.schemas import WhyNotCode


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """An item of the history that holds up an item of a list."""

    item_id: str
    place: int
    """Place by score of the item of the list without it; 201 for any after the 200th."""
    title: str | None = None


@dataclass(frozen=True, slots=True)
class SlotExplained:
    """One place of a served list."""

    slot: int
    item_id: str
    score: float
    source: str
    title: str | None = None
    reason: str | None = None
    """Absent where another bundle is served by now."""
    contributions: dict[str, float] | None = None
    """Share of the score by source; absent where another bundle is served by now."""
    propensity: float | None = None
    """How likely the item was at this place, given those before; absent where it was certain."""
    rules: list[str] | None = None
    """Rules that put it here."""
    sentence: str | None = None
    """Why it is here, in words; absent where another bundle is served by now."""
    place: int | None = None
    """Place by score, before rules, caps, diversity and exploration."""
    because: list[HistoryItem] | None = None
    """Items of the history without which that place is worse, measured by making the list without
    each; those that this caller may see."""
    place_without: int | None = None
    """Place by score without all of them, and without those that this caller may not see."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why an item is not in a list."""

    item_id: str
    code: WhyNotCode
    detail: str
    """In words."""
    title: str | None = None
    places: dict[str, int] | None = None
    """Its place, from 1, in the list of each source that has it."""
    sentence: str | None = None
    """The detail as a sentence that names the item."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A served list, explained."""

    request_id: str
    unix_ms: int
    bundle: str
    still_served: bool
    """Whether the bundle that made the list is the one that explains it."""
    surface: str
    num_live_events: int
    """Events since the release that the list was made from."""
    items: list[SlotExplained]
    degraded: list[str]
    experiment: dict[str, str] | None = None
    why_not: WhyNot | None = None
    num_left_out: int | None = None
    """Items of the history that were left out, one at a time, to see what moves; the latest 20 and
    up to 10 older ones."""
