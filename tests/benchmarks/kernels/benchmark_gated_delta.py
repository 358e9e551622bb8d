"""Time the gated delta rule on one GPU beside chunks in PyTorch and flash-linear-attention.

The forward alone: gradients are PyTorch's in this package. Full sequences of one length. Nothing is
timed in a case whose results disagree with float64. Flash-linear-attention runs where it imports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from recsys.kernels.choice import without
from recsys.kernels.gated_delta.op import gated_delta
from recsys.kernels.gated_delta.reference import DeltaInputs, recurrent
from recsys.kernels.measure import median_ms
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.comparison import error_row, free_memory, largest_error

TOLERANCE = 1e-4
"""Largest error by the largest true value, in float32."""
CASES = ((1, 10_000, 2, 64), (8, 4_000, 1, 128), (32, 2_048, 4, 64), (128, 512, 4, 64))
"""Sequences, events of each, heads, width of a head."""


def drawn(batch: int, length: int, heads: int, dim: int) -> DeltaInputs:
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch * length, heads, *shape, generator=generator, device="cuda")

    return DeltaInputs(
        functional.normalize(normal(dim), dim=2),
        functional.normalize(normal(dim), dim=2),
        normal(dim),
        -functional.softplus(normal() - 4),
        normal().sigmoid(),
    )


def flash_linear_attention() -> Callable[..., Any] | None:
    """Return the peer's function, or None where it is not installed or does not import."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except Exception as error:  # its import compiles and probes the device
        print(f"flash-linear-attention is left out: {error!r}")
        return None
    peer: Callable[..., Any] = chunk_gated_delta_rule
    return peer


def measured(case: tuple[int, int, int, int]) -> list[Row]:
    batch, length, _, _ = case
    name = named(case)
    inputs = drawn(*case)
    offsets = torch.arange(batch + 1, device="cuda") * length
    short = min(length, 700)
    part = DeltaInputs(*(one[:short] for one in inputs))
    ends = torch.tensor([0, short], device="cuda")
    true = recurrent(DeltaInputs(*(one.double() for one in part)), ends)
    error = largest_error(gated_delta(part, ends, short), true)
    rows = [error_row(name, error, TOLERANCE)]
    if error >= TOLERANCE:
        return rows
    ours = median_ms([lambda: gated_delta(inputs, offsets, length)])

    def in_torch() -> None:
        with without("gated_delta"):
            gated_delta(inputs, offsets, length)

    theirs = median_ms([in_torch])
    rows.append(
        Row(name=f"{name}: forward", value=ours, unit="ms", peer="PyTorch", peer_value=theirs)
    )
    return rows


def beside_peer(case: tuple[int, int, int, int], peer: Callable[..., Any]) -> list[Row]:
    """Time the peer in bfloat16, the type that it is made for; ours computes in float32."""
    batch, length, *_ = case
    inputs, offsets = drawn(*case), torch.arange(batch + 1, device="cuda") * length
    q, k, v, decay, beta = (one.view(batch, length, *one.shape[1:]) for one in inputs)
    q, k, v, beta = (one.to(torch.bfloat16) for one in (q, k, v, beta))
    try:
        theirs = median_ms([lambda: peer(q, k, v, g=decay, beta=beta)])
    except Exception as failure:  # a peer that fails is a finding
        print(f"flash-linear-attention, {case}: {failure!r}"[:400])
        return []
    return [
        Row(
            name=f"{named(case)}: forward beside bfloat16",
            value=median_ms([lambda: gated_delta(inputs, offsets, length)]),
            unit="ms",
            peer="flash-linear-attention",
            peer_value=theirs,
        )
    ]


def named(case: tuple[int, int, int, int]) -> str:
    batch, length, heads, dim = case
    return f"{batch} x {length} events, {heads} heads of {dim}"


def main() -> None:
    command_line(__doc__).parse_args()
    peer, rows, device = flash_linear_attention(), [], torch.cuda.get_device_name()
    parts = [lambda case=case: measured(case) for case in CASES]
    if peer is not None:
        parts += [lambda case=case: beside_peer(case, peer) for case in CASES]
    with torch.no_grad():
        for part in parts:
            rows += part()
            # The peer's tuning may outlast a time limit.
            write_results("gated_delta", rows, device=device)
            free_memory()


if __name__ == "__main__":
    main()
