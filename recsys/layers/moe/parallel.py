"""Experts spread over devices: a process holds a share of them, and rows travel to their experts.

Expert parallelism of GShard (arXiv:2006.16668), without its capacity: as many rows travel as chose
an expert, so none is dropped. Router and shared experts are in every process. Two exchanges carry a
layer's rows there and back, and two more their gradients.

Axes: B rows of this process, K experts of each row, E experts of all P processes, D width, O output
width, V visits that this process's experts get from all.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from recsys.layers.moe.experts import Experts, Slots, collect, dispatch, grouped_slots


class _Exchange(torch.autograd.Function):
    """Send each process its stretch of rows; gradients travel back the same way."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sent: list[int],
        got: list[int],
        group: distributed.ProcessGroup | None,
    ) -> Tensor:
        ctx.sent, ctx.got, ctx.group = sent, got, group
        return _exchanged(rows, sent, got, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grad, ctx.got, ctx.sent, ctx.group), None, None, None


def _exchanged(
    rows: Tensor, sent: list[int], got: list[int], group: distributed.ProcessGroup | None
) -> Tensor:
    out = rows.new_empty(sum(got), *rows.shape[1:])
    distributed.all_to_all_single(out, rows.contiguous(), got, sent, group=group)
    return out


def experts_of_each(num_experts: int, num_devices: int) -> int:
    """Divide experts among devices.

    Raises:
        ValueError: If they do not come out even.
    """
    if num_devices < 1 or num_experts % num_devices:
        below = num_experts // max(1, num_devices) * num_devices
        fitting = [str(n) for n in (below, below + num_devices) if n]
        raise ValueError(
            f"num_experts must be a multiple of the devices that hold them, got {num_experts} "
            f"experts for {num_devices} devices; use {' or '.join(fitting)} experts, or a number "
            f"of devices that divides {num_experts}"
        )
    return num_experts // num_devices


class SpreadExperts(nn.Module):
    """This process's share of the experts of a layer; takes the place of its ``experts``.

    Every process calls it, with rows of its own, as often as every other. An expert's gradient is
    that of the sum of all processes' losses.

    Args:
        whole: All experts, the same in every process.
        group: Processes that share them; all by default.

    Raises:
        ValueError: If the experts do not come out even.
    """

    def __init__(self, whole: Experts, group: distributed.ProcessGroup | None = None) -> None:
        super().__init__()
        self.group, self.num_experts = group, whole.num_experts
        own = experts_of_each(whole.num_experts, distributed.get_world_size(group))
        first = distributed.get_rank(group) * own
        output_dim, hidden_dim = whole.down.shape[1:]
        self.own = Experts(
            own,
            whole.up.shape[2],
            hidden_dim,
            output_dim,
            compute=whole.compute,
            block_rows=whole.block_rows,
        ).to(whole.up)
        with torch.no_grad():
            self.own.up.copy_(whole.up[first : first + own])
            self.own.down.copy_(whole.down[first : first + own])

    def forward(self, rows: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Add up what each row's experts say, [B, O]; see ``Experts.forward``."""
        if torch.is_autocast_enabled(rows.device.type):
            rows = rows.to(torch.get_autocast_dtype(rows.device.type))
        slots = grouped_slots(experts, self.num_experts)
        counts = slots.ends.diff(prepend=slots.ends.new_zeros(1)).long()  # [E]
        coming = torch.empty_like(counts)
        distributed.all_to_all_single(coming, counts, group=self.group)
        own = self.own.num_experts
        # Two copies to the host: how much to send must be known there.
        sent = counts.view(-1, own).sum(1).tolist()
        got = coming.view(-1, own).sum(1).tolist()
        visits = self._exchange(dispatch(rows, slots), sent, got)  # [V, D]
        numbers = torch.arange(own, device=rows.device).repeat(len(got))
        visited = numbers.repeat_interleave(coming)[:, None]  # [V, 1]
        outputs = self.own(visits, visited, torch.ones_like(visited, dtype=torch.float32))
        return self._collect(self._exchange(outputs, got, sent), slots, weights)

    def _exchange(self, rows: Tensor, sent: list[int], got: list[int]) -> Tensor:
        return cast(
            "Tensor",
            _Exchange.apply(rows, sent, got, self.group),  # type: ignore[no-untyped-call]
        )

    def _collect(self, outputs: Tensor, slots: Slots, weights: Tensor) -> Tensor:
        with torch.autocast(outputs.device.type, enabled=False):
            return collect(outputs, slots, weights.to(outputs.dtype))
