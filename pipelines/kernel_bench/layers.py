"""Kernels of layers as ``recsys kernels`` runs them: attention and experts.

Axes: M rows, D width, H heads, L events of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pipelines.kernel_bench.workload import Prepared, results, worst
from recsys.kernels.hstu_attention.op import hstu_attention
from recsys.kernels.hstu_attention.reference import reference_attention
from recsys.kernels.routed_experts.op import routed_experts
from recsys.layers.moe.experts import loop_over_experts


def scaled_normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw normal values over the square root of the last width, where the generator is."""
    values = torch.randn(shape, generator=generator, device=generator.device)
    return values / math.sqrt(shape[-1])


def prepare_attention(sizes: tuple[int, ...], device: torch.device, *, backward: bool) -> Prepared:
    """Attend within sequences of one length, without biases; bf16 on a GPU.

    Args:
        sizes: Sequences, their length, heads, and the heads' width.
        backward: Whether gradients of queries, keys and values are taken too.
    """
    num_sequences, length, heads, dim = sizes
    generator = torch.Generator(device).manual_seed(3)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    offsets = torch.arange(num_sequences + 1, device=device) * length

    def part() -> Tensor:
        shape = (num_sequences * length, heads, dim)
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    sets = [[part() for _ in range(4)] for _ in range(2)]

    def ours(ends: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hstu_attention(q, k, v, ends, length)

    def by_torch(ends: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference_attention(q, k, v, ends, length, None, None, None)

    def error() -> float:
        few = [one[: 2 * length] for one in sets[0]]
        found = results(partial(ours, offsets[:3]), *few, backward=backward)
        truth = [one.float() for one in few]
        return worst(found, results(partial(by_torch, offsets[:3]), *truth, backward=backward))

    return Prepared(
        ours=[partial(results, partial(ours, offsets), *one, backward=backward) for one in sets],
        error=error,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
    )


def prepare_routed_experts(
    sizes: tuple[int, ...], device: torch.device, *, backward: bool
) -> Prepared:
    """Rows that visit two of 32 experts each, by their number, width and inner width."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    num_rows, dim, hidden_dim = sizes
    top_k, shapes = 2, [(num_rows, dim), (32, hidden_dim, dim), (32, dim, hidden_dim)]

    part = partial(scaled_normal, torch.Generator(device).manual_seed(5))
    sets = []
    for _ in range(2):
        experts = part(num_rows, 32).topk(top_k, dim=1).indices
        tensors = [part(*shape).to(dtype) for shape in [*shapes, shapes[0]]]
        sets.append((experts, [*tensors[:3], part(num_rows, top_k).sigmoid(), tensors[3]]))

    def run(mix: Callable[..., Tensor], experts: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        return results(
            lambda rows, up, down, weights: mix(rows, up, down, experts, weights),
            *tensors,
            backward=backward,
        )

    def error() -> float:
        experts, tensors = sets[0]
        truth = run(loop_over_experts, experts, [one.double() for one in tensors])
        return worst(run(routed_experts, experts, tensors), truth)

    return Prepared(
        ours=[partial(run, routed_experts, *one) for one in sets],
        error=error,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
    )
