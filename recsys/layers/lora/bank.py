"""Several adapters of one base in one forward: each row of a batch is corrected by its own.

There are four ways to do it, chosen by what was measured
(``tests/benchmarks/adapters/benchmark_speed.py``):

- *On a GPU*: one kernel computes a layer with each row's correction (``recsys.kernels.lora``), or
  adds the correction to torch's product.
- *Few adapters*: all A of a layer are concatenated into one matrix, all B likewise; every row is
  multiplied by all of them and a mask keeps its own. No sorting, no wait for a device, and a row's
  result does not depend on the other rows.
- *Many adapters*: each row gathers its own matrices (Punica, arXiv:2310.18547).
- *Rows of one adapter, and on a CPU rows sorted by adapter*: each run of rows is multiplied by
  merged weights, so the correction costs no arithmetic; a copy of the merged weights per adapter is
  kept. Short runs of equal length are one batched product.

Axes: X rows, P places of a row, R runs, S adapters, r the largest rank, I and O a layer's inputs
and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.kernels.lora.op import Corrections
from recsys.layers.lora.linear import LoraAdapter

MASKED_UP_TO = 16
"""Adapters up to which rows are multiplied by all of them."""
ROWS_PER_RUN = 64
"""Rows of a run, on average, from which several products with merged weights are faster."""


Runs = list[tuple[int, int]]
"""Adapter number, 0 for none, and length of each run of rows, on the host."""


class _Chosen(NamedTuple):
    num_rows: int | None
    """X; None if one adapter applies to any number of rows."""
    rows: Tensor | None
    """[X] adapter number of each row, 0 for none; None with runs."""
    mask: Tensor | None
    """[X, S r] columns of the row's own adapter; None when gathering or with runs."""
    runs: Runs
    """Empty where runs are too short to pay off."""
    in_one_product: bool = False
    """Whether runs are short, of equal length and of consecutive adapters."""
    is_fused: bool = False
    """Whether one kernel launch adds the corrections."""
    is_whole: bool = False
    """Whether that launch computes the layer too."""


@dataclass(frozen=True)
class _Stacked:
    """One layer's matrices, b scaled; zeros for adapters that do not correct it."""

    a: Tensor
    """[1 + S, r, I], the first zero."""
    b: Tensor
    """[1 + S, O, r]."""
    side_by_side: tuple[Tensor, Tensor]
    """a as [S r, I] and b as [S r, O]."""
    merged: Tensor
    """[S, O, I], the weights with the corrections added."""
    corrections: Corrections
    """a [S, r, I] and b [S, r, O], for one launch."""


class LoraBank:
    """Stacks adapters and puts them into their base.

    Outside of ``choose`` the base is not corrected. The choice belongs to the calling thread or
    task, so a bank may be shared.
    """

    def __init__(self, base: nn.Module, adapters: Mapping[str, LoraAdapter]) -> None:
        """Copy the matrices; training an adapter, or the base, later does not change the bank.

        Raises:
            ValueError: If an adapter was made for another base; names the digests.
        """
        self.names = tuple(adapters)
        self._number = {name: place for place, name in enumerate(self.names, start=1)}
        self._rank = max((one.config.rank for one in adapters.values()), default=1)
        self._chosen: ContextVar[_Chosen | None] = ContextVar("chosen", default=None)
        self._layers: list[nn.Linear] = []
        self._is_fused = False
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
            stacked = _stack(name, layer, list(adapters.values()), self._rank)
            layer.forward = self._forward(layer, stacked)  # type: ignore[method-assign, assignment]
            self._layers.append(layer)
            self._is_fused = stacked.corrections.is_fused

    def number(self, name: str | None) -> int:
        """Number an adapter by its name for ``choose``; 0, the base alone, for any other name."""
        return self._number.get(name, 0) if name is not None else 0

    @contextmanager
    def choose(self, rows: Tensor, *, keep_base: bool = True) -> Iterator[None]:
        """Correct each row of the inputs of corrected layers by its adapter.

        Args:
            rows: Number of each row's adapter, [X]; rows of 0 get the base's answer.
            keep_base: Whether that shall have the base's own bits on a GPU too, for a launch more a
                layer. Without, every row's bits are the same in a batch of any size.
        """
        with self.choosing(keep_base=keep_base) as choose:
            choose(rows)
            yield

    @contextmanager
    def choosing(self, *, keep_base: bool = True) -> Iterator[Callable[[Tensor | Runs], None]]:
        """Let what runs inside ``choose``, once it knows its rows; until then the base answers.

        Rows on a CPU may be given as runs where those are known: finding them takes time.
        """
        token = self._chosen.set(None)

        def choose(rows: Tensor | Runs) -> None:
            self._chosen.set(self._choice(rows, keep_base))

        try:
            yield choose
        finally:
            self._chosen.reset(token)

    @contextmanager
    def choose_one(self, number: int) -> Iterator[None]:
        """Correct all rows by one adapter, without gradients, whatever the device."""
        assert not torch.is_grad_enabled()
        token = self._chosen.set(_Chosen(None, None, None, [(number, 0)]) if number else None)
        try:
            yield
        finally:
            self._chosen.reset(token)

    def remove(self) -> None:
        """Take the adapters out of the base."""
        for layer in self._layers:
            del layer.forward
        self._layers = []

    def _choice(self, rows: Tensor | Runs, keep_base: bool) -> _Chosen | None:
        if isinstance(rows, list) or rows.device.type == "cpu":
            runs = rows if isinstance(rows, list) else _runs_of(rows)
            if not any(number for number, _ in runs):
                return None
            num_rows = sum(count for _, count in runs)
            in_one = _fit_one_product(runs)
            few = in_one or num_rows >= ROWS_PER_RUN * len(runs)
            if few and not torch.is_grad_enabled():
                return _Chosen(num_rows, None, None, runs, in_one)
            if isinstance(rows, list):
                numbers, counts = torch.tensor(runs).unbind(1)
                rows = numbers.repeat_interleave(counts, output_size=num_rows)
        if self._is_fused and not torch.is_grad_enabled():
            return _Chosen(len(rows), rows, None, [], is_fused=True, is_whole=not keep_base)
        if len(self.names) > MASKED_UP_TO:
            return _Chosen(len(rows), rows, None, [])
        columns = torch.arange(1, len(self.names) + 1, device=rows.device)
        own = (rows[:, None] == columns).float()  # [X, S]
        width = len(columns) * self._rank
        mask = own.repeat_interleave(self._rank, dim=1, output_size=width)
        return _Chosen(len(rows), rows, mask, [])

    def _forward(self, layer: nn.Linear, stacked: _Stacked) -> Callable[[Tensor], Tensor]:
        def plain(inputs: Tensor) -> Tensor:
            # As the layer's own class multiplies, so that the base's bits are the base's.
            output: Tensor = type(layer).forward(layer, inputs)
            return output

        def forward(inputs: Tensor) -> Tensor:
            chosen = self._chosen.get()
            if chosen is None:
                return plain(inputs)
            if chosen.num_rows not in (None, len(inputs)):
                raise ValueError(
                    f"adapters were chosen for {chosen.num_rows} rows, a corrected layer got "
                    f"{len(inputs)}; choose one for each row that the layer reads"
                )
            if chosen.rows is None:
                return _by_merged(inputs, chosen, layer, stacked)
            if chosen.is_whole:
                return stacked.corrections.linear(inputs, chosen.rows, layer.weight, layer.bias)
            return _added(inputs, plain(inputs), chosen, stacked)

        return forward


def _stack(name: str, layer: nn.Linear, adapters: list[LoraAdapter], rank: int) -> _Stacked:
    weight = layer.weight.detach()
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
    merged = weight + b[1:] @ a[1:]
    down, up = a[1:].contiguous(), b[1:].transpose(1, 2).contiguous()
    side = down.flatten(0, 1), up.flatten(0, 1)
    return _Stacked(a, b, side, merged, Corrections(down, up))


def _by_merged(inputs: Tensor, chosen: _Chosen, layer: nn.Linear, stacked: _Stacked) -> Tensor:
    if chosen.num_rows is None:
        weight = stacked.merged[chosen.runs[0][0] - 1]
        return functional.linear(inputs, weight, layer.bias)
    if chosen.in_one_product:
        return _in_one_product(inputs, chosen.runs, layer, stacked)
    return _by_runs(inputs, chosen.runs, layer, stacked)


def _by_runs(inputs: Tensor, runs: Runs, layer: nn.Linear, stacked: _Stacked) -> Tensor:
    output = inputs.new_empty(*inputs.shape[:-1], layer.out_features)
    read, written = inputs.flatten(0, -2), output.flatten(0, -2)  # [X P, I], [X P, O]
    places = len(read) // len(inputs)
    begin = 0
    for number, count in runs:
        part = slice(begin, begin + count * places)
        weight = (stacked.merged[number - 1] if number else layer.weight).T
        if layer.bias is None:
            torch.mm(read[part], weight, out=written[part])
        else:
            torch.addmm(layer.bias, read[part], weight, out=written[part])
        begin = part.stop
    return output


def _runs_of(rows: Tensor) -> Runs:
    numbers, counts = torch.unique_consecutive(rows, return_counts=True)
    return list(zip(numbers.tolist(), counts.tolist(), strict=True))


def _fit_one_product(runs: Runs) -> bool:
    first, length = runs[0]
    return 0 < length <= ROWS_PER_RUN and runs == [
        (number, length) for number in range(first, first + len(runs)) if first
    ]


def _in_one_product(inputs: Tensor, runs: Runs, layer: nn.Linear, stacked: _Stacked) -> Tensor:
    first, read = runs[0][0] - 1, inputs.view(len(runs), -1, inputs.shape[-1])
    weights = stacked.merged[first : first + len(runs)].transpose(1, 2)  # [R, I, O]
    if layer.bias is None:
        product = torch.bmm(read, weights)
    else:
        product = torch.baddbmm(layer.bias, read, weights)
    return product.view(*inputs.shape[:-1], layer.out_features)


def _added(inputs: Tensor, output: Tensor, chosen: _Chosen, stacked: _Stacked) -> Tensor:
    assert chosen.rows is not None
    if chosen.is_fused:
        stacked.corrections.add(output, inputs, chosen.rows)
        return output
    if chosen.mask is not None:
        return _masked(inputs, output, chosen.mask, stacked)
    return output + _gathered(inputs, chosen.rows, stacked)


def _masked(inputs: Tensor, output: Tensor, mask: Tensor, stacked: _Stacked) -> Tensor:
    a, b = stacked.side_by_side
    inner = functional.linear(inputs, a)  # [X, ..., S r]
    between = (1,) * (inner.ndim - 2)
    inner = (inner * mask.view(len(mask), *between, mask.shape[1])).flatten(0, -2)
    flat = output.flatten(0, -2)
    if torch.is_grad_enabled():
        return torch.addmm(flat, inner.to(flat.dtype), b).view(output.shape)
    # Nobody else has seen the output, and a second one of that size costs more than the products.
    flat.addmm_(inner.to(flat.dtype), b)
    return output


def _gathered(inputs: Tensor, rows: Tensor, stacked: _Stacked) -> Tensor:
    flat = inputs.reshape(len(inputs), -1, inputs.shape[-1])  # [X, P, I]
    inner = torch.bmm(flat, stacked.a[rows].transpose(1, 2))  # [X, P, r]
    corrected = torch.bmm(inner, stacked.b[rows].transpose(1, 2))  # [X, P, O]
    return corrected.view(*inputs.shape[:-1], -1)
