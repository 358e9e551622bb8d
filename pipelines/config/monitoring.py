"""How days are watched for drift, and when inputs are late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class MonitoringConfig:
    """Settings of ``recsys monitor``."""

    reference_days: int = 28
    """A day is compared with so many before it."""
    past_days: int = 120
    """Thresholds are learned from so many."""
    history_days: int = 400
    """The first call measures at most so many days of what came before."""
    min_past: int = 21
    """A signal with fewer past deviations raises no alarm."""
    false_alarms_a_month: float = 0.5
    """How many are tolerated, all signals together; holidays come on top."""
    min_events: int = 50
    """A day with fewer is not compared."""
    max_examples: int = 1_000
    """Events of a day that the two-sample test reads."""
    max_age_days: Mapping[str, float] = field(default_factory=dict)
    """Oldest permitted input by name (events, catalogue, content, bundle, served), instead of what
    past gaps teach."""
    served: Path | None = None
    """Folder that recsys events export wrote; without it <workspace>/online_events, or that of
    data.online_events."""

    def __post_init__(self) -> None:
        for name, least in (
            ("reference_days", 7),
            ("past_days", 28),
            ("history_days", 1),
            ("min_past", 7),
            ("min_events", 1),
            ("max_examples", 50),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if not 0 < self.false_alarms_a_month <= 10:
            raise ValueError(
                f"false_alarms_a_month must be in (0, 10], got {self.false_alarms_a_month}"
            )
