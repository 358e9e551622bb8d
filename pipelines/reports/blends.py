"""What a report says of the blends: what serves each profile and why, and its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.reports.wording import model_label

FILE = "blends.json"
MODEL_OF_SOURCE = {"popular": "popularity"}
WAYS = {"learned": "learned weights", "reciprocal_rank_fusion": "reciprocal rank fusion"}


@dataclass(frozen=True, kw_only=True)
class ToldBlend:
    """One profile of the released order."""

    profile: str
    served: str
    reason: str
    metric: str
    num_queries: int
    num_found: int
    """Validation users with their item in any list, who alone teach."""
    validation: Mapping[str, float]
    """Value on validation by way of merging, none measured on users it was fitted on."""
    shares: Mapping[str, float]
    """What each source adds to the scores of the first places, of 1 in all."""
    weights: Mapping[str, Mapping[str, float]]
    """By source and feature, of users and items of no kind."""

    @property
    def ways(self) -> list[tuple[str, float]]:
        """Ways of merging and their value, best first."""
        return sorted(self.validation.items(), key=lambda pair: -pair[1])

    @property
    def features(self) -> list[str]:
        """Features that weights are of."""
        return list(next(iter(self.weights.values()), {}))


def way_label(way: str) -> str:
    """Name a way of merging, or the one source that stands for it, for a reader."""
    return WAYS.get(way) or f"{source_label(way)} alone"


def source_label(source: str) -> str:
    """Name a source for a reader."""
    return model_label(MODEL_OF_SOURCE.get(source, source))


def read_blends(artefact: Path, tie_order: str) -> list[ToldBlend]:
    """Read what fit_blend says of each profile; nothing where it did not run."""
    path = artefact / tie_order / FILE
    if not path.exists():
        return []
    profiles: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["profiles"]
    wanted = [name for name in ToldBlend.__dataclass_fields__ if name != "profile"]
    return [
        ToldBlend(profile=profile, **{name: told[name] for name in wanted})
        for profile, told in sorted(profiles.items())
    ]
