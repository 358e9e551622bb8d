"""The section ``[ranker_training]``: whether and how a ranker orders what the blend found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from recsys.models.ranker.config import Trunk
from recsys.training.ranker_config import RankerFitConfig


@dataclass(frozen=True, kw_only=True)
class RankerTrainingConfig(RankerFitConfig):
    """A ranker of the candidates of profile ``fast``.

    It is trained on each user's latest train events, with out-of-sample candidates: retrievers are
    refitted without those events. Validation decides whether it is served. Impression logs
    (``filters.shown_types``) train a position-bias model.
    """

    enabled: bool = False
    """Whether it is trained, evaluated as ``ranked``, and served if it is better than the blend's
    order on validation by two standard errors."""
    max_held_back: int = 10
    """Latest train events of a user that are held back for it, at most."""
    share_held_back: float = 0.2
    """Share of a user's train events that are held back, at most; at least one event is."""
    max_queries: int = 20_000
    """Held-back events, and shown lists, that it is trained on; sampled by the seed."""
    refit_share: float = 1.0
    """Share of the passes that validation chose for the trained retrievers, which their refits
    without the held-back events take."""
    min_found: int = 50
    """Held-back events with their item in any list, below which no ranker is trained."""
    validation_users: int = 500
    """Held-back events of one user in ten that select the epoch and calibrate, at most."""
    compared: tuple[Trunk, ...] = ()
    """Other trunks of equal compute, trained and evaluated for the report; each takes as long as
    the ranker."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_held_back", "max_queries", "min_found"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if unknown := set(self.compared) - set(get_args(Trunk)):
            raise ValueError(
                f"compared must be some of {', '.join(get_args(Trunk))}, got {sorted(unknown)}"
            )
        if not 0 < self.share_held_back < 1:
            raise ValueError(f"share_held_back must be in (0, 1), got {self.share_held_back}")
        if not 0 < self.refit_share <= 1:
            raise ValueError(f"refit_share must be in (0, 1], got {self.refit_share}")
