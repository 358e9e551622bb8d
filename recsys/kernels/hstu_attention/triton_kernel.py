"""Triton kernels of HSTU attention: its biases, what both directions share, and the forward.

Position weights become a table by distance, time weights one by power of two, and times 64-bit
floats: the exponent of 1 + elapsed seconds is the bucket. The times of 64 neighbouring events are
summed up as spans, so that a tile whose elapsed times have one bucket is known without a look.
Helpers take a program's `place`, (head, first event, length, sequence), and its `bias`, the
tables, as tuples.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from recsys.kernels.choice import config_for, shape_class

PAD = 256
"""Entries before and after a head's position table, and after the times: tiles reach beyond the
ends of a sequence."""
TIME_ENTRIES = 72
"""Entries of a head's time table: an exponent of a difference of 64-bit times each."""
SPAN = 64
"""Events of a span."""


@triton.jit
def _read_plus(address, number):
    """Read float32 at addresses, plus a number.

    tl.load would move the tile to another layout and back. By assembly equal addresses are read,
    and added to, once.
    """
    return tl.inline_asm_elementwise(
        "{ .reg .f32 a; ld.global.nc.f32 a, [$1]; add.f32 $0, a, $2; }",
        "=f,l,f",
        [address, number],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _read_entry(table, at):
    """Read table[at]; `at` is not negative."""
    return tl.inline_asm_elementwise(
        "{ .reg .b64 a; mad.wide.u32 a, $2, 4, $1; ld.global.nc.f32 $0, [a]; }",
        "=f,l,r",
        [table.to(tl.int64), at],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _exponent_word(x):
    """Upper half of a 64-bit float: ordered as the floats are, from 1 on."""
    return (x.to(tl.int64, bitcast=True) >> 32).to(tl.int32)


@triton.jit
def _position_bias(table, shift, row, column, number, sign: tl.constexpr, on_gpu: tl.constexpr):
    """Read table[shift + sign * (row - column)] + number, [m, n]."""
    if on_gpu:
        # In a tile of a matrix product neighbouring numbers of one thread differ in bit 3 of the
        # row and in all bits of the column but 1 and 2. These parts are constants, which the load
        # itself can add, if they are kept apart and added last.
        thread = (row & -9).to(tl.int64)[:, None] - (column & 6).to(tl.int64)[None, :]
        constant = (row & 8).to(tl.int64)[:, None] - (column & -7).to(tl.int64)[None, :]
        address = table.to(tl.int64) + 4 * (shift + sign * thread) + 4 * sign * constant
        return _read_plus(address, number)
    return tl.load(table + shift + sign * (row[:, None] - column[None, :])) + number


@triton.jit
def _time_bucket(elapsed):
    """Floor of log2 of 1 + seconds, 0 for what is less; 0x3FF00000 begins 1.0."""
    return (tl.maximum(_exponent_word(elapsed), 0x3FF00000) >> 20) - 1023


@triton.jit
def _add_later(s, query, known, number, bucket, on_gpu: tl.constexpr):
    """Add a number to the scores of pairs whose bucket is at least this one, not the first."""
    # 2^bucket; a subtraction for each query in place of one for each pair.
    query -= ((bucket + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    if on_gpu:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; mov.f32 $0, $1; setp.ge.f64 p, $2, $3; @p add.f32 $0, $0, $4; }",
            "=f,f,d,d,f",
            [s, query, known, number],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return tl.where(query >= known, s + number, s)


@triton.jit
def _read_end(address, on_gpu: tl.constexpr):
    """Read float64; a tl.load of a loop would be copied ahead by way of shared memory."""
    if on_gpu:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f64 $0, [$1];", "=d,l", [address], dtype=tl.float64, is_pure=True, pack=1
        )
    return tl.load(address)


@triton.jit
def _span_ends(spans, begin, block: tl.constexpr, kind: tl.constexpr, on_gpu: tl.constexpr):
    """Least and greatest time of a block: of queries, kind 0, or of keys, kind 2."""
    at = spans + begin // 64 * 4 + kind
    least, most = _read_end(at, on_gpu), _read_end(at + 1, on_gpu)
    if block > 64:
        least = tl.minimum(least, _read_end(at + 4, on_gpu))
        most = tl.maximum(most, _read_end(at + 5, on_gpu))
    return least, most


@triton.jit
def _time_span(
    begin_m, block_m: tl.constexpr, begin_n, block_n: tl.constexpr, place, bias,
    on_gpu: tl.constexpr,
):  # fmt: skip
    """Least and greatest time bucket between two blocks of queries and keys."""
    low, high = 0, 0
    if bias[2] is not None:
        spans = bias[5] + place[3] * bias[6]
        least_query, most_query = _span_ends(spans, begin_m, block_m, 0, on_gpu)
        least_known, most_known = _span_ends(spans, begin_n, block_n, 2, on_gpu)
        low, high = _time_bucket(least_query - most_known), _time_bucket(most_query - least_known)
    return low, high


@triton.jit
def _times(row_at, column_at, rows, columns, place, bias, by_keys: tl.constexpr):
    """Times of the queries, a second later, and of the keys of a tile, float64."""
    query_at, known_at = bias[3] + place[1], bias[4] + place[1]
    row, column = row_at + tl.arange(0, rows), column_at + tl.arange(0, columns)
    if by_keys:
        return tl.load(query_at + column)[None, :], tl.load(known_at + row)[:, None]
    else:
        return tl.load(query_at + row)[:, None], tl.load(known_at + column)[None, :]


@triton.jit
def _add_bias(s, row_at, column_at, span, place, bias, on_gpu: tl.constexpr, by_keys: tl.constexpr):
    """Add the biases to a tile of scores, queries down and keys across, or keys down."""
    positions, stride, time_table = bias[0], bias[1], bias[2]
    row, column = tl.arange(0, s.shape[0]), tl.arange(0, s.shape[1])
    least = 0.0
    if time_table is not None:
        times = time_table + place[0] * 72
        # By assembly: a tl.load of the loop would be copied ahead by way of shared memory.
        least = _read_entry(times, span[0]) if on_gpu else tl.load(times + span[0])
        least = tl.where(span[1] <= span[0] + 1, least, 0.0)
    if positions is None:
        s += least
    else:
        table = positions + place[0] * stride
        sign: tl.constexpr = -1 if by_keys else 1
        shift = 256 + sign * (row_at - column_at)
        s += _position_bias(table, shift, row, column, least, sign, on_gpu)
    if time_table is not None:
        low, high = span
        if low < high:
            query, known = _times(row_at, column_at, s.shape[0], s.shape[1], place, bias, by_keys)
            if high == low + 1:
                s = _add_later(s, query, known, tl.load(times + high) - least, high, on_gpu)
            else:
                bucket = _time_bucket(query - known)
                s += _read_entry(times, bucket) if on_gpu else tl.load(times + bucket)
    return s


class Bias(NamedTuple):
    """The biases as the kernels take them; absent ones are None."""

    positions: Tensor | None
    """[H, PAD + max_length + PAD] float32: half the bias of each distance, from -PAD on."""
    position_buckets: Tensor | None
    times: Tensor | None
    """[H, TIME_ENTRIES] float32: half the bias of each power of two of seconds."""
    query_times: Tensor | None
    """[M + PAD] float64, which holds seconds up to 2^53 exactly; one second later."""
    key_times: Tensor | None
    spans: Tensor | None
    """[B, spans, 4] float64: least and greatest query time, least and greatest key time."""
    num_positions: int
    num_times: int

    @property
    def present(self) -> bool:
        return self.positions is not None or self.times is not None

    def tensors(self) -> tuple[Any, ...]:
        stride = 0 if self.positions is None else self.positions.stride(0)
        span_stride = 0 if self.spans is None else self.spans.stride(0)
        times = (self.times, self.query_times, self.key_times, self.spans, span_stride)
        return self.positions, stride, *times

    def sizes(self, q: Tensor) -> dict[str, Any]:
        return {"on_gpu": q.is_cuda, "exact": q.dtype == torch.float32}


@triton.jit
def _lay_out(
    weights, buckets, time_weights, query_times, key_times, positions, times, query_seconds, known,
    max_length, events, heads: tl.constexpr, num_positions: tl.constexpr, num_times: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * block + tl.arange(0, block)
    if num_positions > 0:
        stride = max_length + 512
        distance = at % stride - 256
        there = (distance >= 0) & (distance < max_length) & (at < heads * stride)
        bucket = tl.load(buckets + distance, mask=there, other=0)
        bias = tl.load(weights + at // stride * num_positions + bucket, mask=there, other=0.0)
        tl.store(positions + at, 0.5 * bias, mask=at < heads * stride)
    if num_times > 0:
        bucket = tl.minimum(at % 72, num_times - 1)
        there = at < heads * 72
        bias = tl.load(time_weights + at // 72 * num_times + bucket, mask=there, other=0.0)
        tl.store(times + at, 0.5 * bias, mask=there)
        there = at < events
        seconds = tl.load(query_times + at, mask=there, other=0).to(tl.float64) + 1.0
        tl.store(query_seconds + at, seconds, mask=at < events + 256)
        seconds = tl.load(key_times + at, mask=there, other=0).to(tl.float64)
        tl.store(known + at, seconds, mask=at < events + 256)


@triton.jit
def _lay_out_spans(query_times, key_times, offsets, spans):
    """Write the four ends of one span; empty spans have none."""
    first = tl.load(offsets + tl.program_id(1)).to(tl.int64)
    i = first + tl.program_id(0) * 64 + tl.arange(0, 64)
    there = i < tl.load(offsets + tl.program_id(1) + 1)
    query_seconds = tl.load(query_times + i, mask=there, other=0).to(tl.float64) + 1.0
    known = tl.load(key_times + i, mask=there, other=0).to(tl.float64)
    at = spans + (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * 4
    tl.store(at, tl.min(tl.where(there, query_seconds, float("inf"))))
    tl.store(at + 1, tl.max(tl.where(there, query_seconds, float("-inf"))))
    tl.store(at + 2, tl.min(tl.where(there, known, float("inf"))))
    tl.store(at + 3, tl.max(tl.where(there, known, float("-inf"))))


def lay_out_bias(
    q: Tensor,
    offsets: Tensor,
    max_length: int,
    position: tuple[Tensor, Tensor] | None,
    time: tuple[Tensor, Tensor, Tensor] | None,
) -> Bias:
    """Expand the weights to tables that need no bucket of a distance and no end of a range."""
    weights, buckets = position or (None, None)
    time_weights, query_times, key_times = time or (None, None, None)
    heads, events = q.shape[1], q.shape[0]
    num_positions = 0 if weights is None else weights.shape[1]
    num_times = 0 if time_weights is None else time_weights.shape[1]
    single, double = torch.float32, torch.float64
    positions = times = query_seconds = known = spans = None
    if position is not None:
        positions = q.new_empty(heads, max_length + 2 * PAD, dtype=single)
    if time is not None:
        times = q.new_empty(heads, TIME_ENTRIES, dtype=single)
        query_seconds, known = q.new_empty(2, events + PAD, dtype=double)
        # Two more than there are: a block of 128 may begin after the last.
        shape = (triton.cdiv(max_length, SPAN) + 2, len(offsets) - 1)
        spans = q.new_empty(shape[1], shape[0], 4, dtype=double)
        _lay_out_spans[shape](query_times, key_times, offsets, spans)
    entries = max(heads * (max_length + 2 * PAD), events + PAD)
    if position is not None or time is not None:
        _lay_out[(triton.cdiv(entries, 1024),)](
            weights, buckets, time_weights, query_times, key_times, positions, times,
            query_seconds, known, max_length, events, heads=heads, num_positions=num_positions,
            num_times=num_times, block=1024,
        )  # fmt: skip
    return Bias(positions, buckets, times, query_seconds, known, spans, num_positions, num_times)


Blocks = tuple[int, int, int, int, int | None]

BLOCKS: dict[str, dict[int, Blocks]] = {
    "forward": {
        64: (64, 64, 3, 4, None),
        128: (64, 64, 3, 4, None),
        256: (64, 32, 2, 4, None),
        1024: (16, 16, 1, 4, None),
    },
    "biased forward": {64: (64, 64, 3, 4, 168)},
    "keys": {
        64: (32, 64, 3, 4, None),
        128: (64, 64, 2, 4, None),
        256: (32, 32, 1, 4, None),
        1024: (16, 16, 1, 4, None),
    },
    "biased keys": {64: (64, 64, 3, 4, None)},
    "queries": {
        64: (64, 64, 3, 4, None),
        128: (128, 64, 3, 8, None),
        256: (32, 32, 1, 4, None),
        1024: (16, 16, 1, 4, None),
    },
    "biased queries": {128: (64, 64, 4, 4, None)},
}
"""Queries and keys of a tile, pipeline stages, warps and most registers of a thread, by the widest
head in 16-bit numbers; a biased kernel takes the plain one's where it has none of its own."""
MAX_BIASED_BLOCK = 128
"""A tile reads the times of two spans of 64 events at most."""


@triton.jit
def _tanh(x):
    """Compute tanh by one hardware instruction, relative error about 2^-11."""
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _silu(half, on_gpu: tl.constexpr, exact: tl.constexpr):
    """SiLU of twice a number: x sigmoid(x) is x/2 + x/2 tanh(x/2)."""
    if on_gpu and not exact:
        return half * _tanh(half) + half
    return 2.0 * half / (1.0 + tl.exp(-2.0 * half))


@triton.jit
def _allowed(i, j, place):
    """Causal; i and j broadcast to the tile."""
    return (i >= j) & (i < place[2])


@triton.jit
def _load_rows(base, rows, place, stride, width: tl.constexpr, block_w: tl.constexpr):
    """Load rows of one head of one sequence, zero beyond its end, [m, block_w]."""
    head, first, length = place[0], place[1], place[2]
    w = tl.arange(0, block_w)
    at = (first + rows).to(tl.int64)[:, None] * stride + head * width + w[None, :]
    return tl.load(base + at, mask=(rows[:, None] < length) & (w[None, :] < width), other=0.0)


@triton.jit
def _load_tile(
    tiles, base, begin, rows, place, stride, width: tl.constexpr, block_w: tl.constexpr
):  # fmt: skip
    """Load as `_load_rows`; tiles bring the next sequence's rows, where that would be zeros."""
    if tiles is None:
        return _load_rows(base, rows, place, stride, width, block_w)
    else:
        return tiles.load([(place[1] + begin).to(tl.int32), place[0] * width])


@triton.jit
def _store_rows(base, values, rows, place, stride, width: tl.constexpr, block_w: tl.constexpr):
    head, first, length = place[0], place[1], place[2]
    w = tl.arange(0, block_w)
    at = (first + rows).to(tl.int64)[:, None] * stride + head * width + w[None, :]
    mask = (rows[:, None] < length) & (w[None, :] < width)
    tl.store(base + at, values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _place(offsets, pair, heads: tl.constexpr):
    """Find head and sequence of a pair, which counts heads first."""
    sequence = pair // heads
    first = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    return pair % heads, first, length, sequence


@triton.jit
def _forward_step(
    acc, q, k_at, v_at, k_tiles, v_tiles, begin_m, begin, span, place, bias, scale, stride_k,
    stride_v, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_n: tl.constexpr, masked: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr,
):  # fmt: skip
    j = begin + tl.arange(0, block_n)
    k = _load_tile(k_tiles, k_at, begin, j, place, stride_k, dim_k, block_dk)
    v = _load_tile(v_tiles, v_at, begin, j, place, stride_v, dim_v, block_dv)
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
    s = _add_bias(s, begin_m, begin, span, place, bias, on_gpu, False)
    p = _silu(s, on_gpu, exact)
    if masked:
        i = begin_m + tl.arange(0, q.shape[0])
        p = tl.where(_allowed(i[:, None], j[None, :], place), p, 0.0)
    return tl.dot(p.to(v.dtype), v, acc, input_precision="tf32x3")


@triton.jit
def _forward(
    q_at, k_at, v_at, k_tiles, v_tiles, out, offsets, positions, position_stride, time_table,
    query_at, known_at, spans, span_stride, scale, inverse_length, stride_q, stride_k, stride_v,
    stride_o, heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    place = _place(offsets, tl.program_id(1), heads)
    bias = (positions, position_stride, time_table, query_at, known_at, spans, span_stride)
    length = place[2]
    # The last blocks have the most keys, so they start first.
    begin_m = (tl.num_programs(0) - 1 - tl.program_id(0)) * block_m
    if begin_m < length:
        i = begin_m + tl.arange(0, block_m)
        q = _load_rows(q_at, i, place, stride_q, dim_k, block_dk)
        acc = tl.zeros([block_m, block_dv], tl.float32)
        whole = tl.minimum(begin_m, length) // block_n * block_n
        end = tl.minimum(begin_m + block_m, length)
        low, high = _time_span(begin_m, block_m, 0, block_n, place, bias, on_gpu)
        for begin in tl.range(0, whole, block_n, num_stages=stages):
            # The next tile's buckets are read while this one is computed.
            after = _time_span(begin_m, block_m, begin + block_n, block_n, place, bias, on_gpu)
            acc = _forward_step(
                acc, q, k_at, v_at, k_tiles, v_tiles, begin_m, begin, (low, high), place, bias,
                scale, stride_k, stride_v, dim_k, dim_v, block_dk, block_dv, block_n, False,
                on_gpu, exact,
            )  # fmt: skip
            low, high = after
        for begin in tl.range(whole, end, block_n, num_stages=1):
            span = _time_span(begin_m, block_m, begin, block_n, place, bias, on_gpu)
            acc = _forward_step(
                acc, q, k_at, v_at, None, None, begin_m, begin, span, place, bias, scale, stride_k,
                stride_v, dim_k, dim_v, block_dk, block_dv, block_n, True, on_gpu, exact,
            )  # fmt: skip
        _store_rows(out, acc * inverse_length, i, place, stride_o, dim_v, block_dv)


def tiles_of(x: Tensor, rows: int, columns: int | None = None) -> TensorDescriptor | None:
    """Describe blocks of a head's rows to the copy engine of a GPU; None if it cannot copy them."""
    width, step = x.shape[2], x.stride(0) * x.element_size()
    old = x.is_cuda and torch.cuda.get_device_capability(x.device) < (9, 0)
    if old or not len(x) or width < 16 or width & width - 1 or (x.data_ptr() | step) % 16:
        return None
    shape = [x.shape[0], x.shape[1] * width]
    return TensorDescriptor(x, shape, [x.stride(0), 1], [rows, columns or width])


def half_scale(q: Tensor) -> float:
    """Return what makes halves of scores, which a SiLU by tanh takes, of products."""
    return float(0.5 * q.shape[2] ** -0.5)


def kernel_widths(q: Tensor, v: Tensor) -> dict[str, int]:
    """Give a kernel its widths, each also as the power of two that a tile has."""
    return {
        "heads": q.shape[1],
        "dim_k": q.shape[2],
        "dim_v": v.shape[2],
        "block_dk": max(16, triton.next_power_of_2(q.shape[2])),
        "block_dv": max(16, triton.next_power_of_2(v.shape[2])),
    }


def blocks_of(kernel: str, q: Tensor, v: Tensor, *, biased: bool = False) -> dict[str, Any]:
    """Choose tiles by the widest head, or as tuned; measured on an H200 for 16-bit types.

    Other tiles add in another order: bits depend on the inputs and on these numbers.
    """
    single = q.dtype == torch.float32
    width = max(q.shape[2], v.shape[2]) * (4 if single else 1)
    own = BLOCKS.get(f"biased {kernel}", {}) if biased else {}
    choices = {**BLOCKS[kernel], **own}
    queries, keys, stages, warps, most = next(
        choices[limit] for limit in sorted(choices) if width <= limit
    )
    default = {
        "block_m": queries,
        "block_n": keys,
        "stages": stages,
        "num_warps": warps,
        "registers": most or 0,
    }
    shapes = shape_class(dim=max(q.shape[2], v.shape[2])) + ("-biased" if biased else "")
    chosen = dict(config_for(f"hstu_attention.{kernel}", shapes, q.dtype, default))
    if biased and max(chosen["block_m"], chosen["block_n"]) > MAX_BIASED_BLOCK:
        raise ValueError(f"biased attention takes tiles of up to {MAX_BIASED_BLOCK}, got {chosen}")
    registers = chosen.pop("registers")
    return {**chosen, "maxnreg": registers or None}


def forward(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int, bias: Bias
) -> Tensor:
    """Attend within each sequence, [M, H, V]; see `hstu_attention`."""
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    blocks = blocks_of("forward", q, v, biased=bias.present)
    grid = (triton.cdiv(max_length, blocks["block_m"]), (len(offsets) - 1) * q.shape[1])
    _forward[grid](
        q, k, v, tiles_of(k, blocks["block_n"]), tiles_of(v, blocks["block_n"]), out, offsets,
        *bias.tensors(), half_scale(q), 1.0 / max_length, q.stride(0), k.stride(0), v.stride(0),
        out.stride(0),
        **bias.sizes(q), **kernel_widths(q, v), **blocks,
    )  # fmt: skip
    return out
