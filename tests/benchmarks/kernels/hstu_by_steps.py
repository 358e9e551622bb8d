"""HSTU attention with biases by steps, in place of the package's reading of tables, to be measured.

A tile of queries and keys whose distances have one position bucket, and whose times have one,
adds one number. One of up to three buckets compares with their borders, which costs a comparison
and a selection a pair; only tiles of more read the tables. ``switch_on`` must come before the first
launch of a process, because compiled kernels stay.

Two rows before the position table hold the bucket of each distance and the least distance of each
bucket (or of a later one if it has none).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.hstu_attention import triton_backward, triton_kernel
from recsys.kernels.hstu_attention.triton_kernel import (
    PAD,
    Bias,
    _elapsed,
    _least_word,
    _position_bias,
    _read_entry,
    _span_ends,
    _time_bucket,
    lay_out_bias,
)

STEPS_IN_KEYS = tl.constexpr(True)
"""Whether the kernel of keys' gradients, which has no registers to spare, takes steps too."""
_add_by_tables = triton_kernel._add_bias
KEPT: dict[tuple[int, int], Tensor] = {}
"""The two rows by the address of the buckets: a model would keep them with its buckets."""


@triton.jit
def _time_span(begin_m, block_m: tl.constexpr, begin_n, block_n: tl.constexpr, place, bias):
    """Least and greatest time bucket; position buckets but one, least distance, next borders."""
    low, high, more, nearest, second, third = 0, 0, 0, 0, 0, 0
    if bias[2] is not None:
        spans = bias[5] + place[3] * bias[6]
        least_query, most_query = _span_ends(spans, begin_m, block_m, 0)
        least_known, most_known = _span_ends(spans, begin_n, block_n, 2)
        low, high = _time_bucket(least_query - most_known), _time_bucket(most_query - least_known)
    if bias[0] is not None:
        bucket_at, edges, last = bias[0] + -2 * bias[1], bias[0] + -1 * bias[1], bias[1] - 513
        nearest = tl.minimum(tl.maximum(begin_m - begin_n - block_n + 1, 0), last)
        farthest = tl.minimum(tl.maximum(begin_m - begin_n + block_m - 1, 0), last)
        first = tl.load(bucket_at + nearest).to(tl.int32)
        latest = tl.load(bucket_at + farthest).to(tl.int32)
        more = latest - first
        second = tl.load(edges + tl.minimum(first + 1, latest)).to(tl.int32)
        third = tl.load(edges + tl.minimum(first + 2, latest)).to(tl.int32)
    return low, high, more, nearest, second, third


@triton.jit
def _reached(asked, known, border, by_keys: tl.constexpr):
    """Whether asked - known is at least a border; exact, as all are whole numbers.

    A thread holds two rows of a tile and sixteen columns, so the border moves the rows.
    """
    if by_keys:
        return asked >= known + border
    return asked - border >= known


@triton.jit
def _seconds(bucket):
    """Least 1 + seconds of a bucket, which is not the first, as a 64-bit float."""
    return (_least_word(bucket).to(tl.int64) << 32).to(tl.float64, bitcast=True)


@triton.jit
def _add_positions(
    s, row_at, column_at, span, place, bias, on_gpu: tl.constexpr, by_keys: tl.constexpr
):
    """Add the position bias of a tile of several buckets."""
    row, column = tl.arange(0, s.shape[0]), tl.arange(0, s.shape[1])
    table, more, second, third = bias[0] + place[0] * bias[1], span[2], span[4], span[5]
    if more <= 2:
        if by_keys:
            query, known = column[None, :], (row + (row_at - column_at))[:, None]
        else:
            query, known = row[:, None], (column + (column_at - row_at))[None, :]
        near, next_one = tl.load(table + 256 + span[3]), tl.load(table + 256 + second)
        value = tl.where(query >= known + second, next_one, near)
        if more == 2:
            last = tl.load(table + 256 + third)
            value = tl.where(query >= known + third, last, value)
        s += value
    else:
        sign: tl.constexpr = -1 if by_keys else 1
        shift = 256 + sign * (row_at - column_at)
        s += _position_bias(table, shift, row, column, sign, on_gpu)
    return s


@triton.jit
def _add_times(
    s, row_at, column_at, span, place, bias, on_gpu: tl.constexpr, by_keys: tl.constexpr
):
    """Add the time bias of a tile of several buckets."""
    row, column = tl.arange(0, s.shape[0]), tl.arange(0, s.shape[1])
    table, low, high = bias[2] + place[0] * 72, span[0], span[1]
    if high <= low + 2:
        asked, known = bias[3] + place[1], bias[4] + place[1]
        if by_keys:
            asked = tl.load(asked + column_at + column)[None, :]
            known = tl.load(known + row_at + row)[:, None]
        else:
            asked = tl.load(asked + row_at + row)[:, None]
            known = tl.load(known + column_at + column)[None, :]
        soon, later = tl.load(table + low), tl.load(table + low + 1)
        value = tl.where(_reached(asked, known, _seconds(low + 1), by_keys), later, soon)
        if high == low + 2:
            last = tl.load(table + high)
            value = tl.where(_reached(asked, known, _seconds(high), by_keys), last, value)
        s += value
    else:
        elapsed = _elapsed(row_at, column_at, s.shape[0], s.shape[1], place, bias, by_keys)
        bucket = _time_bucket(elapsed)
        s += _read_entry(table, bucket) if on_gpu else tl.load(table + bucket)
    return s


@triton.jit
def _add_bias(s, row_at, column_at, span, place, bias, on_gpu: tl.constexpr, by_keys: tl.constexpr):
    """Add the biases to a tile of scores, queries down and keys across, or keys down."""
    if by_keys and not STEPS_IN_KEYS:
        times = (span[0], span[1])
        return _add_by_tables(s, row_at, column_at, times, place, bias, on_gpu, by_keys)
    single = tl.full((), 0.0, tl.float32)
    if bias[0] is not None:
        if span[2] == 0:
            single += tl.load(bias[0] + place[0] * bias[1] + 256 + span[3])
        else:
            s = _add_positions(s, row_at, column_at, span, place, bias, on_gpu, by_keys)
    if bias[2] is not None:
        if span[0] == span[1]:
            single += tl.load(bias[2] + place[0] * 72 + span[0])
        else:
            s = _add_times(s, row_at, column_at, span, place, bias, on_gpu, by_keys)
    if bias[0] is not None or bias[2] is not None:
        s += single
    return s


def lay_out_steps(q: Tensor, offsets: Tensor, max_length: int, position: Any, time: Any) -> Bias:
    """Lay out the biases as the package does, with two rows before the position table."""
    bias = lay_out_bias(q, offsets, max_length, position, time)
    if bias.positions is None:
        return bias
    buckets = position[1][:max_length]
    key = buckets.data_ptr(), max_length
    if key not in KEPT:
        rows = q.new_zeros(2, max_length + 2 * PAD, dtype=torch.float32)
        rows[0, :max_length] = buckets
        borders = torch.arange(bias.num_positions, device=q.device, dtype=buckets.dtype)
        rows[1, : bias.num_positions] = torch.searchsorted(buckets, borders)
        KEPT[key] = rows
    return bias._replace(positions=torch.cat([KEPT[key], bias.positions])[2:])


def switch_on(*, keys: bool = True) -> None:
    """Put these functions in place of the package's, for this process."""
    globals()["STEPS_IN_KEYS"] = tl.constexpr(keys)
    for module in (triton_kernel, triton_backward):
        vars(module).update(_time_span=_time_span, _add_bias=_add_bias)
    triton_kernel.lay_out_bias = lay_out_steps
