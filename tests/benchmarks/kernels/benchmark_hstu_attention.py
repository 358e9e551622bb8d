"""Time HSTU attention on one GPU beside the same attention over padded tensors in plain PyTorch.

Full sequences give TFLOP/s (operations of the lower triangle, a backward counted as 2.5 forwards),
skewed lengths the comparison. The peer gets its inputs padded already and multiplies with a causal
mask only. It takes no gradients of biases, whose scattered sums over all pairs take it seconds.
Nothing is timed in a case whose results disagree with float64.
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
    time_buckets,
)
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.comparison import (
    StepTimes,
    error_row,
    free_memory,
    largest_error,
    step_rows,
    step_times,
)

HEADS, BUCKETS = 8, 32
TOLERANCE = 2e-2
"""Largest error by the largest true value, of results and gradients in bf16."""
GOALS = {(64, "forward"): 150, (128, "forward"): 230, (128, "backward"): 180}


class Case(NamedTuple):
    name: str
    dim: int
    length: int
    batch: int
    skewed: bool


CASES = [
    Case("D64 L1024", 64, 1024, 32, False),
    Case("D128 L2048", 128, 2048, 16, False),
    Case("D64 L1024, skewed", 64, 1024, 128, True),
    Case("D128 L2048, skewed", 128, 2048, 32, True),
]


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
    if case.skewed:
        # Log-normal about an eighth of the longest, which one sequence has.
        drawn = (random(case.batch).exp() * case.length / 8).long()
        lengths = drawn.clamp(1, case.length)
        lengths[0] = case.length
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


def pad(values: Tensor, batch: Batch) -> Tensor:
    """[M, H, D] to [B, H, L, D], zeros beyond the ends."""
    parts = values.tensor_split(batch.offsets[1:-1].cpu())
    out = values.new_zeros(len(parts), batch.max_length, *values.shape[1:])
    for place, part in zip(out, parts, strict=True):
        place[: len(part)] = part
    return out.transpose(1, 2).contiguous()


def padded_attention(q: Tensor, k: Tensor, v: Tensor, causal: Tensor, *bias: Tensor) -> Tensor:
    """Attend over [B, H, L, D]; keys beyond the ends have values of zero."""
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    if bias:
        weights, distance_bucket, time_weights, time_bucket = bias
        scores = scores + weights[:, distance_bucket].to(q.dtype)
        scores = scores + time_weights[:, time_bucket].transpose(0, 1).to(q.dtype)
    return torch.nn.functional.silu(scores) * causal @ v


def padded_inputs(batch: Batch, biased: bool) -> tuple[list[Tensor], Tensor]:
    """Arguments of `padded_attention`, and the gradient; buckets are counted as given."""
    length = batch.max_length
    causal = torch.ones(length, length, device="cuda").tril().bfloat16() / length
    q, k, v, grad = (pad(x, batch) for x in batch[:4])
    arguments = [q, k, v, causal]
    if biased:
        row = torch.arange(length, device="cuda")
        query_times, key_times = (
            pad(x.double()[:, None, None], batch)[:, 0, :, 0].long()
            for x in (batch.time.query_times, batch.time.key_times)
        )
        arguments += [
            batch.position.weights,
            batch.position.buckets[(row[:, None] - row).clamp_min(0)].long(),
            batch.time.weights,
            time_buckets(query_times[:, :, None] - key_times[:, None], BUCKETS),
        ]
    return arguments, grad


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


def time_peer(batch: Batch, biased: bool, compiled: bool) -> StepTimes:
    arguments, grad = padded_inputs(batch, biased)
    leaves = [x.requires_grad_() for x in arguments[:3]]
    attention = torch.compile(padded_attention, dynamic=False) if compiled else padded_attention
    return step_times(lambda: attention(*arguments), leaves, grad)


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
                goal="<= 1.5 times the time without",
                at_most=1.5 * ms,
                peer_value=ms,
            ),
        ]
    return rows


def rows_of_skewed(case: Case, batch: Batch, compiled: bool) -> list[Row]:
    """Times and memory beside padded attention."""
    rows = []
    for biased in (False, True):
        kind = "with both biases" if biased else "without biases"
        ours = time_ours(batch, biased)
        # Compiled, the biased one takes minutes to build.
        for name in ("eager", "compiled") if compiled and not biased else ("eager",):
            peer = time_peer(batch, biased, name == "compiled")
            free_memory()
            rows += step_rows(f"{case.name}, {kind}", ours, f"padded, {name}", peer, min_ratio=3)
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--compile-up-to", type=int, default=64, help="widest head with a compiled peer; 0 for none"
    )
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        batch = make_batch(case)
        errors = [worst_error(batch, biased) for biased in (False, True)]
        rows.append(error_row(case.name, max(errors), TOLERANCE))
        right = rows[-1].met
        if right and case.skewed:
            rows += rows_of_skewed(case, batch, case.dim <= arguments.compile_up_to)
        elif right:
            rows += rows_of_full(case, batch)
        print(case.name, [(row.name, round(row.value, 4)) for row in rows[-14:]], flush=True)
        del batch
        free_memory()
        write_results("hstu_attention", rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
