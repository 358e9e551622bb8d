"""Where bundles go, and what a challenger must pass before it is published."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipelines.config.gate import GateConfig
from recsys.evaluation.paired import PairedConfig
from recsys.evaluation.ranking import check_metric_name


@dataclass(frozen=True, kw_only=True)
class ReleaseConfig:
    """Where bundles go and what one must pass before it is published."""

    bundles: Path | None = None
    """Folder of the bundles and of the link ``current``; <workspace>/bundles by default."""
    metric: str = "ndcg@10"
    """Number of the served list on the test split that is held against popularity and against the
    champion's own past; the comparison on the same queries is by ``compared_by``, and what is shown
    to lose more than ``max_loss`` by this one is refused too."""
    min_gain_over_popularity: float = 0.0
    """Relative; 0.1 requires a tenth more than popularity has. -1 switches the check off."""
    max_drop_from_champion: float = 0.1
    """Relative to what the published bundle had on its own data, a safety net where too few queries
    are answered by both; 1 switches it off."""
    compared_by: str = "ndcg@50"
    """What champion and challenger are compared by on the same queries; at 50 a difference shows
    with half as many users as at 10 (docs/decisions/release-gate.md)."""
    confidence: float = 0.96
    """Of the intervals of that difference; where there are times, both of them must hold, and 2.7%
    of equal challengers are called better or worse."""
    max_loss: float = 0.02
    """Relative loss that is tolerated: a challenger that is shown to be worse is published all the
    same if more than this is excluded."""
    max_slice_loss: float = 0.1
    """Relative loss of a protected slice (activity of users, popularity of items) beyond which a
    challenger is refused, if the slice shows it."""
    min_compared: int = 200
    """Users that both must have answered; fewer are not enough evidence, whatever they say."""
    max_compared: int = 20_000
    """Queries that both answer at most, drawn by the seed; they find a difference of 3%."""
    max_queried: int = 10_000
    """Of these, queries that the champion's bundle answers now, some milliseconds each; the others
    are read from its evaluation."""
    when_undecided: Literal["release", "keep"] = "release"
    """What happens to a challenger that is shown to be neither better nor worse: newer data serve,
    or the champion stays."""
    min_index_recall: float = 0.99
    """Least recall of the index against exact search."""
    promote: bool = True
    """Whether a bundle that passed is served at once, as champion; else it stays challenger until
    ``recsys promote``. The first bundle is always champion."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Bounds of the checks on the written bundle."""

    def __post_init__(self) -> None:
        shares = ("max_drop_from_champion", "max_loss", "max_slice_loss", "min_index_recall")
        for name in shares:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        check_metric_name(self.compared_by)
        check_metric_name(self.metric)
        if self.when_undecided not in ("release", "keep"):
            raise ValueError(
                f"when_undecided must be 'release' or 'keep', got {self.when_undecided!r}"
            )
        if self.max_queried < 0:
            raise ValueError(f"max_queried must be >= 0, got {self.max_queried}")
        if not 2 <= self.min_compared <= self.max_compared:
            raise ValueError(
                "min_compared must be at least 2 and at most max_compared, got "
                f"{self.min_compared} and {self.max_compared}"
            )
        self.paired()

    @property
    def depth(self) -> int:
        """Places of a list that champion and challenger are compared by."""
        return max(int(name.partition("@")[2]) for name in (self.compared_by, self.metric))

    def paired(self) -> PairedConfig:
        """Return how champion and challenger are compared."""
        return PairedConfig(
            confidence=self.confidence, margin=self.max_loss, slice_margin=self.max_slice_loss
        )
