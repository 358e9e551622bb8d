"""Triton kernel of a layer whose rows are corrected by their own adapters.

All adapters' ways down to the rank lie side by side. A tile of rows is multiplied by some columns
of them at a time, keeps of each row its own adapter's, all others as zeros, and goes up again: a
row's result has the same bits whatever stands beside it. Columns that no row of a tile needs are
passed over, but for the first ones, which are worked out along with the layer's own product.

Axes: X rows, P places of a row's number, S adapters, r rank, I and O a layer's inputs and outputs,
C = S r columns.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.embedding_bag.launch import Arguments, Kernel
from recsys.kernels.tuning import config_for, shape_class

DEFAULTS = {
    "add": {"block_m": 16, "block_n": 64, "block_k": 64, "num_warps": 4},
    "linear": {"block_m": 32, "block_n": 64, "block_k": 32, "num_warps": 4},
}
"""Best on an H200 over 60, 960 and 7,680 rows of layers 128 x 384 and 256 x 128."""
MAX_COLUMNS = 64
"""Of all adapters' ranks at a time."""


@triton.jit
def _tile(base, row, column, mask, width: tl.constexpr):
    """Load rows of a matrix of this width as float32, [rows, columns]; zeros where masked."""
    return tl.load(base + row * width + column, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows", "places"])
def _corrected(
    out, inputs, numbers, a, b, weight, bias, num_rows: tl.int32, places: tl.int32,
    width_in: tl.constexpr, width_out: tl.constexpr, rank: tl.constexpr, columns: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, block_c: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Correct block_m rows of block_n outputs in place; where there is a weight, fill them."""
    tiles: tl.constexpr = (width_out + block_n - 1) // block_n
    row = tl.program_id(0) // tiles * block_m + tl.arange(0, block_m)
    n = tl.program_id(0) % tiles * block_n + tl.arange(0, block_n)
    inside = row < num_rows
    wide = n < width_out
    number = tl.load(numbers + row // places, mask=inside, other=0).to(tl.int32)
    row = row.to(tl.int64)
    at = out + row[:, None] * width_out + n[None, :]
    if weight is None:
        acc = tl.load(at, mask=inside[:, None] & wide[None, :], other=0.0).to(tl.float32)
    else:
        acc = tl.zeros((block_m, block_n), tl.float32)
    c = tl.arange(0, block_c)
    low = tl.zeros((block_m, block_c), tl.float32)
    for begin in range(0, width_in, block_k):
        k = begin + tl.arange(0, block_k)
        deep = k < width_in
        x = _tile(inputs, row[:, None], k[None, :], inside[:, None] & deep[None, :], width_in)
        down = _tile(a, c[None, :], k[:, None], (c < columns)[None, :] & deep[:, None], width_in)
        low = tl.dot(x, down, low, input_precision=precision)
        if weight is not None:
            w = _tile(weight, n[None, :], k[:, None], wide[None, :] & deep[:, None], width_in)
            acc = tl.dot(x, w, acc, input_precision=precision)
    if bias is not None:
        acc += tl.load(bias + n, mask=wide, other=0.0).to(tl.float32)[None, :]
    own = (c // rank + 1)[None, :] == number[:, None]
    up = _tile(b, c[:, None], n[None, :], (c < columns)[:, None] & wide[None, :], width_out)
    acc = tl.dot(tl.where(own, low, 0.0), up, acc, input_precision=precision)
    for first in range(block_c, columns, block_c):
        c = first + tl.arange(0, block_c)
        own = (c // rank + 1)[None, :] == number[:, None]
        if tl.max(tl.max(own.to(tl.int32), 1), 0) > 0:
            low = tl.zeros((block_m, block_c), tl.float32)
            for begin in range(0, width_in, block_k):
                k = begin + tl.arange(0, block_k)
                deep = k < width_in
                x = _tile(
                    inputs, row[:, None], k[None, :], inside[:, None] & deep[None, :], width_in
                )
                down = _tile(
                    a, c[None, :], k[:, None], (c < columns)[None, :] & deep[:, None], width_in
                )
                low = tl.dot(x, down, low, input_precision=precision)
            up = _tile(b, c[:, None], n[None, :], (c < columns)[:, None] & wide[None, :], width_out)
            acc = tl.dot(tl.where(own, low, 0.0), up, acc, input_precision=precision)
    tl.store(at, acc.to(out.dtype.element_ty), mask=inside[:, None] & wide[None, :])


@lru_cache(maxsize=256)
def _kernel(
    widths: tuple[int, int], rank: int, columns: int, tile: tuple[int, ...], precision: str
) -> Kernel:
    block_m, block_n, block_k, num_warps = tile
    block_c = max(16, min(MAX_COLUMNS, triton.next_power_of_2(columns)))
    constants = {
        "width_in": widths[0], "width_out": widths[1], "rank": rank, "columns": columns,
        "block_m": block_m, "block_n": block_n, "block_k": block_k, "block_c": block_c,
        "precision": precision,
    }  # fmt: skip
    return Kernel(_corrected, constants, num_warps=num_warps)


class Launch:
    """The kernel of one layer's adapters, its tiles looked up once.

    Args:
        a: [S, r, I] contiguous.
        b: [S, r, O] contiguous.
        whole: Whether it also works out the layer's own product.
    """

    def __init__(self, a: Tensor, b: Tensor, *, whole: bool) -> None:
        self._a, self._b = a, b
        num_adapters, rank, width_in = a.shape
        widths = width_in, b.shape[2]
        shapes = shape_class(inputs=widths[0], outputs=widths[1])
        name = "linear" if whole else "add"
        found = config_for(f"lora.{name}", shapes, a.dtype, DEFAULTS[name], a.device)
        tile = found["block_m"], found["block_n"], found["block_k"], found["num_warps"]
        self._width_out, self._block_m = widths[1], tile[0]
        self._tiles = triton.cdiv(widths[1], tile[1])
        # Three products of TF32, of numbers and of what TF32 leaves of them, are as near to float64
        # as float32's own and take a third to a fifth of the time.
        self._fine, self._coarse = (
            _kernel(widths, rank, num_adapters * rank, tile, precision)
            for precision in ("tf32x3", "tf32")
        )

    def __call__(
        self,
        out: Tensor,
        inputs: Tensor,
        numbers: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Correct ``out`` [X, ..., O] in place; with a weight, fill it."""
        num_rows = out.numel() // self._width_out
        if not num_rows:
            return
        exact = torch.get_float32_matmul_precision() == "highest"
        tensors = (out, inputs.contiguous(), numbers, self._a, self._b, weight, bias)
        arguments = Arguments(tensors, (num_rows, num_rows // len(numbers)))
        kernel = self._fine if exact else self._coarse
        kernel.launch(-(-num_rows // self._block_m) * self._tiles, arguments)
