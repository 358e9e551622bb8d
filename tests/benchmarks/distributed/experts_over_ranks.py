"""Experts on every rank against experts spread over ranks; imported by the benchmark of ranks.

On every rank, the gradients of all experts are summed over ranks (all-reduce); spread, rows travel
to the rank of their experts and back (all-to-all, GShard, arXiv:2006.16668, without a capacity).

Axes: B rows of a rank, K experts of a row, E experts of all ranks, D width, F inner width, V
visits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from recsys.layers.moe.experts import Experts, collect, dispatch, grouped_slots
from tests.benchmarks.distributed.collectives import seconds_of

SIZES = ((512, 2048, 32), (1024, 4096, 64), (1024, 8192, 128))
"""D, F and E."""


class _Exchange(torch.autograd.Function):
    """Send each rank its stretch of rows; gradients travel back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], got: list[int]) -> Tensor:
        ctx.sent, ctx.got = sent, got
        return exchanged(rows, sent, got)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return exchanged(grad, ctx.got, ctx.sent), None, None


def exchanged(rows: Tensor, sent: list[int], got: list[int]) -> Tensor:
    out = rows.new_empty(sum(got), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), got, sent)
    return out


def part_of(whole: Experts) -> Experts:
    """Take this rank's experts out of all."""
    own = whole.num_experts // dist.get_world_size()
    first = dist.get_rank() * own
    output_dim, hidden_dim = whole.down.shape[1:]
    part = Experts(own, whole.up.shape[2], hidden_dim, output_dim).to(whole.up)
    with torch.no_grad():
        part.up.copy_(whole.up[first : first + own])
        part.down.copy_(whole.down[first : first + own])
    return part


def spread_output(own: Experts, rows: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """Add up what each row's experts say, on whichever rank they are, [B, D]."""
    size = dist.get_world_size()
    if torch.is_autocast_enabled(rows.device.type):
        rows = rows.to(torch.get_autocast_dtype(rows.device.type))
    slots = grouped_slots(experts, own.num_experts * size)
    counts = slots.ends.diff(prepend=slots.ends.new_zeros(1)).long()  # [E]
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    sent = counts.view(size, -1).sum(1).tolist()
    got = coming.view(size, -1).sum(1).tolist()
    apply: Any = _Exchange.apply
    visits = apply(dispatch(rows, slots), sent, got)  # [V, D]
    numbers = torch.arange(own.num_experts, device=rows.device).repeat(size)
    visited = numbers.repeat_interleave(coming)[:, None]  # [V, 1]
    outputs = own(visits, visited, torch.ones_like(visited, dtype=torch.float32))
    back = apply(outputs, got, sent)
    with torch.autocast(rows.device.type, enabled=False):
        return collect(back, slots, weights.to(back.dtype))


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


class Layer:
    """One layer of experts whose rows this rank has, computed in both ways."""

    def __init__(self, sizes: tuple[int, int, int], num_rows: int, device: torch.device) -> None:
        dim, hidden_dim, num_experts = sizes
        torch.manual_seed(5)
        self.whole = Experts(num_experts, dim, hidden_dim, dim).to(device)
        self.own = part_of(self.whole)
        torch.manual_seed(100 + dist.get_rank())
        self.rows = torch.randn(num_rows, dim, device=device, requires_grad=True)
        self.experts = torch.rand(num_rows, num_experts, device=device).topk(2).indices
        self.weights = torch.rand(num_rows, 2, device=device)
        self.device = device

    def autocast(self) -> torch.autocast:
        on = self.device.type == "cuda"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=on)

    def replicated(self) -> Tensor:
        with self.autocast():
            out = self.whole(self.rows, self.experts, self.weights)
        return step(out, self.rows, self.whole, summed=True)

    def spread(self) -> Tensor:
        with self.autocast():
            out = spread_output(self.own, self.rows, self.experts, self.weights)
        return step(out, self.rows, self.own, summed=False)

    def worst_error(self) -> float:
        """Compare the gradients of rows and of this rank's experts."""
        wanted, got = self.replicated(), self.spread()
        first = dist.get_rank() * self.own.num_experts
        errors = [relative(got, wanted)]
        for mine, everyone in zip(self.own.parameters(), self.whole.parameters(), strict=True):
            assert mine.grad is not None
            assert everyone.grad is not None
            errors.append(relative(mine.grad, everyone.grad[first : first + len(mine)]))
        return max(errors)


def compared(device: torch.device, num_rows: int, *, tiny: bool) -> list[dict[str, Any]]:
    """Check gradients of both ways against each other, then time forward and backward of each."""
    found = []
    for sizes in ((16, 32, 4),) if tiny else SIZES:
        layer = Layer(sizes, num_rows, device)
        dim, hidden_dim, num_experts = sizes
        found.append(
            {
                "case": f"D {dim}, F {hidden_dim}, {num_experts} experts, {num_rows} rows a rank",
                "worst_error": layer.worst_error(),
                "replicated": 1e3 * seconds_of(layer.replicated, device),
                "spread": 1e3 * seconds_of(layer.spread, device),
            }
        )
        del layer
    return found


def step(out: Tensor, rows: Tensor, experts: Experts, *, summed: bool) -> Tensor:
    """Go backward from the sum of squares; return the gradient of the rows."""
    rows.grad = experts.up.grad = experts.down.grad = None
    out.float().square().sum().backward()  # type: ignore[no-untyped-call]
    if summed:
        dist.all_reduce(experts.up.grad)
        dist.all_reduce(experts.down.grad)
    assert rows.grad is not None
    return rows.grad
