"""The truth beside the kernel: each row corrected by its own adapter, in plain PyTorch.

    out[x] += B[d] (A[d] inputs[x])        d = numbers[x] - 1, nothing where numbers[x] is 0

Many adapters in one batch: Punica, arXiv:2310.18547; S-LoRA, arXiv:2311.03285.

Axes: X rows, S adapters, r rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

from torch import Tensor


def add_corrections(out: Tensor, inputs: Tensor, numbers: Tensor, a: Tensor, b: Tensor) -> None:
    """Add to out [X, O] the corrections of inputs [X, I].

    Args:
        numbers: Of each row's adapter, [X], 0 for none.
        a: [S, r, I].
        b: [S, r, O].
    """
    for number in range(1, len(a) + 1):
        own = (numbers == number).nonzero()[:, 0]
        low = inputs[own].float() @ a[number - 1].float().T  # [X', r]
        out[own] = (out[own].float() + low @ b[number - 1].float()).to(out.dtype)
