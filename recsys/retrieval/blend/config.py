"""Settings of the blend of all sources' lists."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recsys.data.bounds import check_bounds

FILL = 0.001
"""Weight of a source that only fills lists up: below any place of the others, in its own order."""


@dataclass(frozen=True, kw_only=True)
class BlendConfig:
    """How the lists of all sources become the one that is served.

    Each source gives as many items as for the surface ``home``; ``item_bounds`` group items by
    their number of events.
    """

    enabled: bool = True
    """True if weights are learned on validation; else the surface's weights serve."""
    recent_demand: bool = True
    """True if weights may also read how much each item was wanted, lately and ever, where events
    have times; they do where that is better on validation by more than noise."""
    min_found: int = 20
    """Validation users with their item in any list, in each half, below which none are learned."""
    item_bounds: tuple[float, ...] = ()
    """Kinds of items, by one number each, such as their age in days or their popularity: below the
    first bound, from it to below the second, ..., from the last on. None: one kind."""
    shrinkage_queries: float = 1000.0
    """Each kind's own weights count as if that many queries had spoken for the weights of all."""
    l2: float = 5.0
    """Pulls the weights of all towards 0; worth some tens of queries."""
    non_negative: bool = True
    """True if being in one more list can never harm an item; but the list of repeats gives it the
    weights of the user's own items."""
    max_queries: int = 20_000
    """Queries fitted on, evenly spaced; fewer where there are kinds of items."""
    max_candidates: int = 128
    """Candidates fitted on per query: the best half by rank, and an even sample of the rest that
    is weighted for all of it."""
    new_item_odds: float | None = None
    """Odds multiplier of items without events, applied when lists are merged with counts of events;
    None fits it on validation (demand.py), 1 changes nothing."""
    absent_days: float | None = None
    """Days since a user's last event after which neither items' demand nor the list of popular
    items counts (demand.py), if it is later than train; None takes the fewest at which users who
    came back in validation lose at most a tenth of what they took next; inf never."""

    def __post_init__(self) -> None:
        if list(self.item_bounds) != sorted(set(self.item_bounds)):
            raise ValueError(f"item_bounds must rise, got {self.item_bounds}")
        check_bounds(
            self,
            shrinkage_queries=">= 0 or inf",
            l2="> 0",
            new_item_odds="> 0",
            absent_days="> 0 or inf",
        )
        check_bounds(self, max_queries=">= 1", max_candidates=">= 2", min_found=">= 1")

    @property
    def log_odds_of_new(self) -> float:
        """What an item without events has added to its score; 0 if nothing was fitted."""
        return 0.0 if self.new_item_odds is None else math.log(self.new_item_odds)
