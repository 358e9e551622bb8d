"""HSTU attention against float64; through Triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
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
from tests.recsys.kernels.devices import DEVICE, ON_A_GPU, RUNS_KERNELS
from tests.recsys.testing.refusals import assert_refused

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Largest error by the largest true value."""


def test_weights_are_silu_over_the_longest_length() -> None:
    q, k, v = (torch.tensor(x).view(2, 1, 1) for x in ([1.0, 2.0], [3.0, -1.0], [5.0, 7.0]))
    out = hstu_attention(q, k, v, torch.tensor([0, 2]), 4).flatten()
    silu = torch.nn.functional.silu
    first = silu(torch.tensor(3.0)) * 5 / 4
    second = (silu(torch.tensor(6.0)) * 5 + silu(torch.tensor(-2.0)) * 7) / 4
    assert torch.allclose(out, torch.stack([first, second]))


def test_buckets_ascend_and_stay_in_range() -> None:
    buckets = distance_buckets(1000, 32)
    assert buckets[:16].tolist() == list(range(16))
    assert (buckets.diff() >= 0).all()
    assert buckets.max() == 31
    assert time_buckets(torch.tensor([-5, 0, 1, 2, 3, 7, 1 << 40]), 8).tolist() == [
        0, 0, 1, 1, 2, 3, 7,
    ]  # fmt: skip


def test_says_what_is_wrong() -> None:
    def changed(**change: object) -> Callable[[], object]:
        arguments: dict[str, object] = {
            **{name: torch.ones(6, 2, 4) for name in "qkv"},
            "offsets": torch.tensor([0, 6]),
            "max_length": 8,
        }
        return lambda: hstu_attention(**{**arguments, **change})  # type: ignore[arg-type]

    few = PositionBias(weights=torch.ones(2, 4), buckets=torch.zeros(3))
    assert_refused(
        {
            r"q and k must be \[M, H, D\]": changed(k=torch.ones(6, 2, 5)),
            "of one type": changed(v=torch.ones(6, 2, 4).half()),
            "max_length must be >= 1, got 0": changed(max_length=0),
            "offsets must be": changed(offsets=torch.tensor([0.0, 6.0])),
            "contiguous heads": changed(q=torch.ones(2, 6, 4).transpose(0, 1)),
            "a bucket for each of 8 distances": changed(position_bias=few),
        }
    )


def inputs(
    lengths: list[int], heads: int, dim: int, dim_v: int, dtype: torch.dtype, device: str
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(lengths) * dim)
    total = sum(lengths)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    gaps = torch.randint(0, 100_000, (total + 1,), generator=generator).cumsum(0)
    made = {
        "q": random(total, heads, dim).to(dtype),
        "k": random(total, heads, dim).to(dtype),
        # Positive: the kept gradients of scores are rounded to this type, and a sum of a bucket
        # that cancels to a thousandth would show nothing but that.
        "v": random(total, heads, dim_v).abs().to(dtype),
        "do": random(total, heads, dim_v).abs().to(dtype),
        "offsets": torch.tensor([0, *lengths]).cumsum(0),
        "positions": random(heads, 8),
        "times": random(heads, 12),
        "asked": gaps[1:],
        "known": gaps[:-1],
    }
    return {name: tensor.to(device) for name, tensor in made.items()}


def run(
    made: dict[str, Tensor], max_length: int, attention: object, *, biased: bool
) -> list[Tensor]:
    """Attend and differentiate; out, dq, dk, dv and the bias gradients."""
    leaves = [made[name].clone().requires_grad_() for name in ("q", "k", "v")]
    position = time = None
    if biased:
        weights = [made[name].clone().requires_grad_() for name in ("positions", "times")]
        buckets = distance_buckets(max_length, 8).to(made["q"].device)
        position = PositionBias(weights=weights[0], buckets=buckets)
        time = TimeBias(weights=weights[1], query_times=made["asked"], key_times=made["known"])
        leaves += weights
    out = attention(  # type: ignore[operator]
        *leaves[:3], made["offsets"], max_length,
        position_bias=position, time_bias=time,
    )  # fmt: skip
    out.backward(made["do"])
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def in_double(made: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in made.items()}


Shape = tuple[list[int], int, int, int]


def check_kernel(
    device: str, shape: Shape, dtype: torch.dtype, repeats: int, kinds: tuple[bool, ...]
) -> None:
    """Compare a kernel with float64, then its bits with those of further runs."""
    lengths, heads, dim, dim_v = shape
    made = inputs(lengths, heads, dim, dim_v, dtype, device)
    for biased in kinds:
        max_length = max(lengths) + 5
        options = {"biased": biased}
        found = run(made, max_length, hstu_attention, **options)
        truth = run(in_double(made), max_length, reference_attention, **options)
        assert len(found) == len(truth) == (6 if biased else 4)
        for place, (one, true) in enumerate(zip(found, truth, strict=True)):
            error = (one.double() - true).abs().max() / true.abs().max().clamp_min(1e-30)
            assert error < TOLERANCES[dtype], (options, place, float(error))
        for _ in range(repeats):
            again = run(made, max_length, hstu_attention, **options)
            assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


SMALL = [([5, 0, 140, 1], 1, 16, 16), ([70], 1, 16, 8)]
LARGE = [
    ([5, 0, 130, 1, 64], 2, 16, 24),
    ([700, 3, 257], 3, 64, 64),
    ([300, 511], 2, 128, 128),
    ([90], 1, 33, 100),
    ([200, 10], 1, 256, 256),
]


# Interpreted not in bf16, whose bit patterns are multiplied, and once: programs run in turn.
@RUNS_KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *[torch.bfloat16] * ON_A_GPU])
@pytest.mark.parametrize("shape", SMALL + LARGE * ON_A_GPU, ids=str)
def test_the_kernel_agrees_with_float64(shape: Shape, dtype: torch.dtype) -> None:
    # Interpreted, each type meets one kind.
    kinds = (False, True) if ON_A_GPU else (dtype == torch.float32,)
    check_kernel(DEVICE, shape, dtype, 5 * ON_A_GPU, kinds)
