"""A retriever that encodes each query with the adapter of its domain.

An adapter may correct the layers of the query side, the projection of an item's content and the id
embeddings of the domain's items. If it corrects the item side, the domain has item vectors of its
own, encoded once; otherwise domains share the base's.

Axes: B queries, N item rows, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import JaggedBatch
from recsys.layers.lora.linear import LoraAdapter, targeted_tables
from recsys.models.item_tower import CatalogueModel
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower


class LoraBank:
    """Merges adapters with their base's weights, of which each forward chooses one at no cost.

    Outside of ``choose`` the base is not corrected. The choice belongs to the calling thread or
    task, so a bank may be shared.
    """

    def __init__(self, base: nn.Module, adapters: Mapping[str, LoraAdapter]) -> None:
        """Merge copies; training an adapter, or the base, later does not change the bank."""
        self._names = frozenset(adapters)
        self._chosen: ContextVar[str | None] = ContextVar("chosen", default=None)
        self._layers: list[nn.Linear] = []
        digests = {one.base_digest for one in adapters.values()}
        if len(digests) > 1:
            raise ValueError(
                f"adapters of one bank need one base, these were made for {sorted(digests)}"
            )
        layers = dict(base.named_modules())
        for name in dict.fromkeys(name for one in adapters.values() for name in one.layers):
            layer = layers.get(name)
            if not isinstance(layer, nn.Linear):
                raise ValueError(f"the base has no linear layer {name!r} that an adapter corrects")
            if "forward" in vars(layer):
                raise ValueError(f"layer {name!r} has a bank already; call its remove() first")
            merged: dict[str | None, Tensor] = {
                key: _merged(name, layer, one)
                for key, one in adapters.items()
                if name in one.layers
            }
            layer.forward = self._forward(layer, merged)  # type: ignore[method-assign, assignment]
            self._layers.append(layer)

    def __contains__(self, name: str | None) -> bool:
        return name in self._names

    @contextmanager
    def choose(self, name: str | None) -> Iterator[None]:
        """Correct by one adapter, without gradients; an unknown name, or None, is the base."""
        assert not torch.is_grad_enabled()
        token = self._chosen.set(name)
        try:
            yield
        finally:
            self._chosen.reset(token)

    def remove(self) -> None:
        """Take the adapters out of the base."""
        for layer in self._layers:
            del layer.forward
        self._layers = []

    def _forward(
        self, layer: nn.Linear, merged: Mapping[str | None, Tensor]
    ) -> Callable[[Tensor], Tensor]:
        def forward(inputs: Tensor) -> Tensor:
            weight = merged.get(self._chosen.get())
            if weight is None:
                # As the layer's own class multiplies, so that the base's bits are the base's.
                output: Tensor = type(layer).forward(layer, inputs)
                return output
            return functional.linear(inputs, weight, layer.bias)

        return forward


def _merged(name: str, layer: nn.Linear, adapter: LoraAdapter) -> Tensor:
    """Add an adapter's correction to a layer's weights, [O, I]."""
    weight, one = layer.weight.detach(), adapter.correction(name)
    if one.a.shape[1] != layer.in_features or one.b.shape[0] != layer.out_features:
        raise ValueError(
            f"an adapter's {name} is {one.b.shape[0]} x {one.a.shape[1]}, the base's "
            f"{layer.out_features} x {layer.in_features}; it was made for another base"
        )
    scaled = adapter.config.scale * one.b.detach().to(weight)
    return weight + scaled @ one.a.detach().to(weight)


Model = TwoTower | SequenceModel
Twin = TypeVar("Twin", bound=CatalogueModel)
QUERY_LAYERS: Mapping[type[Model], str] = {TwoTower: "query_tower.*", SequenceModel: "encoder.*"}
CONTENT_LAYER = "item_tower.content"
ITEM_TABLE = "item"
ENCODED_AT_A_TIME = 1 << 16


def adapted_layers(model: Model) -> tuple[str, ...]:
    """Return the default targets of adapters: the query side, and the projection of content."""
    reading = QUERY_LAYERS[type(model)]
    return (reading,) if model.item_tower.content is None else (reading, CONTENT_LAYER)


def copy_layers(model: Twin) -> Twin:
    """Copy a model's layers without its tensors, so that adapters do not affect the original."""
    memo: dict[int, object] = {id(one): one for one in (*model.parameters(), *model.buffers())}
    inputs = model.all_item_inputs()
    memo[id(inputs)] = inputs
    return copy.deepcopy(model, memo)


@torch.no_grad()
def centre_items(model: Model, adapter: LoraAdapter, rows: Tensor) -> None:
    """Initialise an adapter so that it subtracts the mean of a domain's items.

    For a domain that the base was not trained on: its items have content only, and their common
    part dominates every cosine. The projected content c_i is corrected by
    - m (mean content . c_i) / |mean content|^2 with m the items' mean input, a correction of
    rank 1 that replaces the adapter's first. Call it before training.
    """
    if CONTENT_LAYER not in adapter.layers:
        raise ValueError(f"items are centred by a correction of {CONTENT_LAYER}; add it to targets")
    rows = rows.to(model.all_item_inputs().device)
    mean, content = model.item_inputs(rows).mean(0), model.look_up_content(rows).float().mean(0)
    one = adapter.correction(CONTENT_LAYER)
    # Equal parts, as training moves both at one rate.
    length = (mean.norm() / (adapter.config.scale * model.config.content_weight)).sqrt()
    one.a[0] = length * content / (content @ content)
    one.b[:, 0] = -length * mean / mean.norm()


class AdaptedRetriever:
    """A base with the adapters of several domains."""

    def __init__(self, model: Model, adapters: Mapping[str, LoraAdapter]) -> None:
        """Put adapters into a model; without a domain it computes what it did."""
        self.model = model
        self._bank = LoraBank(model, adapters)
        # Before any adapter corrects it: the model keeps what it encodes first.
        self._base_vectors = model.normalized(model.all_item_inputs())
        # Item inputs of the domains that correct them, each [N, D].
        self._inputs = {
            domain: self._encode_items(domain, adapter)
            for domain, adapter in adapters.items()
            if CONTENT_LAYER in adapter.layers or adapter.tables
        }
        self._vectors = {domain: model.normalized(one) for domain, one in self._inputs.items()}

    def knows(self, domain: str | None) -> bool:
        return domain in self._bank

    def item_vectors(self, domain: str | None) -> Tensor:
        """Return the unit vectors of the whole catalogue in a domain, [N, D]; row 0 is no item."""
        return (
            self._base_vectors if domain is None else self._vectors.get(domain, self._base_vectors)
        )

    def shares_items(self, domain: str | None) -> bool:
        """Check whether a domain uses the base's item vectors, and so its index."""
        return domain not in self._vectors

    @torch.no_grad()
    def query_vectors(self, queries: JaggedBatch, domain: str | None) -> Tensor:
        """Encode queries of one domain as unit vectors, [B, D]; an unknown one uses the base."""
        inputs = None if domain is None else self._inputs.get(domain)
        with self._bank.choose(domain):
            return self.model.query_vectors(
                queries, None if inputs is None else lambda history: inputs[history.values]
            )

    @torch.no_grad()
    def score(self, queries: JaggedBatch, domain: str | None) -> Tensor:
        """Score every item of the catalogue for each query by cosine, [B, N]; row 0 is -inf."""
        scores = self.query_vectors(queries, domain) @ self.item_vectors(domain).T
        scores[:, 0] = -torch.inf
        return scores

    @torch.no_grad()
    def _encode_items(self, domain: str, adapter: LoraAdapter) -> Tensor:
        """Encode the catalogue through one adapter, [N, D]."""
        # Tables are read for items only, so the bank does not hold them.
        hooks = [
            table.layer.register_forward_hook(adapter.table_hook(name))
            for name, table in targeted_tables(self.model, tuple(adapter.tables)).items()
        ]
        device = self.model.all_item_inputs().device
        rows = torch.arange(self.model.num_item_rows, device=device)
        with self._bank.choose(domain):
            parts = [self.model.item_inputs(part) for part in torch.split(rows, ENCODED_AT_A_TIME)]
        for hook in hooks:
            hook.remove()
        return torch.cat(parts)
