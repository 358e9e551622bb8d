"""The section ``[ranker_training]``: whether and how a ranker orders what the blend found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from recsys.models.ease import EaseConfig
from recsys.models.ranker.config import Trunk
from recsys.training.ranker_fit import RankerFitConfig


@dataclass(frozen=True, kw_only=True)
class RankerTrainingConfig(RankerFitConfig):
    """A ranker of the candidates of profile ``fast``.

    It learns from each user's latest train events, by sources that have not seen them, and
    validation judges it.
    """

    enabled: bool = False
    """Whether it is trained, measured as ``ranked``, and served unless validation prefers the
    blend's order."""
    max_held_back: int = 10
    """Latest train events of a user that it learns from."""
    share_held_back: float = 0.2
    """Of a user's train events, that many at most; one where that is less."""
    max_queries: int = 20_000
    """Events that it learns from, drawn once by the seed."""
    min_found: int = 50
    """Of these, with their item among the candidates, below which none is trained."""
    validation_users: int = 500
    """Held-back events, of one user in ten, that pick its pass and calibrate it."""
    compared: tuple[Trunk, ...] = ()
    """Further trunks that are trained at equal compute and measured on validation, for the
    report; each costs as much time as the ranker."""
    linear: EaseConfig = field(default_factory=EaseConfig)
    """Item-to-item weights, of which it reads what they say of candidates."""

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
