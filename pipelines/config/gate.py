"""Bounds of the checks on a bundle as it was written, beside those on its metrics."""

from __future__ import annotations

from dataclasses import dataclass

from recsys.evaluation.judges import RUBRICS


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Section ``[release.gate]``; the defaults are generous: what they refuse is broken."""

    enabled: bool = True
    """Whether the written bundle is checked; its metrics always are."""
    num_queries: int = 200
    """Users for whom champion and challenger make a list."""
    list_length: int = 20
    """Length of those lists."""
    min_kept_items: float = 0.9
    """Share of the champion's items that the challenger still has."""
    min_kept_users: float = 0.5
    """The same of users."""
    max_changed_texts: float = 0.5
    """Share of the kept items whose text or categories may differ from the champion's."""
    min_coverage: float = 0.5
    """Different items in the sampled lists, as a share of the champion's."""
    min_novelty: float = 0.7
    """Mean novelty of the listed items (bits), as a share of the champion's."""
    min_category_spread: float = 0.5
    """Categories a list spans, effectively, as a share of the champion's."""
    max_calibration_error: float = 0.05
    """Of the ranker's probabilities on validation, absolute; at most the share of positives."""
    max_calibration_ratio: float = 2.0
    """Of predicted to observed positives, either way."""
    max_latency_ms: float = 500.0
    """Median of one list in this process."""
    max_latency_ratio: float = 3.0
    """The same against the champion's, measured in turns; below 20 ms nothing is refused."""
    max_size_ratio: float = 3.0
    """Bytes against the champion's, above 512 MB; 0 switches the check off."""
    min_code_use: float = 0.1
    """Perplexity of the first codes, from 0 (one code for all) to 1 (all codes equally often)."""
    min_code_use_of_champion: float = 0.5
    """Perplexity of each level's codes, as a share of the champion's."""
    min_expert_load: float = 0.05
    """Share of candidates that each expert of the ranker gets, 1 is an even share."""
    max_norm_ratio: float = 50.0
    """Longest vector of a table against the median."""
    min_index_agreement: float = 0.95
    """Share of nearest items by the bundle's own vectors that its index finds."""
    max_gain: float = 1.0
    """Relative gain over a champion of the same models, or of the ranker over the list it reorders,
    beyond which a person has to look; 1 is twice as good, 0 switches the check off."""
    max_duplicates: float = 0.3
    """Share of the rows read that repeat another row."""
    max_copied_events: float = 0.05
    """Share of events that stand on another day too: same user, item and time of day."""
    max_moved_times: float = 0.1
    """Share of the events that the champion knows too whose times changed."""
    judges: tuple[str, ...] = ()
    """Rubrics of ``recsys judge`` that hold the challenger's lists against the champion's, such as
    ["relevance"]; only those whose agreement with held-out events that command has shown."""
    min_judged: float = 0.9
    """Mean score of the lists by each of them, as a share of the champion's."""
    max_parity_differences: float = 0.01
    """Share of logged requests whose recomputed list differs from the served one."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.judges if name not in RUBRICS]:
            raise ValueError(f"gate.judges names {unknown[0]!r}; it may name {', '.join(RUBRICS)}")
        for name, value in vars(self).items():
            unbounded = name.endswith(("_ms", "_ratio", "_gain"))
            if name.startswith(("min_", "max_")) and not 0 <= value <= (1e9 if unbounded else 1):
                allowed = ">= 0" if unbounded else "in [0, 1]"
                raise ValueError(f"gate.{name} must be {allowed}, got {value}")
            if name in ("num_queries", "list_length") and value < 1:
                raise ValueError(f"gate.{name} must be >= 1, got {value}")
