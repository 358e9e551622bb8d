"""The backward on the GPU: group the ids by row, then launch the update of each width.

No step waits for the device: launches cover the most runs there can be and leave early.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.layout import TableLayout, WidthClass
from recsys.kernels.embedding_bag.optimizer import (
    Optimizer,
    OptimizerConfig,
    OptimizerState,
    bias_corrections,
)
from recsys.kernels.embedding_bag.reference import MEAN, UNPOOLED

CHUNK = 64
"""Ids that one lane adds up at most, and the part of a longer run that one program does."""
BLOCK = 1024
PROGRAMS_PER_MULTIPROCESSOR = 16


class Runs(NamedTuple):
    """Ids in order of their keys, and the runs of equal keys.

    ``keys``, ``places`` [M]; ``scales`` [M] float32 or None; ``starts`` [M + 1] int32;
    ``chunk_runs`` [ceil(M / CHUNK)]; ``counts``: the last is the number of runs.
    """

    keys: Tensor
    places: Tensor
    scales: Tensor | None
    starts: Tensor
    chunk_runs: Tensor
    counts: Tensor


def _blocks(count: int, block: int) -> int:
    return -(-count // block)


def key_ids(
    layout: TableLayout, feature_data: Tensor, ids: Tensor, offsets: Tensor, pooling: int
) -> tuple[Tensor, Tensor]:
    """Find key and place of each id, both [M]; the key is R where the id is out of range."""
    from recsys.kernels.embedding_bag.triton_backward import _key_ids

    num_features, num_bags = len(layout.feature_tables), len(offsets) - 1
    key_type = torch.int32 if layout.total_rows < 2**31 - 1 else torch.int64
    place_type = torch.int32 if num_bags < 2**31 else torch.int64
    keys = torch.full_like(ids, layout.total_rows, dtype=key_type)
    places = torch.empty_like(ids, dtype=place_type)
    batch = num_bags // num_features
    block_l = 4 if len(ids) <= 4 * num_bags else 32
    block_b = 512 // block_l
    if batch:
        _key_ids[(num_features * _blocks(batch, block_b),)](
            ids,
            offsets,
            feature_data,
            keys,
            places,
            batch,
            num_features,
            len(ids),
            layout.total_rows,
            unpooled=pooling == UNPOOLED,
            block_b=block_b,
            block_l=block_l,
        )
    return keys, places


def group(
    layout: TableLayout,
    feature_data: Tensor,
    batch: tuple[Tensor, Tensor, Tensor | None, int],
) -> Runs:
    """Sort ids by key, equal keys in their order, and list the runs."""
    from recsys.kernels.embedding_bag.triton_backward import _list_runs, _mark_runs

    ids, offsets, sample_weights, pooling = batch
    keys, places = key_ids(layout, feature_data, ids, offsets, pooling)
    keys, order = torch.sort(keys, stable=True)
    num_ids, device, num_features = len(ids), ids.device, len(layout.feature_tables)
    scaled = sample_weights is not None or pooling == MEAN
    scales = torch.empty(num_ids, device=device) if scaled else None
    sorted_places = torch.empty_like(places)
    blocks = _blocks(num_ids, BLOCK)
    counts = torch.empty(blocks, dtype=torch.int32, device=device)
    _mark_runs[(blocks,)](
        keys,
        order,
        places,
        offsets,
        sample_weights,
        sorted_places,
        scales,
        counts,
        (len(offsets) - 1) // num_features,
        num_features,
        num_ids,
        layout.total_rows,
        pooling=pooling,
        block=BLOCK,
    )
    counts = counts.cumsum(0, dtype=torch.int32)
    starts = torch.empty(num_ids + 1, dtype=torch.int32, device=device)
    chunk_runs = torch.empty(_blocks(num_ids, CHUNK), dtype=torch.int32, device=device)
    _list_runs[(blocks,)](
        keys, counts, starts, chunk_runs, num_ids, layout.total_rows, chunk=CHUNK, block=BLOCK
    )
    return Runs(keys, sorted_places, scales, starts, chunk_runs, counts)


def update(
    layout: TableLayout,
    config: OptimizerConfig,
    weights: Tensor,
    state: OptimizerState,
    feature_data: Tensor,
    batch: tuple[Tensor, Tensor, Tensor | None, int],
    grad: Tensor,
    scalars: tuple[Tensor | None, Tensor | None],
) -> None:
    """Group, add up and apply, in place; see `reference.update`. Scalars: grad_scale, skip."""
    if not len(batch[0]):
        return
    runs = group(layout, feature_data, batch)
    adam = config.rule in (Optimizer.ADAM, Optimizer.ROWWISE_ADAM)
    corrections = bias_corrections(state.step, config) if adam else None
    uniform = layout.uniform or batch[3] == UNPOOLED
    half = weights.dtype in (torch.bfloat16, torch.float16)
    aligned = all(dim % 8 == 0 for dim in layout.dims)
    for one in layout.classes:
        _update_width(
            one,
            runs,
            (grad, feature_data[2], len(layout.feature_tables)),
            (weights, *state, corrections, *scalars),
            config,
            places={"uniform": uniform, "aligned": aligned},
            stochastic=config.stochastic_rounding and half,
        )


def _update_width(
    one: WidthClass,
    runs: Runs,
    gradient: tuple[Tensor, Tensor, int],
    tables: tuple[Tensor | None, ...],
    config: OptimizerConfig,
    *,
    places: dict[str, bool],
    stochastic: bool,
) -> None:
    from recsys.kernels.embedding_bag.triton_backward import (
        _apply_long,
        _apply_short,
        _sum_chunks,
    )

    grad, columns, num_features = gradient
    weights, first, second, step, learning_rate, corrections, grad_scale, skip = tables
    num_ids, num_chunks = len(runs.keys), len(runs.chunk_runs)
    num_runs = runs.counts[-1:]
    constants = (config.epsilon, config.beta1, config.beta2, config.seed, config.max_row_norm)
    block_d = 1 << (one.dim - 1).bit_length()
    block_r = max(1, 1024 // block_d)
    programs = 8
    if grad.is_cuda:
        properties = torch.cuda.get_device_properties(grad.device)
        programs = PROGRAMS_PER_MULTIPROCESSOR * properties.multi_processor_count
    rows = (weights, first, second, step, learning_rate, corrections, grad_scale, skip)
    shape = {"dim": one.dim, "block_d": block_d, "chunk": CHUNK}
    rule = {"rule": int(config.rule), "stochastic": stochastic}
    _apply_short[(min(programs, _blocks(num_ids, block_r)),)](
        runs.keys, runs.places, runs.scales, runs.starts, num_runs, grad, columns, *rows,
        num_features, grad.stride(0), one.first_key, one.end_key, one.start, *constants,
        block_r=block_r, unroll=4, **places, **shape, **rule, num_warps=4,
    )  # fmt: skip
    if num_ids <= CHUNK:
        return
    partials = torch.empty(2 * num_chunks * one.dim, device=grad.device)
    _sum_chunks[(num_chunks,)](
        runs.keys, runs.places, runs.scales, runs.starts, runs.chunk_runs, num_runs, grad, columns,
        partials, num_features, grad.stride(0), num_chunks, one.first_key, one.end_key,
        block_r=min(16, 2 * block_r), **places, **shape, num_warps=4,
    )  # fmt: skip
    _apply_long[(num_chunks,)](
        runs.keys, runs.starts, runs.chunk_runs, num_runs, partials, *rows,
        num_chunks, one.first_key, one.end_key, one.start, *constants,
        block_r=max(1, 4096 // block_d), **shape, **rule, num_warps=4,
    )  # fmt: skip
