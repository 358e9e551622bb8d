"""Triton kernel of the gradients of experts' weights: products summed over an expert's slots.

Axes: S slots, E experts, M by N a weight's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from recsys.kernels.routed_experts.triton_rows import Plan
from recsys.kernels.tuning import config_for, shape_class


@triton.jit
def _add_slots(
    acc, left, right, first, end, m, n, num_m: tl.constexpr, num_n: tl.constexpr,
    even: tl.constexpr, block_s: tl.constexpr, on_gpu: tl.constexpr,
):  # fmt: skip
    """Add what some slots, those before ``end``, give."""
    slot = first + tl.arange(0, block_s)
    here = slot < end
    at_left = slot.to(tl.int64)[:, None] * num_m + m[None, :]
    at_right = slot.to(tl.int64)[:, None] * num_n + n[None, :]
    if even:
        a = tl.load(left + at_left, mask=here[:, None], other=0.0)
        b = tl.load(right + at_right, mask=here[:, None], other=0.0)
    else:
        a = tl.load(left + at_left, mask=here[:, None] & (m[None, :] < num_m), other=0.0)
        b = tl.load(right + at_right, mask=here[:, None] & (n[None, :] < num_n), other=0.0)
    # The interpreter would multiply the bit patterns of bf16 operands.
    if not on_gpu:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a.T, b, acc, input_precision="tf32x3")


@triton.jit
def _weight_gradient(
    left, right, left_tiles, right_tiles, out, ends, num_m: tl.constexpr,
    num_n: tl.constexpr, even: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr, block_s: tl.constexpr, stages: tl.constexpr, on_gpu: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (num_n + block_n - 1) // block_n
    down: tl.constexpr = (num_m + block_m - 1) // block_m
    expert = tl.program_id(0) // (across * down)
    place = tl.program_id(0) % (across * down)
    begin_m, begin_n = place // across * block_m, place % across * block_n
    m, n = begin_m + tl.arange(0, block_m), begin_n + tl.arange(0, block_n)
    end = tl.load(ends + expert)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    acc = tl.zeros([block_m, block_n], tl.float32)
    if left_tiles is None:
        for first in tl.range(begin, end, block_s, num_stages=stages):
            acc = _add_slots(
                acc, left, right, first, end, m, n, num_m, num_n, even, block_s, on_gpu
            )  # fmt: skip
    else:
        # A descriptor reads on into the next expert's slots, so it takes whole blocks alone.
        whole = begin + (end - begin) // block_s * block_s
        for first in tl.range(begin, whole, block_s, num_stages=stages):
            a, b = left_tiles.load([first, begin_m]), right_tiles.load([first, begin_n])
            if not on_gpu:
                a, b = a.to(tl.float32), b.to(tl.float32)
            acc = tl.dot(a.T, b, acc, input_precision="tf32x3")
        for first in tl.range(whole, end, block_s, num_stages=1):
            acc = _add_slots(
                acc, left, right, first, end, m, n, num_m, num_n, even, block_s, on_gpu
            )  # fmt: skip
    at = expert.to(tl.int64) * num_m * num_n + m.to(tl.int64)[:, None] * num_n + n[None, :]
    inside = (m[:, None] < num_m) & (n[None, :] < num_n)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


DEFAULT = {
    "block_m": 128,
    "block_n": 256,
    "block_s": 64,
    "stages": 3,
    "num_warps": 8,
    "descriptors": 0,
}
"""Descriptors: whether whole blocks are loaded through tensor descriptors, where rows allow."""
WIDE = {**DEFAULT, "block_n": 128}
"""Of float32 numbers, which take twice the registers."""


def weight_gradient(left: Tensor, right: Tensor, plan: Plan) -> Tensor:
    """Sum left^T right over each expert's slots, [E, M, N]; zeros where an expert has none.

    Args:
        left: [S, M], in slots' order.
        right: [S, N], the same.
    """
    num_experts, num_m, num_n = len(plan.ends), left.shape[1], right.shape[1]
    out = torch.empty(num_experts, num_m, num_n, dtype=left.dtype, device=left.device)
    default = WIDE if left.dtype == torch.float32 else DEFAULT
    shapes = shape_class(m=num_m, n=num_n)
    config = dict(config_for("routed_experts.weights", shapes, left.dtype, default))
    block_m, block_n, block_s = config["block_m"], config["block_n"], config["block_s"]
    tiles = triton.cdiv(num_m, block_m) * triton.cdiv(num_n, block_n)
    of_tiles: list[Any] = [None, None]
    wide = all(size * left.element_size() % 16 == 0 for size in (num_m, num_n))
    if config.pop("descriptors") and wide and len(left):
        of_tiles = [
            TensorDescriptor.from_tensor(one, [block_s, width])
            for one, width in ((left, block_m), (right, block_n))
        ]
    _weight_gradient[(num_experts * tiles,)](
        left, right, *of_tiles, out, plan.ends, num_m=num_m, num_n=num_n,
        even=num_m % block_m == 0 and num_n % block_n == 0, on_gpu=left.is_cuda,
        **config,
    )  # fmt: skip
    return out
