"""The sections of trainings: ``[*_training]``, ``[adapter]`` and ``[torchrun]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recsys.data.bounds import check_bounds
from recsys.evaluation.config import check_metric_name
from recsys.layers.lora.linear import LoraConfig
from recsys.models.generative.config import TeachingConfig
from recsys.training.passes import RankerFitConfig, ScheduleConfig, ShardingConfig, TrainingConfig

MIN_WAIT_SECONDS = 5.0
MAX_PORT = 65_536


@dataclass(frozen=True, kw_only=True)
class TwoTowerTrainingConfig(TrainingConfig):
    """Training of the two-tower; its examples are single labels."""

    enabled: bool = True
    """Train, measure, index and serve it."""


@dataclass(frozen=True, kw_only=True)
class SequenceTrainingConfig(TrainingConfig):
    """Training of the sequence model; its examples are windows of a user's events.

    The defaults were chosen on validation of Amazon Beauty.
    """

    enabled: bool = False
    """Train, measure and serve it."""
    batch_size: int = 256
    """Windows of a step; every event of a window but its first is a label."""
    max_epochs: float = 14.0
    epochs_per_evaluation: float = 2.0
    patience: int = 10
    warmup_share: float = 0.05
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(learning_rate=2e-3, decay="linear", final_share=0.02)
    )


@dataclass(frozen=True, kw_only=True)
class GenerativeTrainingConfig(TrainingConfig):
    """Training of the generative model; its examples are windows as well."""

    enabled: bool = False
    """Train, measure and serve it in profile ``full``."""
    batch_size: int = 256
    max_epochs: float = 14.0
    validation_users: int = 1_000
    """Users that a beam search is made for at each validation."""
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(learning_rate=2e-3))
    teaching: TeachingConfig = field(default_factory=TeachingConfig)
    """Teaching by the sequence model, in addition to the labels."""


@dataclass(frozen=True, kw_only=True)
class RankerTrainingConfig(RankerFitConfig):
    """A ranker of the candidates of profile ``fast``.

    It is trained on each user's latest train events, with out-of-sample candidates: retrievers are
    refitted without those events. Validation decides whether it is served.
    """

    enabled: bool = False
    """Train it, evaluate it as ``ranked``, and serve it if it is better than the blend's order on
    validation by ``standard_errors``."""
    standard_errors: float = 2.0
    """Standard errors of the paired difference by which it must be better."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, max_held_back=">= 1", max_queries=">= 1", min_found=">= 1")
        check_bounds(self, standard_errors=">= 0")
        check_bounds(self, share_held_back="(0, 1)", refit_share="(0, 1]")


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(TrainingConfig):
    """A domain's adapter; examples are the domain's labels (windows for a sequence model)."""

    domains: tuple[str, ...] = ()
    """Domains that each run adapts to; ``recsys release adapt`` adapts to any."""
    model: Literal["auto", "two_tower", "sequence"] = "auto"
    """Adapted model; ``auto`` is the sequence model if it is released, else the two-tower."""
    rank: int = 8
    """Width of the correction."""
    targets: tuple[str, ...] = ()
    """Patterns of layer names; by default the linear layers of the query side."""
    tables: tuple[str, ...] = ()
    """``("item",)`` also corrects the id embeddings of the domain's items."""
    softmax_over: Literal["catalogue", "domain"] = "catalogue"
    """Items that labels are ranked against in evaluation and in training a sequence model: all, or
    the domain's for surfaces that list no others."""
    dropout: float = 0.0
    """Share of an adapted layer's inputs that are dropped in a training step."""
    max_share: float = 0.05
    """Maximum parameters of an adapter, as a share of the base's."""
    metric: str = "ndcg@10"
    """Metric that selects the best step and that the harm gate compares."""
    min_gain: float = 0.0
    """Minimum relative gain over the base in the whole domain."""
    max_drop: float = 0.0
    """Maximum tolerated relative drop of a protected slice, beyond sampling noise."""
    min_slice_users: int = 20
    """Minimum held-out users of a protected slice."""
    batch_size: int = 128
    max_epochs: float = 20.0
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(learning_rate=1e-3))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric_name(self.metric)
        check_bounds(self, min_gain=">= 0", max_drop=">= 0")
        check_bounds(self, min_slice_users=">= 2")
        self.lora(("*",))

    def lora(self, default_targets: tuple[str, ...]) -> LoraConfig:
        """Configure the LoRA layers; ``default_targets`` if none are named."""
        return LoraConfig(
            targets=self.targets or default_targets,
            tables=self.tables,
            rank=self.rank,
            dropout=self.dropout,
            max_share=self.max_share,
        )


@dataclass(frozen=True, kw_only=True)
class TorchrunConfig(ShardingConfig):
    """How the training stages run on several processes (ranks), one a GPU."""

    processes: int = 0
    """Ranks on this machine; 0 takes one a GPU, or two on a CPU."""
    machines: int = 1
    """Machines with that number of ranks each; on all but the one of the command torchrun runs."""
    address: str | None = None
    """Address of this machine for the others, such as ``10.0.0.1:29500``; for several machines."""
    wait_seconds: float = 600.0
    """How long a rank waits for the others in a step, and this machine for the others to join,
    before the training ends with an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes < 0:
            raise ValueError(f"processes must be >= 1, or 0 for one a GPU, got {self.processes}")
        check_bounds(self, machines=">= 1")
        port = (self.address or "").rpartition(":")[2]
        if self.machines > 1 and not (port.isdecimal() and 0 < int(port) < MAX_PORT):
            raise ValueError(
                f"torchrun.machines = {self.machines} needs torchrun.address = "
                f'"<this machine>:<port>", which the others can reach, got {self.address!r}'
            )
        if not self.wait_seconds >= MIN_WAIT_SECONDS:
            raise ValueError(
                f"wait_seconds must be at least {MIN_WAIT_SECONDS:g}, got {self.wait_seconds}: "
                "starting a rank alone takes some seconds"
            )


@dataclass(frozen=True, kw_only=True)
class OutsideModelConfig:
    """A retrieval model of another package, which is fitted, measured, blended and served too."""

    spec: str
    """Address of its row of the catalogue, ``my_package.module:SPEC``."""
    enabled: bool = True
    """Fit it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its own class of them; others have their defaults."""
