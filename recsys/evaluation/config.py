"""Settings of intervals and of paired comparisons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BootstrapConfig:
    """How an interval is drawn; equal configs and values give equal intervals."""

    confidence: float = 0.95
    """Share of worlds in which the interval is to hold the true mean."""
    num_resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, got {self.confidence}")
        if self.num_resamples < 100:
            raise ValueError(
                f"num_resamples must be at least 100, got {self.num_resamples}: the ends of an "
                "interval are read from the outermost resamples"
            )


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
    num_resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("confidence", "slice_error", "power"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {value}")
        for name in ("margin", "slice_margin"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {value}")
        self.bootstrap()

    def bootstrap(self) -> BootstrapConfig:
        """Return how the interval over users is drawn."""
        return BootstrapConfig(
            confidence=self.confidence, num_resamples=self.num_resamples, seed=self.seed
        )
