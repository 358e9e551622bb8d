"""Launch the update of each width of tables, of the work that `grouping` listed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.grouping import CHUNK, Runs, blocks
from recsys.kernels.embedding_bag.launch import launch, num_multiprocessors, part_streams
from recsys.kernels.embedding_bag.layout import WidthClass
from recsys.kernels.embedding_bag.optimizer import (
    Optimizer,
    OptimizerConfig,
    Tables,
    bias_corrections,
)
from recsys.kernels.tuning import Config, config_for, shape_class

# How a kernel is cut unless it was tuned: ``elements`` of a tile are one warp's, ``programs`` a
# multiprocessor's, ``registers`` the most of a thread. Another tile adds gradients in another
# order: the bits of an update depend on its inputs and on these numbers.
SINGLES = {"elements": 512, "num_warps": 4, "programs": 6, "registers": 80}
SHORT = {"elements": 256, "num_warps": 1, "programs": 24, "registers": 80}
ITEMS = {"elements": 1024, "num_warps": 1, "programs": 20, "registers": 96}
LONG = {"elements": 2048, "num_warps": 2, "programs": 8, "registers": 128}
MIN_NUMBERS_BESIDE = 1 << 26
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


@lru_cache(maxsize=1024)
def _class(dim: int, rule: Optimizer) -> str:
    return f"{shape_class(dim=dim)}-{rule.name.lower()}"


def _tiles(shapes: str, dtype: torch.dtype) -> tuple[Config, ...]:
    """Ask for the tiles of items, singles, short and long runs."""
    return (
        config_for("embedding_bag.items", shapes, dtype, ITEMS),
        config_for("embedding_bag.singles", shapes, dtype, SINGLES),
        config_for("embedding_bag.short", shapes, dtype, SHORT),
        config_for("embedding_bag.long", shapes, dtype, LONG),
    )


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
    places = {"uniform": layout.uniform or unpooled, "aligned": layout.aligned}
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
    from recsys.kernels.embedding_bag.triton_backward import _update_items

    grad, feature_data, num_features = gradient
    num_ids = runs.keys.shape[0]
    num_chunks = blocks(num_ids, CHUNK)
    cut = num_chunks > 2
    partials = torch.empty(2 * num_chunks * one.dim if cut else 1, device=grad.device)
    block_d = 1 << (one.dim - 1).bit_length()
    before = {
        "beta1": config.beta1, "beta2": config.beta2, "dim": one.dim, "block_d": block_d,
    }  # fmt: skip
    behind = {**places, "rule": int(config.rule), "stochastic": stochastic}
    own = (one.first_key, one.end_key, one.start, config.seed, config.epsilon, config.max_row_norm)
    numbers = (num_ids, runs.stride, num_features, grad.stride(0), *own)
    wide = min(16, max(1, block_d // 128))
    dtype = rows[0].dtype  # type: ignore[union-attr]
    items, singles, short, long = _tiles(_class(one.dim, config.rule), dtype)
    lists = (runs.keys, runs.scales, runs.work, runs.counts, grad, feature_data)
    beside = part_streams(grad.device) if num_ids * one.dim >= MIN_NUMBERS_BESIDE else None
    try:
        if beside:
            beside.switch()
        programs = num_multiprocessors(grad.device) * max(1, items["programs"] // wide)
        launch(
            _update_items,
            min(programs, blocks(num_ids, 2)),
            (*lists, partials, *rows),
            numbers,
            {
                **before, "block_l": tile_rows(items, block_d, wide), "chunk": CHUNK, **behind,
                "shared": items["num_warps"] > 1,
            },
            num_warps=min(32, items["num_warps"] * wide),
            max_registers=items["registers"],
        )  # fmt: skip
        if cut:
            few = (before, {"rule": behind["rule"], "stochastic": stochastic})
            _update_long_runs(runs, (partials, *rows), (num_ids, runs.stride, *own), few, long)
    finally:
        if beside:
            beside.resume()
    _update_tiles((*lists, *rows), numbers, (before, behind), (short, singles), wide)
    if beside:
        beside.join()


def _update_tiles(
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[int | float | None, ...],
    constants: tuple[dict[str, Any], dict[str, Any]],
    tiles: tuple[Config, Config],
    wide: int,
) -> None:
    """Update short runs and singles; constants: before and behind the tile's."""
    from recsys.kernels.embedding_bag.triton_rows import _update_short, _update_singles

    before, behind = constants
    keys = cast("Tensor", tensors[0])
    block_d, most = before["block_d"], blocks(keys.shape[0], 4)
    for kernel, tile, width in ((_update_short, tiles[0], wide), (_update_singles, tiles[1], 1)):
        warps = min(32, tile["num_warps"] * width)
        block_r = unequal_rows(tile, block_d, warps)
        programs = num_multiprocessors(keys.device) * max(1, tile["programs"] // width)
        launch(
            kernel,
            min(programs, most),
            tensors,
            numbers,
            {**before, "block_r": block_r, **behind, "shared": block_r * block_d < 32 * warps},
            num_warps=warps,
            max_registers=tile["registers"],
        )


def _update_long_runs(
    runs: Runs,
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[int | float | None, ...],
    constants: tuple[dict[str, Any], dict[str, Any]],
    tile: Config,
) -> None:
    """Add up the sums of long runs and apply them; constants: before and behind the tile's."""
    from recsys.kernels.embedding_bag.triton_backward import _update_long

    before, behind = constants
    multiprocessors = num_multiprocessors(runs.keys.device)
    num_chunks = blocks(runs.keys.shape[0], CHUNK)
    block_c = tile_rows(tile, before["block_d"])
    launch(
        _update_long,
        max(1, min(multiprocessors * tile["programs"], num_chunks // 2)),
        (runs.keys, runs.work, runs.counts, *tensors),
        numbers,
        {
            **before, "block_c": block_c, "block_few": 8, "chunk": CHUNK, **behind,
            "shared": tile["num_warps"] > 1,
        },
        num_warps=tile["num_warps"],
        max_registers=tile["registers"],
    )  # fmt: skip
