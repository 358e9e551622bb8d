"""Time HSTU attention on one GPU without biases and with both, as captured graphs.

Full sequences give TFLOP/s (operations of the lower triangle, a backward counted as 2.5 forwards).
Nothing is timed in a case whose results disagree with float64. The comparison with attention over
padded tensors (23 to 146 times as slow) is in history, its results on the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.hstu_attention.op import (
    PositionBias,
    TimeBias,
    distance_buckets,
    hstu_attention,
    reference_attention,
)
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.comparison import (
    StepTimes,
    error_row,
    free_memory,
    largest_error,
    step_times,
)

HEADS, BUCKETS = 8, 32
TOLERANCE = 2e-2
"""Largest error by the largest true value, of results and gradients in bf16."""
GOALS = {(64, "forward"): 150, (128, "forward"): 430, (128, "backward"): 340}


class Case(NamedTuple):
    name: str
    dim: int
    length: int
    batch: int


CASES = [Case("D64 L1024", 64, 1024, 32), Case("D128 L2048", 128, 2048, 16)]


class Batch(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    offsets: Tensor
    max_length: int
    position: PositionBias
    time: TimeBias


def make_batch(case: Case) -> Batch:
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    lengths = torch.full((case.batch,), case.length, device="cuda")
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    total = int(offsets[-1])
    tensors = [random(total, HEADS, case.dim).bfloat16() for _ in range(4)]
    # Between events: seconds to months, log-uniform.
    gaps = torch.rand(total + 1, generator=generator, device="cuda") * 13
    times = gaps.exp().long().cumsum(0)
    return Batch(
        *tensors,
        offsets,
        case.length,
        PositionBias(
            weights=random(HEADS, BUCKETS), buckets=distance_buckets(case.length, BUCKETS).cuda()
        ),
        TimeBias(weights=random(HEADS, BUCKETS), query_times=times[1:], key_times=times[:-1]),
    )


def attend(batch: Batch, attention: Callable[..., Tensor], biased: bool) -> list[Tensor]:
    """Result and gradients by one implementation with the arguments of `hstu_attention`."""
    leaves = [x.detach().requires_grad_() for x in batch[:3]]
    position = time = None
    if biased:
        leaves += [batch.position.weights.detach().requires_grad_()]
        leaves += [batch.time.weights.detach().requires_grad_()]
        position = replace(batch.position, weights=leaves[3])
        time = replace(batch.time, weights=leaves[4])
    out = attention(
        *leaves[:3], batch.offsets, batch.max_length, position_bias=position, time_bias=time
    )
    out.backward(batch.grad)
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def worst_error(batch: Batch, biased: bool) -> float:
    """Largest error of results and gradients of the first two sequences against float64."""
    end = int(batch.offsets[2])
    part = batch._replace(
        **{name: getattr(batch, name)[:end] for name in ("q", "k", "v", "grad")},
        offsets=batch.offsets[:3],
        time=replace(
            batch.time,
            query_times=batch.time.query_times[:end],
            key_times=batch.time.key_times[:end],
        ),
    )
    wide = part._replace(
        **{name: getattr(part, name).double() for name in ("q", "k", "v", "grad")},
        position=replace(part.position, weights=part.position.weights.double()),
        time=replace(part.time, weights=part.time.weights.double()),
    )
    found, true = (
        attend(one, f, biased) for one, f in ((part, hstu_attention), (wide, reference_attention))
    )
    return largest_error(found, true)


def time_ours(batch: Batch, biased: bool) -> StepTimes:
    leaves = [x.detach().requires_grad_() for x in batch[:3]]
    options = {}
    if biased:
        weights = [x.weights.detach().requires_grad_() for x in (batch.position, batch.time)]
        leaves += weights
        options = {
            "position_bias": replace(batch.position, weights=weights[0]),
            "time_bias": replace(batch.time, weights=weights[1]),
        }
    return step_times(
        lambda: hstu_attention(*leaves[:3], batch.offsets, batch.max_length, **options),
        leaves,
        batch.grad,
    )


def rows_of_full(case: Case, batch: Batch) -> list[Row]:
    """TFLOP/s without biases, and what the biases add."""
    flops = 2 * case.batch * HEADS * case.length**2 * case.dim
    plain, biased = time_ours(batch, False), time_ours(batch, True)
    rows = []
    for place, name, share in ((0, "forward", 1.0), (1, "backward", 2.5)):
        ms, with_biases = (found[place] - (found[0] if place else 0) for found in (plain, biased))
        rate = share * flops / ms / 1e9
        goal = GOALS.get((case.dim, name))
        rows += [
            Row(name=f"{case.name}: {name}", value=ms, unit="ms"),
            Row(name=f"{case.name}: rate of the {name}", value=rate, unit="TFLOP/s", at_least=goal),
            Row(
                name=f"{case.name}: {name} with both biases"
                + (" and their gradients" if place else ""),
                value=with_biases,
                unit="ms",
                peer="without",
                min_ratio=0.85,
                peer_value=ms,
            ),
        ]
    return rows


def rows_of(case: Case) -> list[Row]:
    """Check a case against float64, then time it."""
    batch = make_batch(case)
    error = max(worst_error(batch, biased) for biased in (False, True))
    rows = [error_row(case.name, error, TOLERANCE)]
    rows += rows_of_full(case, batch) if rows[0].met else []
    del batch
    free_memory()
    return rows


def main() -> None:
    command_line(__doc__).parse_args()
    rows = [row for case in CASES for row in rows_of(case)]
    write_results("hstu_attention", rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
