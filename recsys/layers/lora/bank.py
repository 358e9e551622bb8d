"""Several adapters of one base, of which a request chooses one.

A chosen adapter's layers multiply by merged weights, so a correction costs no arithmetic. A copy of
the merged weights per adapter is kept.

Axes: I and O a layer's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.layers.lora.linear import LoraAdapter


class LoraBank:
    """Merges adapters with their base's weights and lets each forward choose one.

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
