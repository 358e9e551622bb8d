"""Launch the update of each width of tables, of the work that `grouping` listed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.grouping import CHUNK, Runs, blocks
from recsys.kernels.embedding_bag.launch import launch, num_multiprocessors
from recsys.kernels.embedding_bag.layout import WidthClass
from recsys.kernels.embedding_bag.optimizer import (
    Optimizer,
    OptimizerConfig,
    Tables,
    bias_corrections,
)


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
    from recsys.kernels.embedding_bag.triton_backward import (
        _update_items,
        _update_long,
        _update_singles,
    )

    grad, feature_data, num_features = gradient
    num_ids = runs.keys.shape[0]
    num_chunks = blocks(num_ids, CHUNK)
    cut = num_chunks > 2
    partials = torch.empty(2 * num_chunks * one.dim if cut else 1, device=grad.device)
    block_d = 1 << (one.dim - 1).bit_length()
    multiprocessors = num_multiprocessors(grad.device)
    betas = {"beta1": config.beta1, "beta2": config.beta2}
    shape = {"dim": one.dim, "block_d": block_d}
    rule = {"rule": int(config.rule), "stochastic": stochastic}
    own = (one.first_key, one.end_key, one.start, config.seed, config.epsilon, config.max_row_norm)
    numbers = (num_ids, runs.stride, num_features, grad.stride(0), *own)
    wide = min(16, max(1, block_d // 128))
    launch(
        _update_items,
        min(multiprocessors * max(1, ITEMS.programs // wide), blocks(num_ids, 2)),
        (runs.keys, runs.scales, runs.work, runs.counts, grad, feature_data, partials, *rows),
        numbers,
        {**betas, **shape, "block_l": ITEMS.rows(block_d, wide), "chunk": CHUNK, **places, **rule},
        num_warps=ITEMS.warps * wide,
        max_registers=ITEMS.registers,
    )
    launch(
        _update_singles,
        min(multiprocessors * SINGLES.programs, blocks(num_ids, 4)),
        (runs.keys, runs.scales, runs.work, runs.counts, grad, feature_data, *rows),
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
        (runs.keys, runs.work, runs.counts, partials, *rows),
        (num_ids, runs.stride, *own),
        {
            **betas, **shape, "block_c": LONG.rows(block_d), "block_few": 8, "chunk": CHUNK, **rule,
        },
        num_warps=LONG.warps,
        max_registers=LONG.registers,
    )  # fmt: skip
