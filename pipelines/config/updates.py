"""How released models are kept up to date between full runs; ``[updates]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

UpdatePolicy = Literal["incremental", "full", "never"]


@dataclass(frozen=True, kw_only=True)
class UpdatesConfig:
    """What ``recsys update`` does with new events; ``recsys backtest`` shows what each earns.

    How long and on what an increment trains stands in ``[backtest]`` (new_passes, new_rate,
    replay_share), so that what runs is what was measured.
    """

    policy: UpdatePolicy = "incremental"
    """incremental continues the served models, full runs every stage, never leaves them."""
    full_every_days: int | None = 7
    """Age of the last full run at which an update is a full one; None leaves that to recsys run."""
    counts_only: bool = False
    """Whether increments recount and index alone and leave trained weights as they are."""
    held_out_share: float = 0.1
    """Share of the users with new events whose new events judge the increment; the next one
    trains on them."""
    min_held_out: int = 200
    """Users held out where there are so many with new events, at most half of them."""

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
