"""A retriever that encodes each query with the adapter of its domain.

An adapter may correct the layers of the query side, the projection of an item's content and the id
embeddings of the domain's items. If it corrects the item side, the domain has item vectors of its
own, encoded once; otherwise domains share the base's.

Axes: B queries, M events of a batch, S sets of item vectors, N item rows, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.lora.bank import LoraBank, Runs
from recsys.layers.lora.linear import LoraAdapter
from recsys.layers.lora.table import targeted_tables
from recsys.models.item_tower import CatalogueModel
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower

Model = TwoTower | SequenceModel
Twin = TypeVar("Twin", bound=CatalogueModel)
QUERY_LAYERS: Mapping[type[Model], str] = {TwoTower: "query_tower.*", SequenceModel: "encoder.*"}
CONTENT_LAYER = "item_tower.content"
ITEM_TABLE = "item"
ENCODED_AT_A_TIME = 1 << 16
SORTED_FROM = 512
"""Events of a batch from which sorting by domain pays off."""


def adapted_layers(model: Model) -> tuple[str, ...]:
    """Give the default targets of adapters: the query side, and the projection of content."""
    reading = QUERY_LAYERS[type(model)]
    return (reading,) if model.item_tower.content is None else (reading, CONTENT_LAYER)


def twin_of(model: Twin) -> Twin:
    """Copy a model's layers without its tensors, so that adapters do not affect the original."""
    memo: dict[int, object] = {id(one): one for one in (*model.parameters(), *model.buffers())}
    inputs = model.all_item_inputs()
    memo[id(inputs)] = inputs
    return copy.deepcopy(model, memo)


@torch.no_grad()
def centre_items(model: Model, adapter: LoraAdapter, rows: Tensor, share: float) -> None:
    """Initialise an adapter so that it subtracts the mean of a domain's items.

    For a domain that the base was not trained on: its items have content only, and their common
    part dominates every cosine. The projected content c_i is corrected by
    - share m (mean content . c_i) / |mean content|^2 with m the items' mean input, a correction of
    rank 1 that replaces the adapter's first. Call it before training.

    Args:
        rows: The domain's items.
        share: Of the mean that is subtracted; at 1 the items' mean input becomes zero.

    Raises:
        ValueError: If the adapter does not correct the projection of content.
    """
    if CONTENT_LAYER not in adapter.layers:
        raise ValueError(f"items are centred by a correction of {CONTENT_LAYER}; add it to targets")
    rows = rows.to(model.all_item_inputs().device)
    mean, content = model.item_inputs(rows).mean(0), model.content_of(rows).float().mean(0)
    one = adapter.correction(CONTENT_LAYER)
    # Equal parts, as training moves both at one rate.
    length = (share * mean.norm() / (adapter.config.scale * model.config.content_weight)).sqrt()
    one.a[0] = length * content / (content @ content)
    one.b[:, 0] = -length * mean / mean.norm()


def _of_event(history: Jagged, numbers: Tensor) -> Tensor:
    """Repeat each query's adapter number for its events, [B] -> [M]."""
    return torch.repeat_interleave(numbers, history.lengths(), output_size=len(history.values))


def _runs_or_rows(history: Jagged, numbers: Tensor) -> Runs | Tensor:
    """Give each event's adapter number; as runs on a CPU, since a device would have to wait."""
    if numbers.device.type != "cpu":
        return _of_event(history, numbers)
    runs: Runs = []
    for number, length in zip(numbers.tolist(), history.lengths().tolist(), strict=True):
        if runs and runs[-1][0] == number:
            runs[-1] = number, runs[-1][1] + length
        elif length:
            runs.append((number, length))
    return runs


class AdaptedRetriever:
    """A base with the adapters of several domains, as one retriever of mixed batches."""

    def __init__(self, model: Model, adapters: Mapping[str, LoraAdapter]) -> None:
        """Put adapters into a model; without a domain it computes what it did.

        Args:
            adapters: By domain, made for this model.

        Raises:
            ValueError: If an adapter is for another base.
        """
        self.model = model
        self.bank = LoraBank(model, adapters)
        # Number of an adapter -> its set of item vectors; 0 is the base's.
        self._set_of = [0]
        sets = [model.all_item_inputs()]
        for number, adapter in enumerate(adapters.values(), start=1):
            if CONTENT_LAYER in adapter.layers or adapter.tables:
                self._set_of.append(len(sets))
                sets.append(self._encode_items(number, adapter))
            else:
                self._set_of.append(0)
        self._inputs = sets  # S x [N, D]
        # Kept there: a graph that is captured cannot copy it.
        self._sets = torch.tensor(self._set_of, device=sets[0].device)
        self._vectors = [model.normalized(one) for one in sets]

    def numbers(self, domains: Sequence[str | None]) -> list[int]:
        """Look up each domain's adapter number; 0, the base, for an unknown domain or None."""
        return [self.bank.number(domain) for domain in domains]

    def knows(self, domain: str | None) -> bool:
        """Check whether a domain has an adapter."""
        return self.bank.number(domain) > 0

    def item_vectors(self, domain: str | None) -> Tensor:
        """Give the unit vectors of the whole catalogue in a domain, [N, D]; row 0 is no item."""
        return self._vectors[self._set_of[self.bank.number(domain)]]

    def shares_items(self, domain: str | None) -> bool:
        """Check whether a domain uses the base's item vectors, and so its index."""
        return self._set_of[self.bank.number(domain)] == 0

    @torch.no_grad()
    def query_vectors(self, queries: JaggedBatch, domains: Sequence[str | None]) -> Tensor:
        """Encode queries as unit vectors, [B, D].

        Args:
            domains: Of each query; an unknown one, or None, uses the base.
        """
        if len(domains) != queries.batch_size:
            raise ValueError(f"{len(domains)} domains for {queries.batch_size} queries")
        found, events = self.numbers(domains), queries["history"].values
        if len(set(found)) == 1:
            return self._encoded_by_one(queries, found[0])
        numbers = torch.tensor(found)
        if events.device.type != "cpu" or len(events) < SORTED_FROM:
            numbers = numbers.to(events.device, non_blocking=True)
            return self._encoded(queries, numbers, keep_base=0 in found)
        # Sorted by domain, so that a CPU can use merged weights.
        order = torch.argsort(numbers, stable=True)
        ordered = {name: feature.take(order) for name, feature in queries.features.items()}
        vectors = self._encoded(JaggedBatch(ordered), numbers[order], keep_base=True)
        return torch.empty_like(vectors).index_copy_(0, order, vectors)

    @torch.no_grad()
    def score(self, queries: JaggedBatch, domains: Sequence[str | None]) -> Tensor:
        """Score every item of the catalogue for each query by cosine, [B, N]; row 0 is -inf."""
        vectors = self.query_vectors(queries, domains)
        sets = [self._set_of[number] for number in self.numbers(domains)]
        if len(set(sets)) == 1:
            scores = vectors @ self._vectors[sets[0]].T
        else:
            scores = vectors.new_empty(len(vectors), len(self._vectors[0]))
            for one in set(sets):
                rows = [row for row, other in enumerate(sets) if other == one]
                scores[rows] = vectors[rows] @ self._vectors[one].T
        scores[:, 0] = -torch.inf
        return scores

    def _encoded(self, queries: JaggedBatch, numbers: Tensor, *, keep_base: bool) -> Tensor:
        by_query = isinstance(self.model, TwoTower)
        with self.bank.choosing(keep_base=keep_base) as choose:
            if by_query:
                choose(numbers)

            def inputs_of(history: Jagged) -> Tensor:
                if not by_query:
                    choose(_runs_or_rows(history, numbers))
                if len(self._inputs) == 1:
                    return self._inputs[0][history.values]
                return self._inputs_of(history, _of_event(history, numbers))

            return self.model.query_vectors(queries, inputs_of)

    def _inputs_of(self, history: Jagged, of_event: Tensor) -> Tensor:
        """Look events up in the item vectors of their adapters, [M, D]."""
        inputs = self._inputs[0][history.values]
        # One set after the other; no stacked copy of all of them is kept.
        for one in range(1, len(self._inputs)):
            own = (self._sets == one)[of_event][:, None]
            inputs = torch.where(own, self._inputs[one][history.values], inputs)
        return inputs

    def _encoded_by_one(self, queries: JaggedBatch, number: int) -> Tensor:
        inputs = self._inputs[self._set_of[number]]
        own = self._set_of[number] > 0
        with self.bank.choose_one(number):
            return self.model.query_vectors(
                queries, (lambda history: inputs[history.values]) if own else None
            )

    @torch.no_grad()
    def _encode_items(self, number: int, adapter: LoraAdapter) -> Tensor:
        """Encode the catalogue through one adapter, [N, D]."""
        # Tables are read for items only, so the bank does not hold them.
        hooks = [
            table.layer.register_forward_hook(adapter.table_hook(name))
            for name, table in targeted_tables(self.model, tuple(adapter.tables)).items()
        ]
        device = self.model.all_item_inputs().device
        rows = torch.arange(self.model.num_item_rows, device=device)
        with self.bank.choose_one(number):
            parts = [self.model.item_inputs(part) for part in torch.split(rows, ENCODED_AT_A_TIME)]
        for hook in hooks:
            hook.remove()
        return torch.cat(parts)
