"""Settings of intervals, of paired comparisons and of replays; names of metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recsys.data.bounds import check_bounds, check_choices

METRIC_NAMES = ("recall", "ndcg", "hit_rate", "mrr", "map", "precision")
"""Metrics of a ranked list; each is measured at list lengths k."""


def check_metric_name(name: str) -> None:
    """Refuse a name that is no metric at a list length."""
    metric, _, k = name.partition("@")
    if metric not in METRIC_NAMES or not k.isdigit() or int(k) < 1:
        raise ValueError(f"metric must be one of {sorted(METRIC_NAMES)} @ k >= 1, got {name!r}")


@dataclass(frozen=True, kw_only=True)
class PairedConfig:
    """How a pair is judged; equal configs and values give equal verdicts."""

    confidence: float = 0.975
    """Confidence of both intervals; one minus this of equal pairs is called better or worse."""
    margin: float = 0.02
    """Relative loss that is tolerated: a challenger is not worse if its interval excludes more."""
    slice_margin: float = 0.1
    """The same of a protected slice, which has fewer users."""
    slice_error: float = 0.01
    """Chance of refusing any slice that lost no more than the margin."""
    power: float = 0.8
    """Chance of being found for which the smallest difference is given."""

    def __post_init__(self) -> None:
        check_bounds(self, confidence="(0, 1)", slice_error="(0, 1)", power="(0, 1)")
        check_bounds(self, margin="[0, 1]", slice_margin="[0, 1]")


Policy = Literal["full", "incremental", "never"]
POLICIES: dict[Policy, str] = {
    "full": "all models are retrained from scratch before every step",
    "incremental": "counts are recomputed; trained models continue from earlier weights",
    "never": "models and blend weights of the first step serve all steps",
}


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """How the past is replayed."""

    num_steps: int = 15
    """Steps that are judged; without ``step_days`` each has about as many events."""
    step_days: float | None = None
    """Length of a step, such as 1 or 7; the last ``num_steps`` steps with events are judged."""
    first_share: float = 0.5
    """Share of the events that come before the first judged step, without ``step_days``."""
    policies: tuple[Policy, ...] = ("full", "incremental", "never")
    """How models are kept up to date, side by side."""
    models: tuple[str, ...] = ()
    """Models that are replayed; empty takes those of profile ``fast`` that the run trains."""
    max_queries: int = 5_000
    """Queries of a step, drawn by the seed."""
    new_passes: float = 2.0
    """Passes of an incremental training over the windows with new events."""
    new_rate: float = 0.3
    """Peak learning rate of an incremental training, as a share of the schedule's."""
    continue_from: Literal["last", "full"] = "last"
    """Weights that an incremental training continues: ``last``, of the training before it, or
    ``full``, of the last training from scratch, on all events since."""
    full_every: int = 0
    """Steps from one training from scratch to the next in policy ``incremental``, such as 7 where
    a step is a day; 0 trains from scratch before the first step alone."""

    def __post_init__(self) -> None:
        least = {"num_steps": ">= 1", "max_queries": ">= 1", "full_every": ">= 0"}
        above = dict.fromkeys(("step_days", "new_passes", "new_rate"), "> 0")
        check_bounds(self, "backtest.", **least, **above)
        check_bounds(self, "backtest.", first_share="(0, 1)")
        check_choices(self, continue_from=("last", "full"))
        if not self.policies or set(self.policies) - set(POLICIES):
            raise ValueError(
                f"backtest.policies must be some of {', '.join(POLICIES)}, got "
                f"{list(self.policies)}"
            )

    def continued_step(self, number: int) -> int | None:
        """Return the step whose weights ``incremental`` continues, or None to start again."""
        last_full = 1 + (number - 1) // self.full_every * self.full_every if self.full_every else 1
        if number == last_full:
            return None
        return last_full if self.continue_from == "full" else number - 1
