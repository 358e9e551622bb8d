"""The section ``[release]``: bounds of the checks on a bundle, and how it is compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recsys.data.bounds import check_bounds
from recsys.evaluation.config import PairedConfig
from recsys.evaluation.ranking import check_metric_name

TIMED = "time of a list"
"""A verdict whose value differs between equal runs: in the decision, not in the bundle."""


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Section ``[release.gate]``; the defaults are generous: what they refuse is broken."""

    enabled: bool = True
    """Check the written bundle; its metrics are always checked."""
    num_queries: int = 200
    """Users for whom champion and challenger make a list."""
    list_length: int = 20
    """Length of those lists."""
    min_kept_items: float = 0.9
    """Share of the champion's items that the challenger still has."""
    min_kept_users: float = 0.5
    """The same of users."""
    max_changed_texts: float = 0.5
    """Share of the kept items whose text may differ from the champion's."""
    min_coverage: float = 0.5
    """Different items in the sampled lists, as a share of the champion's."""
    min_novelty: float = 0.7
    """Mean novelty of the listed items (bits), as a share of the champion's."""
    max_latency_ms: float = 500.0
    """Median of one list in this process."""
    max_latency_ratio: float = 3.0
    """The same against the champion's, measured in turns; below 20 ms nothing is refused."""
    max_gain: float = 1.0
    """Relative gain over a champion of the same models, or of the ranker over the list it reorders,
    beyond which a person has to look; 1 is twice as good, 0 switches the check off."""
    max_duplicates: float = 0.3
    """Share of the rows read that repeat another row."""
    max_moved_times: float = 0.1
    """Share of the events that the champion knows too whose times changed."""

    def __post_init__(self) -> None:
        check_bounds(self, "gate.", num_queries=">= 1", list_length=">= 1")
        for name in vars(self):
            if name.startswith(("min_", "max_")):
                unbounded = name.endswith(("_ms", "_ratio", "_gain"))
                check_bounds(self, "gate.", **{name: ">= 0" if unbounded else "[0, 1]"})


@dataclass(frozen=True, kw_only=True)
class ReleaseConfig:
    """Folder of the bundles, and the checks before one is published."""

    bundles: Path | None = None
    """Folder of the bundles and of the link ``current``; <workspace>/bundles by default."""
    metric: str = "ndcg@10"
    """Floor in the first places: the served list must reach popularity and the champion's own past
    on test, and a challenger that is shown to lose more than ``max_loss`` by it is refused. The
    release is decided by ``deciding_metric``."""
    min_gain_over_popularity: float = 0.0
    """Relative; 0.1 requires a tenth more than popularity has. -1 switches the check off."""
    max_drop_from_champion: float = 0.1
    """Relative to what the published bundle had on its own data, a safety net where too few queries
    are answered by both; 1 switches it off."""
    deciding_metric: str = "ndcg@50"
    """The one metric that decides a release, on the same queries; at 50 a difference shows with
    half as many users as at 10 (docs/decisions/release-gate.md)."""
    confidence: float = 0.96
    """Confidence of the intervals of that difference; if there are times, both must hold, and 2.7%
    of equal challengers are called better or worse."""
    max_loss: float = 0.02
    """Relative loss that is tolerated: a challenger that is shown to be worse is published all the
    same if more than this is excluded."""
    max_slice_loss: float = 0.1
    """Relative loss of a protected slice (activity of users, popularity of items) beyond which a
    challenger is refused, if the slice shows it."""
    min_compared: int = 200
    """Users that both must have answered; fewer are not enough evidence."""
    max_compared: int = 20_000
    """Queries that both answer at most, drawn by the seed; they find a difference of 3%."""
    max_queried: int = 10_000
    """Queries that the champion's bundle answers now, some milliseconds each; the others
    are read from its evaluation."""
    when_undecided: Literal["release", "keep"] = "release"
    """Decision on a challenger that is shown to be neither better nor worse: newer data serve,
    or the champion stays."""
    min_index_recall: float = 0.99
    """Least recall of the index against exact search."""
    promote: bool = True
    """Serve a bundle that passed at once, as champion; else it stays challenger until
    ``recsys release promote``. The first bundle is always champion."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Bounds of the checks on the written bundle."""

    def __post_init__(self) -> None:
        check_bounds(self, max_drop_from_champion="[0, 1]", max_loss="[0, 1]")
        check_bounds(self, max_slice_loss="[0, 1]", min_index_recall="[0, 1]", max_queried=">= 0")
        check_metric_name(self.deciding_metric)
        check_metric_name(self.metric)
        if not 2 <= self.min_compared <= self.max_compared:
            raise ValueError(
                "min_compared must be at least 2 and at most max_compared, got "
                f"{self.min_compared} and {self.max_compared}"
            )
        self.paired()

    @property
    def depth(self) -> int:
        """Places of a list that champion and challenger are compared by."""
        return max(int(name.partition("@")[2]) for name in (self.deciding_metric, self.metric))

    def paired(self) -> PairedConfig:
        """Return how champion and challenger are compared."""
        return PairedConfig(
            confidence=self.confidence, margin=self.max_loss, slice_margin=self.max_slice_loss
        )
