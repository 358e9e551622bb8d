"""Launch the update of each width of tables, of the work that `grouping` listed."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.choice import Config, config_for, shape_class
from recsys.kernels.embedding_bag.grouping import CHUNK, Runs, blocks
from recsys.kernels.embedding_bag.launch import (
    Arguments,
    Kernel,
    num_multiprocessors,
    part_streams,
)
from recsys.kernels.embedding_bag.layout import (
    Optimizer,
    OptimizerConfig,
    TableArrays,
    WidthClass,
    bias_corrections,
    is_adam,
)

# How a kernel is cut unless it was tuned: ``elements`` of a tile are one warp's, ``programs`` a
# multiprocessor's, ``registers`` the most of a thread. Another tile adds gradients in another
# order: the bits of an update depend on its inputs and on these numbers.
SINGLES = {"elements": 512, "num_warps": 4, "programs": 6, "registers": 80}
SHORT = {"elements": 256, "num_warps": 1, "programs": 24, "registers": 80}
ITEMS = {"elements": 1024, "num_warps": 1, "programs": 20, "registers": 96}
LONG = {"elements": 2048, "num_warps": 2, "programs": 8, "registers": 128}
_NAMES = ("elements", "num_warps", "programs", "registers")
_numbers = itemgetter(*_NAMES)
MIN_OVERLAP_VALUES = 1 << 26
"""An update of fewer gradients' numbers ends before two streams pay for their events."""


def tile_rows(shape: Config, block_d: int, warps: int | None = None) -> int:
    """Count the rows of a program's tile."""
    return min(256, max(2, shape["elements"] * (warps or shape["num_warps"]) // block_d))


def unequal_rows(shape: Config, block_d: int, warps: int) -> int:
    """Count the rows of a tile that is not square.

    Triton 3.6 and 3.7 compile no square tile of short runs where features differ in width.
    """
    rows = tile_rows(shape, block_d, warps)
    return 2 * rows if rows == block_d else rows


class Kernels(NamedTuple):
    """The kernels of one width, and of each how many programs a multiprocessor has."""

    items: Kernel
    long: Kernel
    short: Kernel
    singles: Kernel
    programs: tuple[int, int, int, int]


@lru_cache(maxsize=1024)
def _kernels(
    dim: int,
    rule: tuple[int, float, float],
    uniform: bool,
    aligned: bool,
    tiles: tuple[tuple[int, ...], ...],
    chunk: int,
) -> Kernels:
    """Prepare kernels; rule: number, betas; tiles: numbers."""
    from recsys.kernels.embedding_bag.triton_backward import _update_items, _update_long
    from recsys.kernels.embedding_bag.triton_rows import _update_rows

    number, beta1, beta2 = rule
    items, long, short, singles = (dict(zip(_NAMES, tile, strict=True)) for tile in tiles)
    block_d = 1 << (dim - 1).bit_length()
    wide = min(16, max(1, block_d // 128))
    before = {"beta1": beta1, "beta2": beta2, "dim": dim, "block_d": block_d}
    behind = {"rule": number}
    places = {"uniform": uniform, "aligned": aligned}
    of_items = {
        **before, "block_l": tile_rows(items, block_d, wide), "chunk": chunk, **places, **behind,
        "shared": items["num_warps"] > 1,
    }  # fmt: skip
    of_long = {
        **before, "block_c": tile_rows(long, block_d), "block_few": 8, "chunk": chunk, **behind,
        "shared": long["num_warps"] > 1,
    }  # fmt: skip

    def by_tiles(tile: Config, width: int, *, runs: bool) -> Kernel:
        warps = min(32, tile["num_warps"] * width)
        rows = unequal_rows(tile, block_d, warps)
        shared = rows * block_d < 32 * warps
        constants = {**before, "block_r": rows, **places, **behind}
        constants |= {"shared": shared, "runs": runs}
        return Kernel(_update_rows, constants, num_warps=warps, max_registers=tile["registers"])

    return Kernels(
        Kernel(
            _update_items, of_items,
            num_warps=min(32, items["num_warps"] * wide), max_registers=items["registers"],
        ),
        Kernel(
            _update_long, of_long, num_warps=long["num_warps"], max_registers=long["registers"]
        ),
        by_tiles(short, wide, runs=True),
        by_tiles(singles, 1, runs=False),
        (
            max(1, items["programs"] // wide), long["programs"],
            max(1, short["programs"] // wide), singles["programs"],
        ),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _class(dim: int, rule: Optimizer) -> str:
    return f"{shape_class(dim=dim)}-{rule.name.lower()}"


def _tiles(shapes: str, dtype: torch.dtype) -> tuple[tuple[int, ...], ...]:
    """Ask for the tiles of items, long and short runs and singles."""
    return (
        _numbers(config_for("embedding_bag.items", shapes, dtype, ITEMS)),
        _numbers(config_for("embedding_bag.long", shapes, dtype, LONG)),
        _numbers(config_for("embedding_bag.short", shapes, dtype, SHORT)),
        _numbers(config_for("embedding_bag.singles", shapes, dtype, SINGLES)),
    )


def update(
    tables: TableArrays,
    runs: Runs,
    grad: Tensor,
    scalars: tuple[Tensor | None, Tensor | None],
) -> None:
    """Add up each row's gradient and apply the optimizer in place; scalars: grad_scale, skip."""
    layout, config, weights, state, feature_data = tables
    corrections = bias_corrections(state.step, config) if is_adam(config) else None
    rule = (int(config.rule), config.beta1, config.beta2)
    places = (layout.uniform, layout.aligned)
    for one in layout.classes:
        tiles = _tiles(_class(one.dim, config.rule), weights.dtype)
        _update_width(
            one,
            runs,
            (grad, feature_data, len(layout.feature_tables)),
            (weights, *state[:2], state.learning_rate, corrections, *scalars),
            config,
            _kernels(one.dim, rule, *places, tiles, CHUNK),
        )


def _update_width(
    one: WidthClass,
    runs: Runs,
    gradient: tuple[Tensor, Tensor, int],
    rows: tuple[Tensor | None, ...],
    config: OptimizerConfig,
    kernels: Kernels,
) -> None:
    grad, feature_data, num_features = gradient
    device, num_ids = grad.device, runs.keys.shape[0]
    num_chunks = blocks(num_ids, CHUNK)
    cut = num_chunks > 2
    partials = torch.empty(2 * num_chunks * one.dim if cut else 1, device=device)
    most = None if config.max_row_norm is None else float(config.max_row_norm)
    numbers = (
        num_ids, runs.stride, num_features, grad.stride(0), one.first_key, one.end_key, one.start,
        float(config.epsilon), most,
    )  # fmt: skip
    lists = (runs.keys, runs.scales, runs.work, runs.counts)
    arguments = Arguments((*lists, grad, feature_data, partials, *rows), numbers)
    items, long, short, singles = (num_multiprocessors(device) * one for one in kernels.programs)
    streams = part_streams(device) if num_ids * one.dim >= MIN_OVERLAP_VALUES else None
    try:
        if streams:
            streams.switch()
        kernels.items.launch(min(items, blocks(num_ids, 2)), arguments)
        if cut:
            kernels.long.launch(min(long, num_chunks // 2), arguments)
    finally:
        if streams:
            streams.resume()
    kernels.short.launch(min(short, blocks(num_ids, 4)), arguments)
    kernels.singles.launch(min(singles, blocks(num_ids, 4)), arguments)
    if streams:
        streams.join()
