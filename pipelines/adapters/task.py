"""What adapting a released model to one domain reads and shares between models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.adapters.inputs import DomainQueries, Domains
from pipelines.config.run import RunConfig
from pipelines.engine.errors import UnstableTrainingError
from pipelines.training.run import ProgressBar
from recsys.evaluation.ranking import RankingResult
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.spec import device_named
from recsys.layers.lora.linear import LoraAdapter
from recsys.training.loop import LoopConfig, TrainingDiverged, TrainResult, train
from recsys.training.optim import adamw
from recsys.training.progress import SilentTracker
from serving.bundle.adapters import BaseName


class Judged(NamedTuple):
    """Held-out queries as the base answers them, and with the adapter."""

    queries: DomainQueries
    base: RankingResult
    """Over the whole catalogue, of every domain's queries."""
    adapted: RankingResult
    base_within: RankingResult
    """Over the domain's items alone, of its own queries: what the domain's name is worth without an
    adapter."""
    adapted_within: RankingResult


class TrainedAdapter(NamedTuple):
    """An adapter to be registered."""

    adapter: LoraAdapter
    num_steps: int
    num_labels: int
    """Of the domain, that it was trained on."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Adapting one model to one domain."""

    config: RunConfig
    inputs: ModelInputs
    domains: Domains
    domain: int
    base: BaseName
    order: str
    """Of tied times, whose models are released."""
    show_progress: bool

    @property
    def name(self) -> str:
        return self.domains.names[self.domain]

    @property
    def device(self) -> torch.device:
        return device_named(self.config.device)

    @property
    def item_rows(self) -> Tensor:
        """The domain's items, ascending."""
        return torch.from_numpy(np.flatnonzero(self.domains.own_items(self.domain)))

    def halves(self) -> tuple[DomainQueries, DomainQueries]:
        """Select held-out queries to select a step by, of the domain alone, and to judge by."""
        limit, seed = self.config.adapter.validation_users, self.config.seed
        first, second = (
            DomainQueries.of(self.inputs, self.domains, self.domain, half, limit, seed)
            for half in (0, 1)
        )
        return first.only_domain(), second

    def fit(
        self,
        adapter: LoraAdapter,
        loss_at: Callable[[int], Tensor],
        steps: LoopConfig,
        evaluate: Callable[[nn.Module], Mapping[str, float]] | None,
    ) -> TrainResult:
        """Train an adapter over its frozen base."""
        title = f"{self.name} ({self.base}, {'judged' if evaluate else 'everything'})"
        try:
            with ProgressBar(title, visible=self.show_progress) as progress:
                return train(
                    adapter,
                    loss_at,
                    adamw(adapter, self.config.adapter.optimizer),
                    steps,
                    evaluate=evaluate,
                    tracker=SilentTracker(),
                    progress=progress,
                )
        except TrainingDiverged as error:
            raise UnstableTrainingError(str(error)) from error
