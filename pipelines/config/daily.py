"""The sections ``[updates]`` and ``[monitoring]``: the daily work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

UpdatePolicy = Literal["incremental", "full", "never"]


@dataclass(frozen=True, kw_only=True)
class UpdatesConfig:
    """Policy of ``recsys update`` on new events; ``recsys backtest`` measures each.

    Passes, rate and replayed share of an increment are set in ``[backtest]`` (new_passes, new_rate,
    replay_share), so that the measured update is the one that runs.
    """

    policy: UpdatePolicy = "incremental"
    """incremental continues the served models, full runs every stage, never leaves them."""
    full_every_days: int | None = 7
    """Age of the last full run at which an update is a full one; None leaves that to recsys run."""
    counts_only: bool = False
    """Only recount and index in increments, and leave trained weights as they are."""
    held_out_share: float = 0.1
    """Share of the users with new events whose new events judge the increment; the next one
    trains on them."""
    min_held_out: int = 200
    """Users held out if that many have new events, at most half of them."""

    def __post_init__(self) -> None:
        if self.policy not in get_args(UpdatePolicy):
            raise ValueError(
                f"updates.policy must be one of {get_args(UpdatePolicy)}, got {self.policy!r}"
            )
        if self.full_every_days is not None and self.full_every_days < 1:
            raise ValueError(
                f"updates.full_every_days must be >= 1 or left out, got {self.full_every_days}"
            )
        if not 0 < self.held_out_share < 1:
            raise ValueError(f"updates.held_out_share must be in (0, 1), got {self.held_out_share}")


PAST_DAYS = 120
"""Days that thresholds are learned from."""
HISTORY_DAYS = 400
"""Days before that the first call measures, at most."""
MIN_PAST = 21
"""A signal with fewer past deviations raises no alarm."""


@dataclass(frozen=True, kw_only=True)
class MonitoringConfig:
    """Settings of ``recsys monitor``."""

    reference_days: int = 28
    """Days before it that a day is compared with."""
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
    """Folder that recsys data export wrote; without it <workspace>/online_events, or that of
    data.online_events."""

    def __post_init__(self) -> None:
        for name, least in (
            ("reference_days", 7),
            ("min_events", 1),
            ("max_examples", 50),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if not 0 < self.false_alarms_a_month <= 10:
            raise ValueError(
                f"false_alarms_a_month must be in (0, 10], got {self.false_alarms_a_month}"
            )
