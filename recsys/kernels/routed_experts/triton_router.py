"""Triton kernels of a router: scores of all experts, the best of them and what they weigh, at once.

Rows are 16-bit numbers, weights float32. A float32 number is the sum of three bfloat16 numbers, so
three products on the tensor cores, added in float32, are as exact as one of float32 numbers. A
row's sums have the same order whatever else is in the batch.

Axes: B rows, E experts, K experts of each row, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_B, BLOCK_D = 64, 64
PARTS = 128
"""Partial sums of the weights' gradient; fixed, so that the order of additions is."""
EPSILON = tl.constexpr(1e-9)


@triton.jit
def _halves(x):
    """Take a float32 number apart: the three bfloat16 numbers whose sum it is."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _exact_product(x, w, on_gpu: tl.constexpr):
    """Multiply bfloat16 by float32 numbers, [b, d] and [d, e].

    The small parts are added first: tensor cores cut off numbers far below the sum so far.
    """
    if on_gpu:
        high, middle, low = _halves(w)
        found = tl.dot(x, high, tl.dot(x, middle, tl.dot(x, low)))
    else:
        # The interpreter would multiply the bit patterns of bf16 operands.
        found = tl.dot(x.to(tl.float32), w)
    return found


@triton.jit
def _softmax(logits, e, num_experts: tl.constexpr):
    logits = tl.where(e[None, :] < num_experts, logits, -float("inf"))
    shares = tl.exp(logits - tl.max(logits, 1)[:, None])
    return shares / tl.sum(shares, 1)[:, None]


@triton.jit
def _route(
    rows, weight, bias, logits, experts, weights, num_rows,
    num_experts: tl.constexpr, dim: tl.constexpr, top_k: tl.constexpr,
    block_b: tl.constexpr, block_d: tl.constexpr, block_e: tl.constexpr, on_gpu: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_b + tl.arange(0, block_b)
    e = tl.arange(0, block_e)
    here = row < num_rows
    acc = tl.zeros([block_b, block_e], tl.float32)
    for begin in tl.range(0, dim, block_d, num_stages=3):
        d = begin + tl.arange(0, block_d)
        at = row.to(tl.int64)[:, None] * dim + d[None, :]
        x = tl.load(rows + at, mask=here[:, None] & (d[None, :] < dim), other=0.0)
        inside = (d[:, None] < dim) & (e[None, :] < num_experts)
        w = tl.load(weight + e[None, :] * dim + d[:, None], mask=inside, other=0.0)
        # Added outside of the tensor cores, which round towards zero.
        acc += _exact_product(x, w, on_gpu)
    inside = here[:, None] & (e[None, :] < num_experts)
    tl.store(logits + row.to(tl.int64)[:, None] * num_experts + e[None, :], acc, mask=inside)
    scores = _softmax(acc, e, num_experts)
    ranked = scores + tl.load(bias + e, mask=e < num_experts, other=0.0)[None, :]
    ranked = tl.where(e[None, :] < num_experts, ranked, -float("inf"))
    left, total = ranked, tl.zeros([block_b], tl.float32)
    for _ in tl.static_range(top_k):
        own = e[None, :] == tl.argmax(left, 1)[:, None]
        total += tl.sum(tl.where(own, scores, 0.0), 1)
        left = tl.where(own, -float("inf"), left)
    if top_k == 1:
        # A single expert's share of the chosen would always be 1 and teach the router nothing.
        total = tl.sum(scores, 1)
    left = ranked
    for k in tl.static_range(top_k):
        # Of scores that are no numbers none is the best.
        best = tl.minimum(tl.argmax(left, 1), num_experts - 1)
        own = e[None, :] == best[:, None]
        chosen = tl.sum(tl.where(own, scores, 0.0), 1)
        left = tl.where(own, -float("inf"), left)
        at = row.to(tl.int64) * top_k + k
        tl.store(experts + at, best.to(tl.int64), mask=here)
        tl.store(weights + at, chosen / (total + EPSILON), mask=here)


def route(rows: Tensor, weight: Tensor, bias: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Score and choose: logits [B, E], experts [B, K] and what they weigh [B, K]."""
    (num_rows, dim), num_experts = rows.shape, len(weight)
    single: Any = {"dtype": torch.float32, "device": rows.device}
    logits = torch.empty(num_rows, num_experts, **single)
    weights = torch.empty(num_rows, top_k, **single)
    experts = torch.empty(num_rows, top_k, dtype=torch.int64, device=rows.device)
    if num_rows:
        _route[(triton.cdiv(num_rows, BLOCK_B),)](
            rows, weight, bias, logits, experts, weights, num_rows, num_experts=num_experts,
            dim=dim, top_k=top_k, block_b=BLOCK_B, block_d=BLOCK_D,
            block_e=triton.next_power_of_2(max(16, num_experts)), on_gpu=rows.is_cuda,
        )  # fmt: skip
    return logits, experts, weights


@triton.jit
def _logit_gradients(
    logits, grad_logits, experts, weights, grad_weights, out, num_rows, num_experts: tl.constexpr,
    top_k: tl.constexpr, block_b: tl.constexpr, block_e: tl.constexpr,
):  # fmt: skip
    """Gradients of logits, from those of the logits and of what experts weigh."""
    row = tl.program_id(0) * block_b + tl.arange(0, block_b)
    e = tl.arange(0, block_e)
    here = row < num_rows
    inside = here[:, None] & (e[None, :] < num_experts)
    at = row.to(tl.int64)[:, None] * num_experts + e[None, :]
    scores = _softmax(tl.load(logits + at, mask=inside, other=0.0), e, num_experts)
    chosen = tl.zeros([block_b, block_e], tl.float32)  # gradients of weights, laid out by expert
    counted = chosen > 1
    along = tl.zeros([block_b], tl.float32)
    for k in tl.static_range(top_k):
        visit = row.to(tl.int64) * top_k + k
        own = e[None, :] == tl.load(experts + visit, mask=here, other=0).to(tl.int32)[:, None]
        of_weight = tl.load(grad_weights + visit, mask=here, other=0.0)
        along += of_weight * tl.load(weights + visit, mask=here, other=0.0)
        chosen += tl.where(own, of_weight[:, None], 0.0)
        counted |= own
    if top_k == 1:
        counted = inside
    total = tl.sum(tl.where(counted, scores, 0.0), 1)
    of_scores = (chosen - tl.where(counted, along[:, None], 0.0)) / (total + EPSILON)[:, None]
    of_logits = scores * (of_scores - tl.sum(of_scores * scores, 1)[:, None])
    if grad_logits is not None:
        of_logits += tl.load(grad_logits + at, mask=inside, other=0.0)
    tl.store(out + at, of_logits, mask=inside)


@triton.jit
def _route_backward(
    rows, weight, of_logits, grad_rows, parts, num_rows, num_experts: tl.constexpr,
    dim: tl.constexpr, block_b: tl.constexpr, block_d: tl.constexpr, block_e: tl.constexpr,
    on_gpu: tl.constexpr,
):  # fmt: skip
    e = tl.arange(0, block_e)
    d = tl.program_id(1) * block_d + tl.arange(0, block_d)
    of_expert = (e[:, None] < num_experts) & (d[None, :] < dim)
    w = tl.load(weight + e[:, None] * dim + d[None, :], mask=of_expert, other=0.0)
    acc = tl.zeros([block_e, block_d], tl.float32)
    for block in tl.range(
        tl.program_id(0), tl.cdiv(num_rows, block_b), tl.num_programs(0), num_stages=2
    ):
        row = block * block_b + tl.arange(0, block_b)
        at = row.to(tl.int64)[:, None] * num_experts + e[None, :]
        inside = (row[:, None] < num_rows) & (e[None, :] < num_experts)
        g = tl.load(of_logits + at, mask=inside, other=0.0)
        at = row.to(tl.int64)[:, None] * dim + d[None, :]
        inside = (row[:, None] < num_rows) & (d[None, :] < dim)
        x = tl.load(rows + at, mask=inside, other=0.0)
        if on_gpu:
            high, middle, _ = _halves(g)
            w_high, w_middle, _ = _halves(w)
            of_rows = tl.dot(high, w_high, tl.dot(high, w_middle, tl.dot(middle, w_high)))
        else:
            of_rows = tl.dot(g, w)
        tl.store(grad_rows + at, of_rows.to(grad_rows.dtype.element_ty), mask=inside)
        # Its transpose, [d, e]: that many rows make a product of the tensor cores.
        acc += tl.trans(_exact_product(tl.trans(x), g, on_gpu))
    at = tl.program_id(0) * num_experts * dim + e[:, None] * dim + d[None, :]
    tl.store(parts + at, acc, mask=of_expert)


def route_backward(
    rows: Tensor,
    weight: Tensor,
    made: tuple[Tensor, Tensor, Tensor],
    grad_logits: Tensor | None,
    grad_weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of rows and weight, from those of the logits and of what experts weigh."""
    logits, experts, weights = made
    (num_rows, dim), num_experts = rows.shape, len(weight)
    grad_rows, of_logits = torch.empty_like(rows), torch.empty_like(logits)
    block_e = triton.next_power_of_2(max(16, num_experts))
    sizes = {"num_experts": num_experts, "block_e": block_e}
    programs = max(1, min(PARTS, triton.cdiv(num_rows, BLOCK_B)))
    parts = torch.empty(programs, num_experts, dim, dtype=torch.float32, device=rows.device)
    if num_rows:
        few = max(16, 2048 // block_e)
        _logit_gradients[(triton.cdiv(num_rows, few),)](
            logits, grad_logits, experts, weights, grad_weights, of_logits, num_rows,
            top_k=experts.shape[1], block_b=few, **sizes,
        )  # fmt: skip
    _route_backward[(programs, triton.cdiv(dim, BLOCK_D))](
        rows, weight, of_logits, grad_rows, parts, num_rows, dim=dim, block_b=BLOCK_B,
        block_d=BLOCK_D, on_gpu=rows.is_cuda, **sizes,
    )  # fmt: skip
    return grad_rows, parts.sum(0)
