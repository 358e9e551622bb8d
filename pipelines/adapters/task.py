"""The task of adapting one released model to one domain: items by domain, held-out users, a fit.

An item's domain is its column ``domain`` of the catalogue, else the most frequent one of its
events. Held-out users are split by row: even ones select the best step, odd ones judge.

Axes: N item rows, B held-out queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
from pipelines.inputs.tensors import read_inputs, released_order, retrieval_settings
from pipelines.training.train import ProgressBar
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import HeldOut, Rows
from recsys.evaluation.ranking import RankingResult
from recsys.fitting.queries import ModelInputs
from recsys.fitting.spec import device_named
from recsys.layers.lora.linear import LoraAdapter
from recsys.training.loop import TrainingDiverged, TrainResult, train
from recsys.training.optim import LoopConfig, adamw
from recsys.training.progress import SilentTracker

NO_DOMAIN = -1


@dataclass(frozen=True, kw_only=True)
class Domains:
    """The domain of each item."""

    names: tuple[str, ...]
    of_item: Rows
    """[N] index of the name, -1 for none."""

    def own_items(self, domain: int) -> NDArray[np.bool_]:
        """Mark the item rows of a domain, [N]."""
        own: NDArray[np.bool_] = self.of_item == domain
        return own

    def find_domain(self, domain: str) -> int:
        """Find the index of a domain."""
        if domain not in self.names:
            raise ValueError(
                f"no item is of domain {domain!r}; there are {', '.join(self.names[:20])}"
            )
        return self.names.index(domain)


def load_domains(features: Path, num_item_rows: int) -> Domains:
    """Read each item's domain from the artefact of build_features."""
    domains, own_names = item_domains(features, num_item_rows)
    if domains is not None:
        return Domains(names=tuple(own_names[1:]), of_item=domains.values.numpy() - 1)
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
    names = tuple(sorted(known["domain"].unique()))
    numbers = {name: number for number, name in enumerate(names)}
    of_item = np.full(num_item_rows, NO_DOMAIN, np.int64)
    of_item[known["item_row"].to_numpy()] = [numbers[name] for name in known["domain"]]
    if not names:
        raise ValueError("no item has a domain; fill the column domain of items or events")
    return Domains(names=names, of_item=of_item)


@dataclass(frozen=True, kw_only=True)
class DomainQueries:
    """Held-out queries sorted by the domain of their first target."""

    domain: int
    names: tuple[str, ...]
    held_out: HeldOut
    domain_of_query: Rows
    """[B], ascending."""
    num_events: Tensor
    """Training events of each query's user, [B]."""
    item_counts: Tensor
    """Training events of each item row, [N]."""

    @property
    def domain_name(self) -> str:
        return self.names[self.domain]

    @classmethod
    def of(
        cls, inputs: ModelInputs, domains: Domains, domain: int, half: int, limit: int, seed: int
    ) -> DomainQueries:
        """Select one half of the validation users, at most ``limit`` of each domain."""
        sequences = inputs.sequences
        whole = HeldOut.of(sequences, "validation")
        users = sequences.users_of(whole.positions)
        first = whole.targets.values.numpy()[whole.targets.offsets[:-1].numpy()]
        of_query = domains.of_item[first]
        chosen: list[Rows] = []
        rng = np.random.default_rng([seed, half])
        for number in range(len(domains.names)):
            rows = np.flatnonzero((of_query == number) & (users % 2 == half))
            chosen.append(np.sort(rng.permutation(rows)[:limit]))
        rows = np.concatenate(chosen)
        lengths = sequences.train_end - sequences.offsets[:-1]
        return cls(
            domain=domain,
            names=domains.names,
            held_out=whole.take(rows),
            domain_of_query=of_query[rows],
            num_events=torch.from_numpy(np.asarray(lengths[users[rows]])),
            item_counts=inputs.item_counts("train"),
        )

    def only_domain(self) -> DomainQueries:
        """Keep the queries of the domain that is adapted to."""
        rows = np.flatnonzero(self.domain_of_query == self.domain)
        return replace(
            self,
            held_out=self.held_out.take(rows),
            domain_of_query=self.domain_of_query[rows],
            num_events=self.num_events[torch.from_numpy(rows)],
        )

    def __len__(self) -> int:
        return len(self.domain_of_query)

    def batches(
        self, inputs: ModelInputs, config: RunConfig, max_history: int
    ) -> Iterator[JaggedBatch]:
        """Build the queries in batches of one domain each, whose index is feature ``domain``.

        A query of another domain is then computed in the same batch with and without the adapter,
        so its list changes by a bit only if the adapter reached it.
        """
        size = retrieval_settings(config).batch_size(inputs.sizes.num_item_rows)
        for number in range(len(self.names)):
            rows = np.flatnonzero(self.domain_of_query == number)
            for begin in range(0, len(rows), size):
                part = rows[begin : begin + size]
                positions = self.held_out.positions[part]
                queries = inputs.queries(positions, max_history=max_history)
                of_domain = Jagged.one_each(torch.full((len(part),), number))
                yield JaggedBatch({**queries.features, "domain": of_domain})


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


@dataclass(frozen=True, kw_only=True)
class Task:
    """Adapting one model to one domain."""

    config: RunConfig
    inputs: ModelInputs
    domains: Domains
    domain: int
    base: str
    """Name of the model that is adapted."""
    order: str
    """Tie order whose models are released."""
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


def load_task(config: RunConfig, domain: str, base: str, show_progress: bool) -> Task:
    """Read a run's inputs and domains for an adapter of one model."""
    features, content = config.workspace / "build_features", config.workspace / "embed_items"
    order = released_order(features)
    inputs = read_inputs(features, content if content.exists() else None, order)
    domains = load_domains(features, inputs.sizes.num_item_rows)
    return Task(
        config=config,
        inputs=inputs,
        domains=domains,
        domain=domains.find_domain(domain),
        base=base,
        order=order,
        show_progress=show_progress,
    )
