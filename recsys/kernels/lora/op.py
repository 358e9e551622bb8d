"""Correct each row of a layer's output by its own adapter, in one launch.

    out[x] += B[d] (A[d] inputs[x])        d = numbers[x] - 1, nothing where numbers[x] is 0

The only file that checks arguments and chooses between the Triton kernel and plain PyTorch. The
operation is registered with `torch.library`; code that is not compiled calls it without the
dispatcher, which takes longer than the kernel.

Axes: X rows, S adapters, r rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.launch import interpreting
from recsys.kernels.lora import reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_RANK = 64


@cache
def is_fused(device: torch.device, rank: int) -> bool:
    """Say whether a layer is corrected in one launch there; elsewhere it is right but slow."""
    if rank > MAX_RANK or find_spec("triton") is None:
        return False
    return device.type == "cuda" or interpreting()


class Corrections:
    """The stacked matrices of one layer's adapters."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        """Take matrices; they are read at each call, not copied.

        Args:
            a: [S, r, I] contiguous.
            b: [S, r, O] contiguous, the scale within.

        Raises:
            ValueError: Shapes, types or devices that do not fit.
        """
        if a.ndim != 3 or b.ndim != 3 or a.shape[:2] != b.shape[:2]:
            raise ValueError(
                f"a and b must be [S, r, I] and [S, r, O], got {tuple(a.shape)} and "
                f"{tuple(b.shape)}"
            )
        for name, one in (("a", a), ("b", b)):
            if one.dtype not in DTYPES or not one.is_contiguous() or one.numel() >= 1 << 31:
                raise ValueError(
                    f"{name} must be contiguous, of one of {[str(one) for one in DTYPES]} and have "
                    f"less than 2^31 numbers, got {one.dtype} {tuple(one.shape)} with strides "
                    f"{one.stride()}"
                )
        if a.device != b.device:
            raise ValueError(f"a is on {a.device}, b on {b.device}; move one")
        self.a, self.b = a, b
        self.widths = a.shape[2], b.shape[2]
        self.is_fused = is_fused(a.device, a.shape[1])

    def add(self, out: Tensor, inputs: Tensor, numbers: Tensor) -> None:
        """Correct a layer's outputs in place, without gradients.

        A row's correction has the same bits whatever rows stand beside it, and a row of number 0
        keeps its own. Products are of float32 unless torch.set_float32_matmul_precision allows
        TF32.

        Args:
            out: [X, ..., O] contiguous.
            inputs: [X, ..., I], what the layer read.
            numbers: Of the adapter of each row and all of its places, [X] int64 in [0, S].

        Raises:
            ValueError: Shapes, types or devices that do not fit.
        """
        width_in, width_out = self.widths
        rows, places = out.view(-1, width_out), inputs.reshape(-1, width_in)
        if len(rows) != len(places) or numbers.shape != out.shape[:1]:
            raise ValueError(
                f"out, inputs and numbers must be [X, ..., {width_out}], [X, ..., {width_in}] and "
                f"[X], got {tuple(out.shape)}, {tuple(inputs.shape)} and {tuple(numbers.shape)}"
            )
        if numbers.dtype != torch.int64 or not out.device == inputs.device == numbers.device:
            raise ValueError(
                f"numbers must be int64 and all on {out.device}, got {numbers.dtype} on "
                f"{numbers.device} and inputs on {inputs.device}"
            )
        if torch.compiler.is_compiling():
            torch.ops.recsys.add_corrections(rows, places, numbers, self.a, self.b)
        elif len(rows):
            _add(rows, places, numbers, self.a, self.b)


def _add(out: Tensor, inputs: Tensor, numbers: Tensor, a: Tensor, b: Tensor) -> None:
    if not is_fused(out.device, a.shape[1]):
        numbers = numbers.repeat_interleave(len(out) // len(numbers))
        reference.add_corrections(out, inputs, numbers, a, b)
        return
    from recsys.kernels.lora import triton_kernel

    exact = torch.get_float32_matmul_precision() == "highest"
    triton_kernel.add_corrections(
        out, inputs.contiguous(), numbers, a, b, "ieee" if exact else "tf32"
    )


@torch.library.custom_op("recsys::add_corrections", mutates_args=("out",))
def _registered(out: Tensor, inputs: Tensor, numbers: Tensor, a: Tensor, b: Tensor) -> None:
    if len(out):
        _add(out, inputs, numbers, a, b)


@_registered.register_fake
def _(out, inputs, numbers, a, b) -> None:  # type: ignore[no-untyped-def]
    return None
