"""Triton kernels of HSTU attention, backward; no atomics, so equal inputs give equal bits.

Scores are computed once, by the kernel of the keys' and values' gradients (a program per block of
keys), which also writes the gradients of the scores to a buffer, a group of sequences at a time.
The queries' gradients are one product of them and the keys. The bias gradients are a fixed number
of partial sums, which are added in order: a program takes tiles of one block diagonal, in which
the distances are the same in every tile, so the gradients by distance are one sum of tiles, parted
into buckets at its end. By time, a tile of one bucket or two is added to their runs, which are
summed up when the buckets change; a tile of more is parted at once.

The buffer is [pairs, panels, rows, PANEL]: keys down and queries across, PANEL queries a panel, so
that a tile is next to its neighbours by key. Tiles above the diagonal are not written.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.hstu_attention.triton_kernel import (
    SPAN,
    Bias,
    _add_bias,
    _allowed,
    _load_rows,
    _load_tile,
    _place,
    _store_rows,
    _tanh,
    _time_bucket,
    _time_span,
    _times,
    blocks_of,
    half_scale,
    kernel_widths,
    tiles_of,
)


@triton.jit
def _score_gradient(half, dp, on_gpu: tl.constexpr, exact: tl.constexpr):
    """Compute weights p and twice the gradient of the scores, of which ``half`` is the half."""
    if on_gpu and not exact:
        t = _tanh(half)
        return half * t + half, dp * (half * (1.0 - t * t) + t) + dp
    g = 1.0 / (1.0 + tl.exp(-2.0 * half))
    p = 2.0 * half * g
    return p, 2.0 * dp * (g + p * (1.0 - g))


@triton.jit
def _panel_row(pair, panels, begin_m, begin_n):
    """Find the first row of a tile in the buffer of score gradients."""
    panel = begin_m // 128
    return (pair * panels * (panels + 1) + panel * (panel + 1)) * 64 + begin_n


@triton.jit
def _keys_step(
    dk, dv, q_at, do_at, q_tiles, do_tiles, ds_out, ds_tiles, k, v, begin_n, begin, span, place,
    bias, panels, scale, stride_q, stride_do, dim_k: tl.constexpr, dim_v: tl.constexpr,
    block_dk: tl.constexpr, block_dv: tl.constexpr, block_m: tl.constexpr, masked: tl.constexpr,
    on_gpu: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    i = begin + tl.arange(0, block_m)
    q = _load_tile(q_tiles, q_at, begin, i, place, stride_q, dim_k, block_dk)
    do = _load_tile(do_tiles, do_at, begin, i, place, stride_do, dim_v, block_dv)
    # Keys down and queries across, [n, m]: what the two products below need.
    s = tl.dot(k, tl.trans(q), input_precision="tf32x3") * scale
    s = _add_bias(s, begin_n, begin, span, place, bias, on_gpu, True)
    dp = tl.dot(v, tl.trans(do), input_precision="tf32x3")
    p, ds = _score_gradient(s, dp, on_gpu, exact)
    if masked:
        j = begin_n + tl.arange(0, k.shape[0])
        allowed = _allowed(i[None, :], j[:, None], place)
        p = tl.where(allowed, p, 0.0)
        ds = tl.where(allowed, ds, 0.0)
    ds = ds.to(q.dtype)
    if ds_out is not None:
        row = _panel_row(tl.program_id(1), panels, begin, begin_n)
        column = tl.multiple_of(begin % 128, 16)
        if ds_tiles is None:
            j, i = tl.arange(0, k.shape[0]), column + tl.arange(0, block_m)
            tl.store(ds_out + (row + j).to(tl.int64)[:, None] * 128 + i[None, :], ds)
        else:
            ds_tiles.store([row, column], ds)
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision="tf32x3")
    dk = tl.dot(ds, q, dk, input_precision="tf32x3")
    return dk, dv


@triton.jit
def _backward_keys(
    q_at, k_at, v_at, do_at, q_tiles, do_tiles, dk_out, dv_out, ds_out, ds_tiles, offsets,
    positions, position_stride, time_table, query_at, known_at, spans, span_stride, first_pair,
    panels, scale, inverse_length, stride_q, stride_k, stride_v, stride_do, stride_dk, stride_dv,
    heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values: all queries from the block on."""
    place = _place(offsets, first_pair + tl.program_id(1), heads)
    bias = (positions, position_stride, time_table, query_at, known_at, spans, span_stride)
    length = place[2]
    begin_n = tl.program_id(0) * block_n
    if begin_n < length:
        j = begin_n + tl.arange(0, block_n)
        k = _load_rows(k_at, j, place, stride_k, dim_k, block_dk)
        v = _load_rows(v_at, j, place, stride_v, dim_v, block_dv)
        dk = tl.zeros([block_n, block_dk], tl.float32)
        dv = tl.zeros([block_n, block_dv], tl.float32)
        start = begin_n // block_m * block_m
        # Queries beyond the block see all of it; the last ones may not fill a tile.
        whole = tl.minimum(tl.cdiv(begin_n + block_n, block_m) * block_m, length)
        full = tl.maximum(length // block_m * block_m, whole)
        for at in tl.range(start, whole + tl.minimum(length - full, 1), block_m, num_stages=1):
            begin = tl.where(at < whole, at, full)
            span = _time_span(begin, block_m, begin_n, block_n, place, bias, on_gpu)
            dk, dv = _keys_step(
                dk, dv, q_at, do_at, None, None, ds_out, ds_tiles, k, v, begin_n, begin, span,
                place, bias, panels, scale, stride_q, stride_do, dim_k, dim_v, block_dk, block_dv,
                block_m, True, on_gpu, exact,
            )  # fmt: skip
        low, high = _time_span(whole, block_m, begin_n, block_n, place, bias, on_gpu)
        for begin in tl.range(whole, full, block_m, num_stages=stages):
            after = _time_span(begin + block_m, block_m, begin_n, block_n, place, bias, on_gpu)
            dk, dv = _keys_step(
                dk, dv, q_at, do_at, q_tiles, do_tiles, ds_out, ds_tiles, k, v, begin_n, begin,
                (low, high), place, bias, panels, scale, stride_q, stride_do, dim_k, dim_v,
                block_dk, block_dv, block_m, False, on_gpu, exact,
            )  # fmt: skip
            low, high = after
        _store_rows(dk_out, dk * (scale * inverse_length), j, place, stride_dk, dim_k, block_dk)
        _store_rows(dv_out, dv * inverse_length, j, place, stride_dv, dim_v, block_dv)


@triton.jit
def _load_gradients(
    ds_at, ds_tiles, pair, panels, begin_m, begin_n, block_m: tl.constexpr, block_n: tl.constexpr
):  # fmt: skip
    """Load a tile of score gradients, keys down and queries across."""
    row = _panel_row(pair, panels, begin_m, begin_n)
    column = tl.multiple_of(begin_m % 128, 16)
    if ds_tiles is None:
        j, i = tl.arange(0, block_n), column + tl.arange(0, block_m)
        return tl.load(ds_at + (row + j).to(tl.int64)[:, None] * 128 + i[None, :])
    else:
        return ds_tiles.load([row, column])


@triton.jit
def _queries_step(
    dq, q, do, k_at, v_at, k_tiles, v_tiles, ds_at, ds_tiles, begin_m, begin, place, panels, scale,
    stride_k, stride_v, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, masked: tl.constexpr,
    on_gpu: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    j = begin + tl.arange(0, block_n)
    k = _load_tile(k_tiles, k_at, begin, j, place, stride_k, dim_k, block_dk)
    if ds_at is None:
        v = _load_tile(v_tiles, v_at, begin, j, place, stride_v, dim_v, block_dv)
        s = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
        dp = tl.dot(do, tl.trans(v), input_precision="tf32x3")
        ds = _score_gradient(s, dp, on_gpu, exact)[1].to(k.dtype)
    else:
        pair = tl.program_id(1)
        ds = _load_gradients(ds_at, ds_tiles, pair, panels, begin_m, begin, block_m, block_n)
        ds = tl.trans(ds)
    if masked:
        i = begin_m + tl.arange(0, block_m)
        ds = tl.where(_allowed(i[:, None], j[None, :], place), ds, 0.0)
    return tl.dot(ds, k, dq, input_precision="tf32x3")


@triton.jit
def _backward_queries(
    q_at, k_at, v_at, do_at, k_tiles, v_tiles, ds_at, ds_tiles, dq_out, offsets, first_pair,
    panels, scale, inverse_length, stride_q, stride_k, stride_v, stride_do, stride_dq,
    heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of queries: all keys up to the block.

    Without a buffer of the scores' gradients these are computed again.
    """
    place = _place(offsets, first_pair + tl.program_id(1), heads)
    length = place[2]
    begin_m = (tl.num_programs(0) - 1 - tl.program_id(0)) * block_m
    if begin_m < length:
        i = begin_m + tl.arange(0, block_m)
        q, do = None, None
        if ds_at is None:
            q = _load_rows(q_at, i, place, stride_q, dim_k, block_dk)
            do = _load_rows(do_at, i, place, stride_do, dim_v, block_dv)
        dq = tl.zeros([block_m, block_dk], tl.float32)
        whole = begin_m // block_n * block_n
        for begin in tl.range(0, whole, block_n, num_stages=stages):
            dq = _queries_step(
                dq, q, do, k_at, v_at, k_tiles, v_tiles, ds_at, ds_tiles, begin_m, begin, place,
                panels, scale, stride_k, stride_v, dim_k, dim_v, block_dk, block_dv, block_m,
                block_n, False, on_gpu, exact,
            )  # fmt: skip
        for begin in tl.range(whole, tl.minimum(begin_m + block_m, length), block_n, num_stages=1):
            dq = _queries_step(
                dq, q, do, k_at, v_at, None, None, ds_at, None, begin_m, begin, place, panels,
                scale, stride_k, stride_v, dim_k, dim_v, block_dk, block_dv, block_m, block_n,
                True, on_gpu, exact,
            )  # fmt: skip
        _store_rows(dq_out, dq * (scale * inverse_length), i, place, stride_dq, dim_k, block_dk)


@triton.jit
def _add_by_bucket(totals, ds, bucket, low, high):
    """Add a tile of gradients to the totals of buckets low to high."""
    for one in range(low, high + 1):
        totals = _add_to(totals, tl.where(bucket == one, ds, 0.0), one)
    return totals


@triton.jit
def _add_to(totals, ds, bucket):
    """Add a tile to one bucket's total."""
    return tl.where(tl.arange(0, totals.shape[0]) == bucket, totals + tl.sum(ds), totals)


@triton.jit
def _eighths(ds):
    """Sum up each eight neighbours, which one thread holds."""
    return tl.sum(tl.reshape(ds, [ds.shape[0] * ds.shape[1] // 8, 8]), 1)


def _by_bucket_assembly() -> str:
    """Sum 32 numbers by bucket in shared memory, which a thread has 32 words of to itself."""
    lines = [
        "{ .reg .b32 own, at; .reg .f32 sum; .shared .align 4 .b8 sums[16384];",
        "mov.u32 at, %tid.x; mov.u32 own, sums; mad.lo.u32 own, at, 4, own;",
        *(f"st.shared.f32 [own+{512 * k}], 0f00000000;" for k in range(32)),
    ]
    for k in range(32):
        lines += [
            f"mad.lo.u32 at, ${64 + k}, 512, own; ld.shared.f32 sum, [at];",
            f"add.f32 sum, sum, ${32 + k}; st.shared.f32 [at], sum;",
        ]
    return " ".join([*lines, *(f"ld.shared.f32 ${k}, [own+{512 * k}];" for k in range(32)), "}"])


def _store_sums_assembly() -> str:
    """Add up the 32 numbers of all 128 threads, each number by itself, and store them."""
    lines = [
        "{ .reg .pred p; .reg .b32 lane, at; .reg .b64 to; .reg .f32 send, keep, r<32>;",
        ".shared .align 4 .b8 sums[512]; mov.u32 lane, %tid.x; and.b32 lane, lane, 31;",
        *(f"mov.f32 r{k}, ${32 + k};" for k in range(32)),
    ]
    # Halves are exchanged five times, until lane k has the warp's sum of the k-th number.
    for half in (16, 8, 4, 2, 1):
        lines.append(f"and.b32 at, lane, {half}; setp.ne.u32 p, at, 0;")
        for k in range(half):
            lines += [
                f"selp.f32 send, r{k}, r{k + half}, p; selp.f32 keep, r{k + half}, r{k}, p;",
                f"shfl.sync.bfly.b32 send, send, {half}, 31, -1; add.f32 r{k}, keep, send;",
            ]
    lines += [
        "mov.u32 lane, %tid.x; mov.u32 at, sums; mad.lo.u32 at, lane, 4, at;",
        "st.shared.f32 [at], r0; bar.sync 0; setp.lt.u32 p, lane, 32;",
        "ld.shared.f32 r0, [at];",
        *(f"@p ld.shared.f32 send, [at+{128 * k}]; @p add.f32 r0, r0, send;" for k in (1, 2, 3)),
        "mul.wide.u32 to, lane, $96; add.u64 to, to, $64; @p st.global.f32 [to], r0;",
        *(f"mov.f32 ${k}, 0f00000000;" for k in range(32)),
        "}",
    ]
    return " ".join(lines)


BY_BUCKET = tl.constexpr(_by_bucket_assembly())
BY_BUCKET_OPERANDS = tl.constexpr(",".join(["=f"] * 32 + ["f"] * 32 + ["r"] * 32))
STORE_SUMS = tl.constexpr(_store_sums_assembly())
STORE_SUMS_OPERANDS = tl.constexpr(",".join(["=f"] * 32 + ["f"] * 32 + ["l"] * 32 + ["r"] * 32))


@triton.jit
def _by_bucket(ds, bucket):
    """Sum up a thread's 32 numbers by bucket: its k-th becomes the sum of bucket k."""
    return tl.inline_asm_elementwise(
        BY_BUCKET, BY_BUCKET_OPERANDS, [ds, bucket], dtype=tl.float32, is_pure=True, pack=32
    )


@triton.jit
def _store_sums(to, values, row, rows):
    """Store the sums of all threads of what `_by_bucket` returns, at to[bucket, row]."""
    address, step = (to + row).to(tl.int64), rows * 4
    tl.inline_asm_elementwise(
        STORE_SUMS, STORE_SUMS_OPERANDS, [values, address, step], dtype=tl.float32, is_pure=False,
        pack=32,
    )  # fmt: skip


@triton.jit
def _store_totals(to, totals, row, rows):
    tl.store(to + tl.arange(0, totals.shape[0]) * rows + row, totals)


@triton.jit
def _add_times(
    totals, by_time, run, current, ds, begin_m, begin_n, place, bias, num_times: tl.constexpr,
    on_gpu: tl.constexpr, in_shared: tl.constexpr,
):  # fmt: skip
    """Add a tile of one bucket to its run, others by bucket."""
    low, high = _time_span(begin_m, ds.shape[1], begin_n, ds.shape[0], place, bias, on_gpu)
    low, high = tl.minimum(low, num_times - 1), tl.minimum(high, num_times - 1)
    if low == high:
        if low != current:
            totals = _add_to(totals, run, current)
            run, current = tl.zeros_like(run), low
        run += _eighths(ds)
    else:
        query, known = _times(begin_n, begin_m, ds.shape[0], ds.shape[1], place, bias, True)
        bucket = tl.minimum(_time_bucket(query - known), num_times - 1)
        if in_shared:
            by_time += _by_bucket(ds, bucket)
        else:
            totals = _add_by_bucket(totals, ds, bucket, low, high)
    return totals, by_time, run, current


@triton.jit
def _backward_biases(
    ds_at, position_parts, time_parts, offsets, positions, position_stride, time_table, query_at,
    known_at, spans, span_stride, buckets, first_pair, panels, inverse_length, num_sequences,
    num_blocks, max_length, first_row, rows, num_positions: tl.constexpr, num_times: tl.constexpr,
    heads: tl.constexpr, block_p: tl.constexpr, block_t: tl.constexpr, on_gpu: tl.constexpr,
    in_shared: tl.constexpr,
):  # fmt: skip
    block: tl.constexpr = 64
    bias = (positions, position_stride, time_table, query_at, known_at, spans, span_stride)
    diagonal, head = tl.program_id(1), tl.program_id(2)
    by_distance = tl.zeros([block, block], tl.float32)
    by_time, run, current = tl.zeros_like(by_distance), _eighths(by_distance), 0
    totals = tl.zeros([block_t], tl.float32)
    tiles = num_sequences * (num_blocks - diagonal)
    share = tl.cdiv(tiles, tl.num_programs(0))
    begin = tl.program_id(0) * share
    for tile in range(begin, tl.minimum(begin + share, tiles)):
        pair = tile // (num_blocks - diagonal) * heads + head
        begin_n = tile % (num_blocks - diagonal) * block
        begin_m = begin_n + diagonal * block
        place = _place(offsets, first_pair + pair, heads)
        if begin_m < place[2]:
            ds = _load_gradients(ds_at, None, pair, panels, begin_m, begin_n, block, block)
            ds = ds.to(tl.float32)
            if (diagonal == 0) | (begin_m + block > place[2]):
                i, j = begin_m + tl.arange(0, block), begin_n + tl.arange(0, block)
                ds = tl.where(_allowed(i[None, :], j[:, None], place), ds, 0.0)
            if num_positions > 0:
                by_distance += ds
            if num_times > 0:
                totals, by_time, run, current = _add_times(
                    totals, by_time, run, current, ds, begin_m, begin_n, place, bias, num_times,
                    on_gpu, in_shared,
                )  # fmt: skip
    row = first_row + tl.program_id(0) * tl.num_programs(1) + diagonal
    if num_positions > 0:
        to = position_parts + head * block_p * rows
        distance = diagonal * block + tl.arange(0, block)[None, :] - tl.arange(0, block)[:, None]
        inside = (distance >= 0) & (distance < max_length)
        bucket = tl.load(buckets + distance, mask=inside, other=0)
        by_distance *= inverse_length
        if in_shared:
            _store_sums(to, _by_bucket(by_distance, bucket), row, rows)
        else:
            high = tl.where(begin < tiles, tl.max(bucket), -1)
            sums = _add_by_bucket(tl.zeros([block_p], tl.float32), by_distance, bucket, 0, high)
            _store_totals(to, sums, row, rows)
    if num_times > 0:
        to = time_parts + head * block_t * rows * 2
        totals = _add_to(totals, run, current) * inverse_length
        _store_totals(to, totals, row, rows * 2)
        if in_shared:
            _store_sums(to, by_time * inverse_length, row + rows, rows * 2)
        else:
            _store_totals(to, tl.zeros_like(totals), row + rows, rows * 2)


PANEL = 128
"""Queries of a panel of score gradients, of which every tile is a part."""
MEMORY_SHARE = 64
"""Score gradients take this part of a GPU's memory at most, unless one sequence has more."""
BIAS_PROGRAMS = 512
"""Partial sums of a head, about; fixed by the shapes, so that the order of additions is."""


def gradient_bytes(device: torch.device) -> int:
    """Return how much memory score gradients may take at a time."""
    if device.type != "cuda":
        return 1 << 30
    return int(torch.cuda.get_device_properties(device).total_memory) // MEMORY_SHARE


def backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, offsets: Tensor, max_length: int, bias: Bias
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys, values and of the position and time weights.

    The last two are [H, buckets], empty where there are none.
    """
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    widths, heads, group = kernel_widths(q, v), q.shape[1], len(offsets) - 1
    sequences, stores = group, bias.present
    of_keys, of_queries = (blocks_of(one, q, v, biased=stores) for one in ("keys", "queries"))
    scalars, strides = (
        (half_scale(q), 1.0 / max_length),
        (q.stride(0), k.stride(0), v.stride(0), do.stride(0)),
    )
    panels, num_blocks = triton.cdiv(max_length, PANEL), triton.cdiv(max_length, SPAN)
    ds = to_tiles = from_tiles = None
    if stores and sequences:
        pair_rows = panels * (panels + 1) // 2 * PANEL
        most = gradient_bytes(q.device) // (heads * pair_rows * PANEL * q.element_size())
        group = triton.cdiv(sequences, triton.cdiv(sequences, max(1, most)))
        ds = q.new_empty(group * heads * pair_rows, 1, PANEL)
        to_tiles = tiles_of(ds, of_keys["block_n"], of_keys["block_m"])
        from_tiles = tiles_of(ds, of_queries["block_n"], of_queries["block_m"])
    firsts = range(0, sequences, max(1, group))
    parts = max(1, BIAS_PROGRAMS // (num_blocks * max(1, len(firsts))))
    rows, counts = len(firsts) * parts * num_blocks, (bias.num_positions, bias.num_times)
    padded = [max(32, triton.next_power_of_2(n)) for n in counts]
    sums = [
        q.new_empty(heads, width if n else 0, rows * slots, dtype=torch.float32)
        for n, width, slots in zip(counts, padded, (1, 2), strict=True)
    ]
    for number, first in enumerate(firsts):
        count, place = min(group, sequences - first), (first * heads, panels)
        _backward_keys[(triton.cdiv(max_length, of_keys["block_n"]), count * heads)](
            q, k, v, do, tiles_of(q, of_keys["block_m"]), tiles_of(do, of_keys["block_m"]), dk, dv,
            ds, to_tiles, offsets, *bias.tensors(), *place, *scalars, *strides, dk.stride(0),
            dv.stride(0), **bias.sizes(q), **widths, **of_keys,
        )  # fmt: skip
        _backward_queries[(triton.cdiv(max_length, of_queries["block_m"]), count * heads)](
            q, k, v, do, tiles_of(k, of_queries["block_n"]), tiles_of(v, of_queries["block_n"]),
            ds, from_tiles, dq, offsets, *place, *scalars, *strides, dq.stride(0),
            **bias.sizes(q), **widths, **of_queries,
        )  # fmt: skip
        if any(counts):
            _backward_biases[(parts, num_blocks, heads)](
                ds, *sums, offsets, *bias.tensors(), bias.position_buckets, *place,
                0.5 / max_length, count, num_blocks, max_length, number * parts * num_blocks, rows,
                num_positions=counts[0], num_times=counts[1], heads=heads, block_p=padded[0],
                block_t=padded[1], on_gpu=q.is_cuda, in_shared=q.is_cuda and max(counts) <= 32,
                num_warps=4,
            )  # fmt: skip
    totals = (one.sum(2)[:, :n] for one, n in zip(sums, counts, strict=True))
    return dq, dk, dv, *totals
