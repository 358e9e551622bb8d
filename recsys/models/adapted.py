"""A retriever whose queries are read through domain adapters, each query through its own.

Adapters correct what reads a query; items keep one vector for all domains, and with it one index.
So the query side's layers may be targets, the item tower's may not.

Axes: B queries, M events of a batch, N item rows, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from recsys.data.batch import JaggedBatch, latest
from recsys.layers.lora import LoraAdapter
from recsys.layers.lora_bank import LoraBank
from recsys.models.sequence import SequenceModel
from recsys.models.two_tower import TwoTower

QUERY_LAYERS = {TwoTower: ("query_tower.*",), SequenceModel: ("encoder.*",)}
"""Targets of a model's adapters: every linear layer that reads a query."""


def query_layers(model: TwoTower | SequenceModel) -> tuple[str, ...]:
    """Give the targets for adapters of a model."""
    return next(names for kind, names in QUERY_LAYERS.items() if isinstance(model, kind))


class AdaptedRetriever:
    """A base and the adapters of several domains, as one retriever of mixed batches."""

    def __init__(
        self, model: TwoTower | SequenceModel, adapters: Mapping[str, LoraAdapter]
    ) -> None:
        """Hook adapters into a model; without a domain it answers as before.

        Args:
            adapters: By domain, made for this model.

        Raises:
            ValueError: If an adapter is for another base or corrects layers of items.
        """
        for domain, adapter in adapters.items():
            if odd := [name for name in adapter.layers if name.startswith("item_tower")]:
                raise ValueError(
                    f"the adapter of domain {domain!r} corrects {odd[0]}, but items have one "
                    f"vector for all domains; its targets may be {query_layers(model)}"
                )
        self.model = model
        self.bank = LoraBank(model, adapters)

    def query_vectors(self, queries: JaggedBatch, domains: Sequence[str | None]) -> Tensor:
        """Encode queries as unit vectors, [B, D].

        Args:
            domains: Of each query; an unknown one, or None, is answered by the base alone.
        """
        if len(domains) != queries.batch_size:
            raise ValueError(f"{len(domains)} domains for {queries.batch_size} queries")
        numbers = torch.tensor([self.bank.number(one) for one in domains])
        device = queries["history"].values.device
        if device.type != "cpu" or len(set(domains)) == 1:
            return self._encoded(queries, numbers.to(device))
        # By domain, so that a CPU can take merged weights.
        order = torch.argsort(numbers, stable=True)
        taken = {name: feature.take(order) for name, feature in queries.features.items()}
        vectors = self._encoded(JaggedBatch(taken), numbers[order])
        return torch.empty_like(vectors).index_copy_(0, order, vectors)

    def _encoded(self, queries: JaggedBatch, numbers: Tensor) -> Tensor:
        with self.bank.choose(self._rows(queries, numbers)):
            return self.model.query_vectors(queries)

    def score(self, queries: JaggedBatch, domains: Sequence[str | None]) -> Tensor:
        """Score every item of the catalogue for each query by cosine, [B, N]; row 0 is -inf."""
        scores = self.query_vectors(queries, domains) @ self.model.all_item_vectors().T
        scores[:, 0] = -torch.inf
        return scores

    def _rows(self, queries: JaggedBatch, numbers: Tensor) -> Tensor:
        """Number the adapter of each row of a corrected layer's input, [B] or [M]."""
        if isinstance(self.model, TwoTower):
            return numbers
        history = latest(queries["history"], self.model.config.max_length)
        return numbers[history.segments()]


def twin_of(model: TwoTower | SequenceModel) -> TwoTower | SequenceModel:
    """Copy a model's layers but none of its tensors, so that adapters do not reach the original."""
    memo: dict[int, object] = {id(one): one for one in (*model.parameters(), *model.buffers())}
    inputs = model.all_item_inputs()
    memo[id(inputs)] = inputs
    return copy.deepcopy(model, memo)
