"""The backward on the GPU: group the ids by row, then launch the update of each width.

No step waits for the device: counts stay there, and launches read them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.launch import launch, num_multiprocessors
from recsys.kernels.embedding_bag.layout import TableLayout, WidthClass
from recsys.kernels.embedding_bag.optimizer import (
    Optimizer,
    OptimizerConfig,
    Tables,
    bias_corrections,
)
from recsys.kernels.embedding_bag.reference import MEAN, UNPOOLED

CHUNK = 64
"""Sorted ids that one program adds up; a run in more than two such chunks is cut there."""
HEADER = 96
KEY_BLOCK, LIST_BLOCK = 1024, 1024
MIN_BYTES_BESIDE = 1 << 28
"""A lookup of fewer bytes ends before the host has launched the sort beside it."""


class Shape(NamedTuple):
    """How a kernel of the update is cut: ``elements`` of a tile are one warp's."""

    elements: int
    warps: int
    programs: int
    """Of a multiprocessor."""
    registers: int | None = None

    def rows(self, block_d: int, warps: int | None = None) -> int:
        """Count the rows of a program's tile."""
        return min(256, max(2, self.elements * (warps or self.warps) // block_d))


SINGLES = Shape(512, 4, 6, 80)
ITEMS = Shape(512, 1, 32, 64)
LONG = Shape(2048, 2, 8, 128)
LIST_WARPS = 8


class Keys(NamedTuple):
    """Key of each id, [M]; ``work`` holds the places behind its header, see `triton_grouping`."""

    keys: Tensor
    work: Tensor
    stride: int


class Runs(NamedTuple):
    """Keys in order, [M], factors of the gradients in order, [M] or None, and the lists."""

    keys: Tensor
    scales: Tensor | None
    work: Tensor
    stride: int


def _blocks(count: int, block: int) -> int:
    return -(-count // block)


def key_ids(
    layout: TableLayout, feature_data: Tensor, ids: Tensor, offsets: Tensor, pooling: int
) -> Keys:
    """Find key and place of each id; the key is R where the id is out of range or in no bag."""
    from recsys.kernels.embedding_bag.triton_grouping import _key_ids

    num_features = len(layout.feature_tables)
    num_bags, num_ids = offsets.shape[0] - 1, ids.shape[0]
    key_type = torch.int32 if layout.total_rows < 2**31 - 1 else torch.int64
    keys = torch.empty(num_ids, dtype=key_type, device=ids.device)
    stride = _blocks(num_ids, 16) * 16
    size = HEADER + 4 * stride + stride // CHUNK + 16
    work = torch.empty(size, dtype=torch.int32, device=ids.device)
    launch(
        _key_ids,
        _blocks(num_ids, KEY_BLOCK),
        (ids, offsets, feature_data, keys, work),
        (
            max(1, num_bags // num_features), num_features, num_bags, num_ids, stride,
            layout.total_rows, (num_bags + 1).bit_length(),
        ),
        {"unpooled": pooling == UNPOOLED, "block": KEY_BLOCK},
    )  # fmt: skip
    return Keys(keys, work, stride)


def group(
    layout: TableLayout,
    feature_data: Tensor,
    batch: tuple[Tensor, Tensor, Tensor | None, int],
) -> Runs:
    """Sort ids by key, equal keys in their order, and list singles, items and long runs."""
    from recsys.kernels.embedding_bag.triton_grouping import _list_work

    ids, offsets, sample_weights, pooling = batch
    num_ids, num_features = ids.shape[0], len(layout.feature_tables)
    keys, work, stride = key_ids(layout, feature_data, ids, offsets, pooling)
    keys, order = torch.sort(keys, stable=True)
    scaled = sample_weights is not None or pooling == MEAN
    scales = torch.empty(num_ids, device=ids.device) if scaled else None
    launch(
        _list_work,
        _blocks(num_ids, LIST_BLOCK),
        (keys, order, offsets, sample_weights, scales, work),
        (
            max(1, (offsets.shape[0] - 1) // num_features), num_features, num_ids, stride,
            layout.total_rows,
        ),
        {"pooling": pooling, "chunk": CHUNK, "block": LIST_BLOCK},
        num_warps=LIST_WARPS,
    )  # fmt: skip
    return Runs(keys, scales, work, stride)


class _Beside(NamedTuple):
    """A second stream for one stream, and the events at which they wait for each other."""

    stream: torch.cuda.Stream
    begin: torch.cuda.Event
    end: torch.cuda.Event


@lru_cache(maxsize=64)
def _beside(stream: torch.cuda.Stream) -> _Beside:
    # Before the lookup's blocks, which would otherwise keep the sort waiting for their end.
    own = torch.cuda.Stream(stream.device, priority=-1)  # type: ignore[no-untyped-call]
    events = (torch.cuda.Event(), torch.cuda.Event())  # type: ignore[no-untyped-call]
    return _Beside(own, *events)


def group_beside(
    layout: TableLayout,
    feature_data: Tensor,
    batch: tuple[Tensor, Tensor, Tensor | None, int],
    lookup: Callable[[], Tensor],
    num_bytes: int,
) -> tuple[Tensor, Runs]:
    """Look up ``num_bytes``, and group meanwhile; what comes after waits for both.

    The lookup waits for memory and the sort for its own steps, so the two fit together. Streams
    meet again here, so that no tensor is freed while the other stream uses it.
    """
    ids = batch[0]
    if not ids.is_cuda or num_bytes < MIN_BYTES_BESIDE:
        return lookup(), group(layout, feature_data, batch)
    stream = torch.cuda.current_stream(ids.device)
    beside = _beside(stream)
    beside.begin.record(stream)
    out = lookup()
    beside.stream.wait_event(beside.begin)
    torch.cuda.set_stream(beside.stream)
    try:
        runs = group(layout, feature_data, batch)
    finally:
        torch.cuda.set_stream(stream)
    beside.end.record(beside.stream)
    stream.wait_event(beside.end)
    return out, runs


def update(
    tables: Tables,
    runs: Runs,
    grad: Tensor,
    scalars: tuple[Tensor | None, Tensor | None],
    *,
    unpooled: bool,
) -> None:
    """Add up and apply, in place; see `reference.update`. Scalars: grad_scale, skip."""
    layout, config, weights, state, feature_data = tables
    adam = config.rule in (Optimizer.ADAM, Optimizer.ROWWISE_ADAM)
    corrections = bias_corrections(state.step, config) if adam else None
    half = weights.dtype in (torch.bfloat16, torch.float16)
    places = {
        "uniform": layout.uniform or unpooled,
        "aligned": layout.aligned,
    }
    for one in layout.classes:
        _update_width(
            one,
            runs,
            (grad, feature_data, len(layout.feature_tables)),
            (weights, *state, corrections, *scalars),
            config,
            places=places,
            stochastic=config.stochastic_rounding and half,
        )


def _update_width(
    one: WidthClass,
    runs: Runs,
    gradient: tuple[Tensor, Tensor, int],
    rows: tuple[Tensor | None, ...],
    config: OptimizerConfig,
    *,
    places: dict[str, bool],
    stochastic: bool,
) -> None:
    from recsys.kernels.embedding_bag.triton_backward import (
        _update_items,
        _update_long,
        _update_singles,
    )

    grad, feature_data, num_features = gradient
    num_ids = runs.keys.shape[0]
    num_chunks = _blocks(num_ids, CHUNK)
    cut = num_chunks > 2
    partials = torch.empty(2 * num_chunks * one.dim if cut else 1, device=grad.device)
    block_d = 1 << (one.dim - 1).bit_length()
    multiprocessors = num_multiprocessors(grad.device)
    of_width = (one.first_key, one.end_key, one.start, config.seed)
    of_rule = (config.epsilon, config.max_row_norm)
    betas = {"beta1": config.beta1, "beta2": config.beta2}
    shape = {"dim": one.dim, "block_d": block_d}
    rule = {"rule": int(config.rule), "stochastic": stochastic}
    numbers = (num_ids, runs.stride, num_features, grad.stride(0), *of_width, *of_rule)
    wide = max(1, block_d // 128)
    launch(
        _update_items,
        min(multiprocessors * max(1, ITEMS.programs // wide), _blocks(num_ids, 2)),
        (runs.keys, runs.scales, runs.work, grad, feature_data, partials, *rows),
        numbers,
        {**betas, **shape, "block_l": ITEMS.rows(block_d, wide), "chunk": CHUNK, **places, **rule},
        num_warps=ITEMS.warps * wide,
        max_registers=ITEMS.registers,
    )
    launch(
        _update_singles,
        min(multiprocessors * SINGLES.programs, _blocks(num_ids, 4)),
        (runs.keys, runs.scales, runs.work, grad, feature_data, *rows),
        numbers,
        {**betas, **shape, "block_r": SINGLES.rows(block_d), **places, **rule},
        num_warps=SINGLES.warps,
        max_registers=SINGLES.registers,
    )
    if not cut:
        return
    launch(
        _update_long,
        max(1, min(multiprocessors * LONG.programs, num_chunks // 2)),
        (runs.keys, runs.work, partials, *rows),
        (num_ids, runs.stride, *of_width, *of_rule),
        {
            **betas, **shape, "block_c": LONG.rows(block_d), "block_few": 8, "chunk": CHUNK, **rule,
        },
        num_warps=LONG.warps,
        max_registers=LONG.registers,
    )  # fmt: skip
