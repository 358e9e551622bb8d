"""Report of a build: counts of every input row by outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class FeaturesReport:
    """Counts of event rows; ``rows_in`` is the sum of kept ``events`` and all that were not."""

    rows_in: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)
    """Event rows by reason."""
    filtered: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    over_user_cap: int = 0
    dropped_by_k_core: int = 0
    k_core_rounds: int = 0
    events: int = 0
    shown: int = 0
    """Filtered events that are impressions of kept users and items."""
    users: int = 0
    items: int = 0
    labels: dict[str, int] = field(default_factory=dict)
    """Events that can be predicted, per split; in train all but a user's first."""
    split_kind: str = "leave_one_out"
    """How events were held out; of ``splits.kind = "auto"``, what it took."""
    split_reason: str = ""
    """Why ``auto`` did not take ``global_time``."""
    validation_from: str | None = None
    """Begin of validation in a ``global_time`` split; likewise test."""
    test_from: str | None = None
    first_time: str | None = None
    last_time: str | None = None
    quarantined_in_tables: Counter[str] = field(default_factory=Counter)
    """Rows of the items and users tables by reason."""
    items_without_catalogue: int = 0
    forgotten: Counter[str] = field(default_factory=Counter)
    """Rows of forgotten users by table; the events are among the filtered."""
    user_ids: dict[str, int] = field(default_factory=dict)
    """Counts of rows for users' ids; empty if there are none."""
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {}
        for field_ in fields(self):
            value = getattr(self, field_.name)
            # dataclasses.asdict would count a Counter's pairs instead of copying them.
            values[field_.name] = dict(sorted(value.items())) if isinstance(value, dict) else value
        return values
