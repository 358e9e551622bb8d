"""Triton kernels of the gated delta rule's forward: solve each chunk, then go through the chunks.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences, C events of a
chunk; the formulas are those of ``chunked``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.gated_delta.reference import DeltaInputs

CHUNK = 64
VALUE_BLOCK = 32
"""Columns of the state that a program of the second kernel holds."""


@triton.jit
def _solve(
    k_at, v_at, decay_at, beta_at, offsets, u_at, w_at, sums_at,
    heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr,
    block_k: tl.constexpr, block_v: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Invert I + A of one chunk row by row; write U, W and the running sums of the decays."""
    sequence, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    first = tl.load(offsets + sequence).to(tl.int64)
    length = tl.load(offsets + sequence + 1).to(tl.int64) - first
    begin = tl.program_id(0) * chunk
    if begin < length:
        i = tl.arange(0, chunk)
        inside = begin + i < length
        row = (first + begin + i) * heads + head
        decay = tl.load(decay_at + row, mask=inside, other=0.0).to(tl.float32)
        beta = tl.load(beta_at + row, mask=inside, other=0.0).to(tl.float32)
        total = tl.cumsum(decay, 0)
        tl.store(sums_at + row, total, mask=inside)
        dk = tl.arange(0, block_k)
        at = row[:, None] * dim_k + dk[None, :]
        mask_k = inside[:, None] & (dk[None, :] < dim_k)
        k = tl.load(k_at + at, mask=mask_k, other=0.0).to(tl.float32)
        below = i[:, None] > i[None, :]
        between = tl.exp(tl.where(below, total[:, None] - total[None, :], 0.0))
        a = tl.dot(k * beta[:, None], tl.trans(k), input_precision="tf32x3") * between
        a = tl.where(below, -a, 0.0)
        inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
        for r in range(1, chunk):
            # Row r of -A times the rows that are done; powers of A would cancel each other.
            own = tl.sum(tl.where(i[:, None] == r, a, 0.0), 0)
            done = tl.sum(own[:, None] * inverse, 0)
            inverse += tl.where(i[:, None] == r, done[None, :], 0.0)
        w = tl.dot(inverse, k * (beta * tl.exp(total))[:, None], input_precision="tf32x3")
        tl.store(w_at + at, w, mask=mask_k)
        dv = tl.arange(0, block_v)
        at = row[:, None] * dim_v + dv[None, :]
        mask_v = inside[:, None] & (dv[None, :] < dim_v)
        v = tl.load(v_at + at, mask=mask_v, other=0.0).to(tl.float32) * beta[:, None]
        tl.store(u_at + at, tl.dot(inverse, v, input_precision="tf32x3"), mask=mask_v)


@triton.jit
def _read(
    q_at, k_at, u_at, w_at, sums_at, offsets, before_at, out_at, after_at, scale,
    has_before: tl.constexpr, heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr,
    block_k: tl.constexpr, block_v: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Carry some columns of one head's state through the chunks of a sequence."""
    pair = tl.program_id(0).to(tl.int64)
    sequence, head = pair // heads, pair % heads
    first = tl.load(offsets + sequence).to(tl.int64)
    length = tl.load(offsets + sequence + 1).to(tl.int64) - first
    dk = tl.arange(0, block_k)
    dv = tl.program_id(1) * block_v + tl.arange(0, block_v)
    state_at = pair * dim_k * dim_v + dk[:, None] * dim_v + dv[None, :]
    mask_s = (dk[:, None] < dim_k) & (dv[None, :] < dim_v)
    state = tl.zeros((block_k, block_v), tl.float32)
    if has_before:
        state += tl.load(before_at + state_at, mask=mask_s, other=0.0).to(tl.float32)
    i = tl.arange(0, chunk)
    for begin in range(0, length, chunk):
        inside = begin + i < length
        row = (first + begin + i) * heads + head
        at = row[:, None] * dim_k + dk[None, :]
        mask_k = inside[:, None] & (dk[None, :] < dim_k)
        q = tl.load(q_at + at, mask=mask_k, other=0.0).to(tl.float32)
        k = tl.load(k_at + at, mask=mask_k, other=0.0).to(tl.float32)
        w = tl.load(w_at + at, mask=mask_k, other=0.0)
        total = tl.load(sums_at + row, mask=inside, other=0.0)
        last = tl.minimum(length - begin, chunk) - 1
        whole = tl.sum(tl.where(i == last, total, 0.0), 0)
        at = row[:, None] * dim_v + dv[None, :]
        mask_v = inside[:, None] & (dv[None, :] < dim_v)
        u = tl.load(u_at + at, mask=mask_v, other=0.0)
        update = u - tl.dot(w, state, input_precision="tf32x3")
        seen = i[:, None] >= i[None, :]
        between = tl.exp(tl.where(seen, total[:, None] - total[None, :], 0.0))
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * between
        scores = tl.where(seen, scores, 0.0)
        out = tl.dot(q * tl.exp(total)[:, None], state, input_precision="tf32x3")
        out = tl.dot(scores, update, out, input_precision="tf32x3") * scale
        tl.store(out_at + at, out.to(out_at.dtype.element_ty), mask=mask_v)
        kept = k * tl.exp(tl.where(inside, whole - total, 0.0))[:, None]
        state = state * tl.exp(whole)
        state = tl.dot(tl.trans(kept), update, state, input_precision="tf32x3")
    tl.store(after_at + state_at, state, mask=mask_s)


def forward(
    inputs: DeltaInputs, offsets: Tensor, max_length: int, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run the kernels; arguments and results as of ``op.gated_delta``."""
    query, key, value, decay, beta = (part.contiguous() for part in inputs)
    num_events, heads, dim_k = query.shape
    dim_v, num_sequences = value.shape[2], len(offsets) - 1
    u, w, sums = (torch.empty_like(one, dtype=torch.float32) for one in (value, key, decay))
    out = torch.empty_like(value)
    shape = (num_sequences, heads, dim_k, dim_v)
    after = torch.empty(shape, dtype=torch.float32, device=query.device)
    if num_sequences == 0:
        return out, after
    block_k = max(16, triton.next_power_of_2(dim_k))
    block_v = max(16, triton.next_power_of_2(dim_v))
    sizes = {"heads": heads, "dim_k": dim_k, "dim_v": dim_v, "block_k": block_k, "chunk": CHUNK}
    if num_events:
        _solve[(triton.cdiv(max_length, CHUNK), num_sequences * heads)](
            key, value, decay, beta, offsets, u, w, sums, **sizes, block_v=block_v, num_warps=4
        )
    block = min(VALUE_BLOCK, block_v)
    _read[(num_sequences * heads, triton.cdiv(dim_v, block))](
        query, key, u, w, sums, offsets, after if state is None else state.contiguous(), out,
        after, dim_k**-0.5, has_before=state is not None, **sizes, block_v=block, num_warps=4,
        num_stages=1 if block_k > 64 else 2,
    )  # fmt: skip
    return out, after
