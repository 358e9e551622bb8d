"""Surfaces: where a list is shown, as configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recsys.retrieval.blend.fusion import FILL

MAX_SEEN_SHARE = 0.5
"""Of ``home`` where lists may hold the history: half of a list is what the user has not had."""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """How the lists of one surface are made."""

    name: str
    weights: Mapping[str, float]
    """Sources by name with their weight in the fusion."""
    exclude_seen: bool
    """Whether items of the history are left out; the item of ``similar`` always is."""
    num_candidates: int = 200
    """Items requested from each source; a longer list requests as many as it has places."""
    max_history: int = 200
    """Latest events that models read."""
    beam_width: int = 50
    """Prefixes that generation keeps after each level."""
    learned: bool = False
    """Whether the bundle's learned blend, where there is one, takes the place of the weights."""
    max_seen_share: float = 1.0
    """Share of the places of a list that items of the history may take, while there are others."""

    def __post_init__(self) -> None:
        if not 0 < self.max_seen_share <= 1:
            raise ValueError(
                f"surface {self.name!r} needs max_seen_share in (0, 1], got {self.max_seen_share}"
            )
        if not self.weights or any(weight < 0 for weight in self.weights.values()):
            raise ValueError(
                f"surface {self.name!r} needs sources with weights >= 0, got {dict(self.weights)}"
            )


# Without a learned blend content speaks only for items appended since the release: as released,
# lists are as evaluated.
HOME = Surface(
    name="home",
    weights={
        "two_tower": 1.0,
        "item_to_item": 1.0,
        "ease": 1.0,
        "item_knn": 1.0,
        "repeats": 1.0,
        "next_basket": 1.0,
        "sequence": 1.0,
        "ensemble": 1.0,
        "generative": 1.0,
        "content": 1.0,
        "popular": FILL,
    },
    exclude_seen=True,
    learned=True,
)
# Content at 0.75: at 1 the next item of a user is found less often (DECISIONS.md).
SIMILAR = Surface(
    name="similar",
    weights={"item_to_item": 1.0, "two_tower": 1.0, "content": 0.75, "popular": FILL},
    exclude_seen=False,
)


def surfaces_of(exclude_history: bool) -> dict[str, Surface]:
    """Return the surfaces by name; ``home`` leaves out the history where it says so."""
    share = 1.0 if exclude_history else MAX_SEEN_SHARE
    home = replace(HOME, exclude_seen=exclude_history, max_seen_share=share)
    return {surface.name: surface for surface in (home, SIMILAR)}
