"""Embedding bags over many tables, with the optimizer inside the backward.

Axes: T tables, F features, B batch, M ids, D width, R rows of all tables.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from recsys.kernels.choice import Config, config_for, shape_class
from recsys.kernels.embedding_bag.grouping import CHUNK, Runs, blocks, group, group_during_lookup
from recsys.kernels.embedding_bag.launch import Arguments, Kernel, num_multiprocessors, part_streams
from recsys.kernels.embedding_bag.layout import (
    Optimizer,
    OptimizerConfig,
    OptimizerState,
    TableArrays,
    TableLayout,
    WidthClass,
    bias_corrections,
    is_adam,
    new_state,
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
    from recsys.kernels.embedding_bag.triton_backward import (
        _update_items,
        _update_long,
        _update_rows,
    )

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


def update_rows(
    tables: TableArrays, runs: Runs, grad: Tensor, scalars: tuple[Tensor | None, Tensor | None]
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


class Batch(NamedTuple):
    """Arguments of a lookup: ids [M], offsets [F * B + 1], sample weights [M] or None."""

    ids: Tensor
    offsets: Tensor
    sample_weights: Tensor | None


def empty_output(layout: TableLayout, batch: Batch, like: Tensor) -> Tensor:
    """Make the unwritten result of a lookup, [B, sum of D_f]."""
    size = (batch.offsets.shape[0] - 1) // len(layout.feature_tables)
    return like.new_empty(size, layout.columns[-1], dtype=torch.float32)


def lookup_bytes(layout: TableLayout, weights: Tensor, batch: Batch) -> int:
    """Estimate the bytes of rows read and results written, as if every feature had as many ids."""
    num_features, columns = len(layout.feature_tables), layout.columns[-1]
    num_ids, num_bags = batch.ids.shape[0], batch.offsets.shape[0] - 1
    return columns * (num_ids * weights.element_size() + 4 * num_bags) // num_features


def lookup(layout: TableLayout, weights: Tensor, feature_data: Tensor, batch: Batch) -> Tensor:
    """Look up and pool."""
    from recsys.kernels.embedding_bag.triton_kernel import forward

    out = empty_output(layout, batch, weights)
    return forward(layout, weights, feature_data, *batch, out)


def update(
    tables: TableArrays,
    batch: Batch,
    grad: Tensor,
    scalars: tuple[Tensor | None, Tensor | None],
    runs: Runs | None = None,
) -> None:
    """Move the rows that occur, in place; scalars: grad_scale, skip; ``runs``: of this batch."""
    if is_adam(tables.config):
        skip, state = scalars[1], tables.state
        state.step.add_(1 if skip is None else (skip == 0).to(state.step.dtype))
    if not len(batch.ids):
        return
    if runs is None:
        runs = group(tables.layout, tables.feature_data, batch)
    update_rows(tables, runs, grad, scalars)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_IDS = 2**31 - 2**14
"""So that places in a batch, and a little beyond it, fit 32 bits."""


def check_batch(
    layout: TableLayout, ids: Tensor, offsets: Tensor, sample_weights: Tensor | None
) -> None:
    """Refuse shapes and types that do not fit, without looking at a value."""
    num_features = len(layout.feature_tables)
    for name, tensor in (("ids", ids), ("offsets", offsets)):
        if tensor.ndim != 1 or tensor.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"{name} must be [n] int32 or int64, got {tuple(tensor.shape)} {tensor.dtype}"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has stride {tensor.stride()}; call contiguous()")
        if tensor.shape[0] > MAX_IDS:
            raise ValueError(
                f"{name} has {len(tensor)} entries; at most {MAX_IDS} are possible, split the batch"
            )
    if offsets.shape[0] < 1 or (offsets.shape[0] - 1) % num_features:
        raise ValueError(
            f"offsets must have F * B + 1 entries with F = {num_features}, got {len(offsets)}"
        )
    if sample_weights is not None:
        if sample_weights.requires_grad:
            raise ValueError(
                "sample_weights get no gradient beside row updates; train dense tables"
            )
        fits = sample_weights.shape == ids.shape and sample_weights.is_contiguous()
        if not fits or sample_weights.dtype != torch.float32:
            raise ValueError(
                f"sample_weights must be contiguous float32 {tuple(ids.shape)} like the ids, got "
                f"{sample_weights.dtype} {tuple(sample_weights.shape)}"
            )


class _Lookup(torch.autograd.Function):
    """A lookup whose backward moves the rows; ``anchor`` only makes autograd call it."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        bags: FusedEmbeddingBags,
        batch: Batch,
        scalars: tuple[Tensor | None, Tensor | None],
    ) -> Tensor:
        layout, data = bags.layout, bags.feature_data
        # Not saved as autograd saves: an update between forward and backward is no mistake here.
        ctx.batch, ctx.scalars, ctx.runs = batch, scalars, None
        ctx.tables = tables = bags.tables()

        def pooled() -> Tensor:
            return lookup(layout, tables.weights, data, batch)

        if not batch.ids.shape[0]:
            return pooled()
        num_bytes = lookup_bytes(layout, tables.weights, batch)
        out, ctx.runs = group_during_lookup(layout, data, batch, pooled, num_bytes)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        update(ctx.tables, ctx.batch, grads[0].contiguous(), ctx.scalars, ctx.runs)
        return None, None, None, None


class FusedEmbeddingBags(nn.Module):
    """Many embedding tables whose rows are updated by the backward itself.

    Autograd sees no gradient of the tables: `backward` moves the rows that occurred.  Results are
    float32 for tables of any type, and bitwise the same in every run.
    """

    weights: Tensor
    first: Tensor
    second: Tensor
    step: Tensor
    learning_rate: Tensor
    feature_data: Tensor
    anchor: Tensor

    def __init__(
        self,
        layout: TableLayout,
        config: OptimizerConfig,
        *,
        learning_rate: float = 0.01,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        weights: Tensor | None = None,
    ) -> None:
        """Make tables of zeros, or take over the elements of ``weights``, [num_elements]."""
        super().__init__()
        if dtype not in DTYPES:
            raise ValueError(f"tables must be one of {[str(one) for one in DTYPES]}, got {dtype}")
        self.layout = layout
        self.config = config
        state = new_state(layout, config, learning_rate, device)
        if weights is None:
            weights = torch.zeros(layout.num_elements, dtype=dtype, device=device)
        for name, tensor in zip(("weights", *state._fields), (weights, *state), strict=True):
            self.register_buffer(name, tensor)
        self.register_buffer("feature_data", layout.feature_data(device), persistent=False)
        # What autograd differentiates, so that it calls the backward; it never gets a gradient.
        anchor = torch.zeros(1, device=device, requires_grad=True)
        self.register_buffer("anchor", anchor, persistent=False)

    def table(self, table: int) -> Tensor:
        """View one table, [rows, D]."""
        return self.layout.table(self.weights, table)

    def tables(self) -> TableArrays:
        """Return what the update reads and writes."""
        # Not by attribute, which takes a module 0.7 us for each.
        own = self._buffers
        state = OptimizerState(*(cast("Tensor", own[name]) for name in OptimizerState._fields))
        weights, data = cast("Tensor", own["weights"]), cast("Tensor", own["feature_data"])
        return TableArrays(self.layout, self.config, weights, state, data)

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None = None,
        *,
        grad_scale: Tensor | None = None,
        skip: Tensor | None = None,
    ) -> Tensor:
        """Sum the rows of every feature's bags, [B, sum of D_f].

        Args:
            ids: [M] int32 or int64, feature by feature. An id out of range gives zeros and
                moves nothing.
            offsets: [F * B + 1], where each bag begins; the last is M.
            sample_weights: [M] float32, multiplies each id's row.
            grad_scale: [1] float32 on the device, multiplies the gradient in the update.
            skip: [1] on the device, not zero where the update must change nothing. It is read
                when the backward runs.
        """
        check_batch(self.layout, ids, offsets, sample_weights)
        batch = Batch(ids, offsets, sample_weights)
        if not torch.is_grad_enabled():
            return lookup(self.layout, self.weights, self.feature_data, batch)
        scalars = (grad_scale, skip)
        return _Lookup.apply(  # type: ignore[no-any-return,no-untyped-call]
            self.anchor, self, batch, scalars
        )
