"""The task of adapting one released model to one domain: items by domain, held-out users, a fit.

An item's domain is its column ``domain`` of the catalogue, else the most frequent one of its
events. Held-out users are split by row: even ones select the best step, odd ones judge.

Axes: N item rows, B held-out queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipelines.config.run import RunConfig
from pipelines.engine.errors import UnstableTrainingError
from pipelines.evaluation.analyse import item_domains
from pipelines.inputs.tensors import read_inputs, retrieval_settings
from pipelines.training.train import ProgressBar
from recsys.data.batch import JaggedBatch
from recsys.data.dataset import HeldOut, Rows
from recsys.evaluation.ranking import RankingResult
from recsys.fitting.queries import ModelInputs
from recsys.fitting.spec import device_named
from recsys.layers.lora.linear import LoraAdapter
from recsys.training.loop import TrainingDiverged, TrainResult, train
from recsys.training.optim import adamw
from recsys.training.passes import LoopConfig
from recsys.training.progress import SilentTracker

NO_DOMAIN = -1


class EmptyDomainError(ValueError):
    """A domain has no items, or no events to learn from; others may have."""


def load_domains(features: Path, num_item_rows: int) -> tuple[list[str], Rows]:
    """Read the names of domains, and the place of each item's among them, [N]; -1 for none."""
    domains, own_names = item_domains(features, num_item_rows)
    if domains is not None:
        return own_names[1:], domains.values.numpy() - 1
    events = pl.scan_parquet(features / "events" / "**" / "*.parquet")
    if "domain" not in events.collect_schema().names():
        raise ValueError(
            "neither items nor events have a column domain, so there is nothing to adapt to; "
            "name it in [data], or give the item catalogue a column domain"
        )
    known = (
        events.select("item_row", pl.col("domain").cast(pl.String))
        .drop_nulls()
        .group_by("item_row", "domain")
        .len()
        .sort("item_row", "len", "domain", descending=[False, True, False])
        .unique("item_row", keep="first", maintain_order=True)
        .collect()
    )
    names = sorted(known["domain"].unique())
    numbers = {name: number for number, name in enumerate(names)}
    of_item = np.full(num_item_rows, NO_DOMAIN, np.int64)
    of_item[known["item_row"].to_numpy()] = [numbers[name] for name in known["domain"]]
    if not names:
        raise ValueError("no item has a domain; fill the column domain of items or events")
    return names, of_item


class DomainQueries(NamedTuple):
    """Held-out queries whose first target is of the domain."""

    held_out: HeldOut
    num_events: Tensor
    """Training events of each query's user, [B]."""
    item_counts: Tensor
    """Training events of each item row, [N]."""

    @property
    def num_queries(self) -> int:
        return len(self.num_events)

    def batches(
        self, inputs: ModelInputs, config: RunConfig, max_history: int
    ) -> Iterator[JaggedBatch]:
        """Build the queries in batches."""
        size = retrieval_settings(config).batch_size(inputs.sizes.num_item_rows)
        for begin in range(0, self.num_queries, size):
            positions = self.held_out.positions[begin : begin + size]
            yield inputs.queries(positions, max_history=max_history)


class Judged(NamedTuple):
    """Held-out queries of the domain as the base answers them, and with the adapter."""

    queries: DomainQueries
    base: RankingResult
    """Over the whole catalogue."""
    adapted: RankingResult
    base_within: RankingResult
    """Over the domain's items alone: what the domain's name is worth without an adapter."""
    adapted_within: RankingResult


@dataclass(frozen=True, kw_only=True)
class Task:
    """Adapting one model to one domain."""

    config: RunConfig
    inputs: ModelInputs
    name: str
    """Domain of the task."""
    domain: int
    """Its place among all domains."""
    domain_of_item: Rows
    """[N]; -1 for none."""
    base: str
    """Model that is adapted."""
    show_progress: bool

    @property
    def device(self) -> torch.device:
        return device_named(self.config.device)

    @property
    def own_items(self) -> NDArray[np.bool_]:
        """Mark the item rows of the domain, [N]."""
        own: NDArray[np.bool_] = self.domain_of_item == self.domain
        return own

    @property
    def item_rows(self) -> Tensor:
        """The domain's items, ascending."""
        return torch.from_numpy(np.flatnonzero(self.own_items))

    def queries(self, half: int) -> DomainQueries:
        """Select one half of the validation users of the domain: 0 selects a step, 1 judges."""
        sequences, limit = self.inputs.sequences, self.config.adapter.validation_users
        whole = HeldOut.of(sequences, "validation")
        users = sequences.users_of(whole.positions)
        of_query = self.domain_of_item[
            whole.targets.values.numpy()[whole.targets.offsets[:-1].numpy()]
        ]
        rng = np.random.default_rng([self.config.seed, half])
        # Domains draw one after the other, so that each has users of its own.
        for number in range(self.domain + 1):
            drawn = rng.permutation(np.flatnonzero((of_query == number) & (users % 2 == half)))
        rows = np.sort(drawn[:limit])
        lengths = sequences.train_end - sequences.offsets[:-1]
        return DomainQueries(
            held_out=whole.take(rows),
            num_events=torch.from_numpy(np.asarray(lengths[users[rows]])),
            item_counts=self.inputs.item_counts("train"),
        )

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


def load_task(config: RunConfig, domain: str, base: str, show_progress: bool) -> Task:
    """Read a run's inputs and domains for an adapter of one model."""
    features, content = config.workspace / "build_features", config.workspace / "embed_items"
    inputs = read_inputs(features, content if content.exists() else None)
    names, of_item = load_domains(features, inputs.sizes.num_item_rows)
    if domain not in names:
        there = ", ".join(names[:20])
        raise EmptyDomainError(f"no item is of domain {domain!r}; there are {there}")
    return Task(
        config=config,
        inputs=inputs,
        name=domain,
        domain=names.index(domain),
        domain_of_item=of_item,
        base=base,
        show_progress=show_progress,
    )
