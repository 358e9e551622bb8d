"""Triton kernels that correct each row by its own adapter, with or without the layer itself.

A tile of rows looks which adapters it has and multiplies by these alone, each adapter's rows with
all others as zeros: a row's result has the same bits whatever stands beside it, and the work grows
with the adapters of a tile, not with those there are.

Axes: X rows, P places of a row's number, S adapters, r rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

from functools import lru_cache

import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.embedding_bag.launch import Arguments, Kernel
from recsys.kernels.tuning import config_for, shape_class


@triton.jit
def _corrected(
    acc, inputs, numbers, a, b, row, n, num_rows, places,
    width_in: tl.constexpr, width_out: tl.constexpr, rank: tl.constexpr, block_m: tl.constexpr,
    block_k: tl.constexpr, block_r: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Add to acc [m, n] what the adapters of the rows make of their inputs."""
    number = tl.load(numbers + row // places, mask=row < num_rows, other=0).to(tl.int32)
    r = tl.arange(0, block_r)
    # A number above all stands for none.
    first = tl.min(tl.where(number > 0, number, 1 << 30), 0)
    for one in range(first, tl.max(number, 0) + 1):
        own = number == one
        if tl.max(own.to(tl.int32), 0) > 0:
            low = tl.zeros((block_m, block_r), tl.float32)
            at_a = a + (one - 1) * (rank * width_in)
            for begin in range(0, width_in, block_k):
                k = begin + tl.arange(0, block_k)
                x = tl.load(
                    inputs + row.to(tl.int64)[:, None] * width_in + k[None, :],
                    mask=own[:, None] & (k[None, :] < width_in),
                    other=0.0,
                ).to(tl.float32)
                down = tl.load(
                    at_a + r[None, :] * width_in + k[:, None],
                    mask=(r[None, :] < rank) & (k[:, None] < width_in),
                    other=0.0,
                ).to(tl.float32)
                low = tl.dot(x, down, low, input_precision=precision)
            up = tl.load(
                b + (one - 1) * (rank * width_out) + r[:, None] * width_out + n[None, :],
                mask=(r[:, None] < rank) & (n[None, :] < width_out),
                other=0.0,
            ).to(tl.float32)
            acc = tl.dot(low, up, acc, input_precision=precision)
    return acc


@triton.jit(do_not_specialize=["num_rows", "places"])
def _add_corrections(
    out, inputs, numbers, a, b, num_rows: tl.int32, places: tl.int32,
    width_in: tl.constexpr, width_out: tl.constexpr, rank: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, block_r: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Correct block_m rows of block_n columns in place."""
    tiles = tl.cdiv(width_out, block_n)
    row = tl.program_id(0) // tiles * block_m + tl.arange(0, block_m)
    n = tl.program_id(0) % tiles * block_n + tl.arange(0, block_n)
    at = out + row.to(tl.int64)[:, None] * width_out + n[None, :]
    mask = (row[:, None] < num_rows) & (n[None, :] < width_out)
    acc = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    acc = _corrected(
        acc, inputs, numbers, a, b, row, n, num_rows, places,
        width_in, width_out, rank, block_m, block_k, block_r, precision,
    )  # fmt: skip
    tl.store(at, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "places"])
def _linear(
    out, inputs, numbers, a, b, weight, bias, num_rows: tl.int32, places: tl.int32,
    width_in: tl.constexpr, width_out: tl.constexpr, rank: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, block_r: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Work out block_m rows of block_n columns of a layer and its corrections."""
    tiles = tl.cdiv(width_out, block_n)
    row = tl.program_id(0) // tiles * block_m + tl.arange(0, block_m)
    n = tl.program_id(0) % tiles * block_n + tl.arange(0, block_n)
    acc = tl.zeros((block_m, block_n), tl.float32)
    for begin in range(0, width_in, block_k):
        k = begin + tl.arange(0, block_k)
        x = tl.load(
            inputs + row.to(tl.int64)[:, None] * width_in + k[None, :],
            mask=(row[:, None] < num_rows) & (k[None, :] < width_in),
            other=0.0,
        ).to(tl.float32)
        w = tl.load(
            weight + n[None, :] * width_in + k[:, None],
            mask=(n[None, :] < width_out) & (k[:, None] < width_in),
            other=0.0,
        ).to(tl.float32)
        acc = tl.dot(x, w, acc, input_precision=precision)
    if bias is not None:
        acc += tl.load(bias + n, mask=n < width_out, other=0.0).to(tl.float32)[None, :]
    acc = _corrected(
        acc, inputs, numbers, a, b, row, n, num_rows, places,
        width_in, width_out, rank, block_m, block_k, block_r, precision,
    )  # fmt: skip
    at = out + row.to(tl.int64)[:, None] * width_out + n[None, :]
    mask = (row[:, None] < num_rows) & (n[None, :] < width_out)
    tl.store(at, acc.to(out.dtype.element_ty), mask=mask)


@lru_cache(maxsize=256)
def _kernel(
    whole: bool, width_in: int, width_out: int, rank: int, tile: tuple[int, ...], precision: str
) -> Kernel:
    block_m, block_n, block_k, num_warps = tile
    constants = {
        "width_in": width_in, "width_out": width_out, "rank": rank, "block_m": block_m,
        "block_n": block_n, "block_k": block_k, "block_r": max(16, triton.next_power_of_2(rank)),
        "precision": precision,
    }  # fmt: skip
    return Kernel(_linear if whole else _add_corrections, constants, num_warps=num_warps)


def _tile(name: str, width_in: int, width_out: int, tensor: Tensor) -> tuple[int, ...]:
    default = {"block_m": 16, "block_n": 64, "block_k": 64, "num_warps": 4}
    shapes = shape_class(inputs=width_in, outputs=width_out)
    found = config_for(f"lora.{name}", shapes, tensor.dtype, default)
    return found["block_m"], found["block_n"], found["block_k"], found["num_warps"]


def add_corrections(
    out: Tensor, inputs: Tensor, numbers: Tensor, a: Tensor, b: Tensor, precision: str = "ieee"
) -> None:
    """Correct ``out`` in place; see `reference.add_corrections`."""
    rank, width_in = a.shape[1:]
    num_rows, width_out = out.shape
    tile = _tile("add_corrections", width_in, width_out, inputs)
    kernel = _kernel(False, width_in, width_out, rank, tile, precision)
    grid = -(-num_rows // tile[0]) * -(-width_out // tile[1])
    places = num_rows // len(numbers)
    kernel.launch(grid, Arguments((out, inputs, numbers, a, b), (num_rows, places)))


def linear(
    out: Tensor, inputs: Tensor, numbers: Tensor, a: Tensor, b: Tensor, weight: Tensor,
    bias: Tensor | None, precision: str = "ieee",
) -> None:  # fmt: skip
    """Fill ``out`` with a layer's outputs and their corrections."""
    rank, width_in = a.shape[1:]
    num_rows, width_out = out.shape
    tile = _tile("linear", width_in, width_out, inputs)
    kernel = _kernel(True, width_in, width_out, rank, tile, precision)
    grid = -(-num_rows // tile[0]) * -(-width_out // tile[1])
    places = num_rows // len(numbers)
    tensors = (out, inputs, numbers, a, b, weight, bias)
    kernel.launch(grid, Arguments(tensors, (num_rows, places)))
