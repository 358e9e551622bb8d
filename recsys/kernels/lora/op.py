"""A layer's outputs, each row corrected by its own adapter, in one launch.

    out[x] += B[d] (A[d] inputs[x])        d = numbers[x] - 1, nothing where numbers[x] is 0

The only file that checks arguments and chooses between the Triton kernel and plain PyTorch. The
operation is registered with `torch.library`; code that is not compiled calls it without the
dispatcher, which takes longer than the kernel.

Axes: X rows, S adapters, r rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from recsys.kernels.choice import has_triton, interpreting, is_on
from recsys.kernels.lora import reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_RANK = 64


def is_fused(device: torch.device, rank: int) -> bool:
    """Say whether a layer is corrected in one launch there; elsewhere it is right but slow."""
    if rank > MAX_RANK or not (is_on("lora") and has_triton()):
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
        # Nothing here makes a tensor: eight layers' checks took as long as their launches.
        if (
            out.shape[:-1] != inputs.shape[:-1]
            or (inputs.shape[-1], out.shape[-1]) != self.widths
            or not out.is_contiguous()
        ):
            raise ValueError(
                f"out must be [X, ..., {width_out}] contiguous and inputs [X, ..., {width_in}], "
                f"got {tuple(out.shape)} with strides {out.stride()} and {tuple(inputs.shape)}"
            )
        self._check_numbers(inputs, numbers)
        if torch.compiler.is_compiling():
            torch.ops.recsys.add_corrections(out, inputs, numbers, self.a, self.b)
        elif self.is_fused:
            self._launch_add(out, inputs, numbers)
        else:
            _add(out, inputs, numbers, self.a, self.b)

    def linear(
        self, inputs: Tensor, numbers: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Work out a layer and its corrections, [X, ..., I] -> [X, ..., O], without gradients.

        In one launch where ``is_fused``. A row's result has the same bits whatever rows, and how
        many, stand beside it; they are not those of torch's own product, which rounds otherwise.

        Args:
            numbers: As of ``add``.
            weight: [O, I] contiguous.
            bias: [O].
        """
        if not self.is_fused or torch.compiler.is_compiling():
            out = functional.linear(inputs, weight, bias)
            self.add(out, inputs, numbers)
            return out
        width_in, width_out = self.widths
        if weight.shape != (width_out, width_in) or inputs.shape[-1] != width_in:
            raise ValueError(
                f"the adapters correct a layer of weight [{width_out}, {width_in}], got weight "
                f"{tuple(weight.shape)} and inputs {tuple(inputs.shape)}"
            )
        self._check_numbers(inputs, numbers)
        out = inputs.new_empty((*inputs.shape[:-1], width_out))
        self._launch_linear(out, inputs, numbers, weight, bias)
        return out

    @cached_property
    def _launch_add(self) -> Callable[..., None]:
        return self._launch(whole=False)

    @cached_property
    def _launch_linear(self) -> Callable[..., None]:
        return self._launch(whole=True)

    def _launch(self, *, whole: bool) -> Callable[..., None]:
        from recsys.kernels.lora.triton_kernel import Launch

        return Launch(self.a, self.b, whole=whole)

    def _check_numbers(self, inputs: Tensor, numbers: Tensor) -> None:
        if (
            numbers.dtype != torch.int64
            or len(numbers) != len(inputs)
            or not inputs.device == numbers.device == self.a.device
        ):
            raise ValueError(
                f"numbers must be int64, one for each of {len(inputs)} rows, and all on "
                f"{self.a.device}, got {numbers.dtype} {tuple(numbers.shape)} on "
                f"{numbers.device} and inputs on {inputs.device}"
            )


def _add(out: Tensor, inputs: Tensor, numbers: Tensor, a: Tensor, b: Tensor) -> None:
    if is_fused(out.device, a.shape[1]):
        Corrections(a, b).add(out, inputs, numbers)
    elif len(numbers):
        numbers = numbers.repeat_interleave(out.numel() // out.shape[-1] // len(numbers))
        reference.add_corrections(out.flatten(0, -2), inputs.flatten(0, -2), numbers, a, b)


@torch.library.custom_op("recsys::add_corrections", mutates_args=("out",))
def _registered(out: Tensor, inputs: Tensor, numbers: Tensor, a: Tensor, b: Tensor) -> None:
    _add(out, inputs, numbers, a, b)


@_registered.register_fake
def _(out, inputs, numbers, a, b) -> None:  # type: ignore[no-untyped-def]
    return None
