"""Several adapters of one base in one forward: each row of a batch is corrected by its own.

All A of a layer lie side by side in one matrix, all B likewise. With few adapters every row is
multiplied by all of them and a mask keeps its own: two matrix products, no sorting, no wait for the
device, and each row's result is the same whatever stands beside it. With many adapters each row
gathers its own matrices (Punica, arXiv:2310.18547) for batched products.

Axes: X rows, S adapters, r the largest rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from recsys.layers.lora import Hook, LoraAdapter

MASKED_UP_TO = 16
"""Adapters up to which multiplying by all and masking is the faster way (``results/lora.md``)."""


class _Chosen(NamedTuple):
    rows: Tensor
    """[X] number of each row's adapter, 0 is none."""
    mask: Tensor | None
    """[X, S r] which columns are the row's own, None where rows gather."""


@dataclass(frozen=True)
class _Stacked:
    """One layer's matrices, the scale within b; an adapter that leaves it alone has zeros."""

    a: Tensor
    """[1 + S, r, I], the first zero."""
    b: Tensor
    """[1 + S, O, r]."""
    side_by_side: tuple[Tensor, Tensor]
    """a as [S r, I] and b as [S r, O]."""


class LoraBank:
    """Stacks adapters and hooks them into their base.

    Outside of ``choose`` the base answers alone. What is chosen belongs to the calling thread or
    task, so that a bank may be shared.
    """

    def __init__(self, base: nn.Module, adapters: Mapping[str, LoraAdapter]) -> None:
        """Copy the matrices; training an adapter later does not change the bank.

        Raises:
            ValueError: If an adapter was made for another base; names both digests.
        """
        self.names = tuple(adapters)
        self._number = {name: place for place, name in enumerate(self.names, start=1)}
        self._rank = max((one.config.rank for one in adapters.values()), default=1)
        self._chosen: ContextVar[_Chosen | None] = ContextVar("chosen", default=None)
        self._hooks: list[RemovableHandle] = []
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
            hook = self._hook(_stack(name, layer, list(adapters.values()), self._rank))
            self._hooks.append(layer.register_forward_hook(hook))

    def number(self, name: str | None) -> int:
        """Number an adapter by its name for ``choose``; 0, the base alone, for any other name."""
        return self._number.get(name, 0) if name is not None else 0

    @contextmanager
    def choose(self, rows: Tensor) -> Iterator[None]:
        """Correct each row of the inputs of corrected layers by its adapter.

        Args:
            rows: Number of each row's adapter, [X]; rows of 0 get the base's answer, bit for bit.
        """
        token = self._chosen.set(_Chosen(rows, self._mask(rows)))
        try:
            yield
        finally:
            self._chosen.reset(token)

    def remove(self) -> None:
        """Take the hooks out of the base."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _mask(self, rows: Tensor) -> Tensor | None:
        if len(self.names) > MASKED_UP_TO:
            return None
        columns = torch.arange(1, len(self.names) + 1, device=rows.device)
        own = (rows[:, None] == columns).float()  # [X, S]
        return own.repeat_interleave(self._rank, dim=1, output_size=len(columns) * self._rank)

    def _hook(self, stacked: _Stacked) -> Hook:
        def correct(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
            chosen = self._chosen.get()
            if chosen is None:
                return None
            if len(inputs[0]) != len(chosen.rows):
                raise ValueError(
                    f"adapters were chosen for {len(chosen.rows)} rows, a corrected layer got "
                    f"{len(inputs[0])}; choose one for each row that the layer reads"
                )
            if chosen.mask is None:
                return output + _gathered(inputs[0], chosen.rows, stacked)
            return _masked(inputs[0], output, chosen.mask, stacked)

        return correct


def _stack(name: str, layer: nn.Linear, adapters: list[LoraAdapter], rank: int) -> _Stacked:
    weight = layer.weight
    a = weight.new_zeros(1 + len(adapters), rank, layer.in_features)
    b = weight.new_zeros(1 + len(adapters), layer.out_features, rank)
    for place, adapter in enumerate(adapters, start=1):
        if name not in adapter.layers:
            continue
        one, own = adapter.correction(name), adapter.config.rank
        if one.a.shape[1] != layer.in_features or one.b.shape[0] != layer.out_features:
            raise ValueError(
                f"an adapter's {name} is {one.b.shape[0]} x {one.a.shape[1]}, the base's "
                f"{layer.out_features} x {layer.in_features}; it was made for another base"
            )
        a[place, :own] = one.a.detach().to(weight)
        b[place, :, :own] = adapter.config.scale * one.b.detach().to(weight)
    side = a[1:].flatten(0, 1).contiguous(), b[1:].transpose(1, 2).flatten(0, 1).contiguous()
    return _Stacked(a, b, side)


def _masked(inputs: Tensor, output: Tensor, mask: Tensor, stacked: _Stacked) -> Tensor:
    a, b = stacked.side_by_side
    inner = functional.linear(inputs, a)  # [X, ..., S r]
    between = (1,) * (inner.ndim - 2)
    inner = inner * mask.view(len(mask), *between, mask.shape[1])
    shape = output.shape
    return torch.addmm(output.flatten(0, -2), inner.flatten(0, -2).to(output.dtype), b).view(shape)


def _gathered(inputs: Tensor, rows: Tensor, stacked: _Stacked) -> Tensor:
    flat = inputs.view(len(inputs), -1, inputs.shape[-1])  # [X, P, I]
    inner = torch.bmm(flat, stacked.a[rows].transpose(1, 2))  # [X, P, r]
    corrected = torch.bmm(inner, stacked.b[rows].transpose(1, 2))  # [X, P, O]
    return corrected.view(*inputs.shape[:-1], -1)
