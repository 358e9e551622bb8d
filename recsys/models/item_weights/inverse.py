"""The inverse of a symmetric positive definite matrix in its own memory.

Axes: K rows, D rows of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 768


def invert_in_place(matrix: Tensor, block: int = BLOCK) -> Tensor:
    """Write the inverse over a symmetric positive definite matrix [K, K] and return it.

    Blocks of rows are swept one after the other (the sweep operator, Goodnight, 1979), so that
    nearly all of the K ** 3 operations are products of matrices, and beside the matrix only two
    of its blocks are in memory; LAPACK's factor and inverse take twice the matrix more.

    Args:
        matrix: Its lower triangle is read.

    Raises:
        ValueError: It is not positive definite, or not finite.
    """
    size = len(matrix)
    for begin in range(0, size, block):
        end = min(begin + block, size)
        factor, failed = torch.linalg.cholesky_ex(matrix[begin:end, begin:end])
        if failed or not bool(factor.diagonal().isfinite().all()):
            raise ValueError(
                "the matrix is not positive definite in this precision; add more to its diagonal"
            )
        pivot = torch.cholesky_inverse(factor)  # [D, D]
        own = torch.zeros(size, end - begin, dtype=matrix.dtype, device=matrix.device)
        own[:begin], own[end:] = matrix[begin:end, :begin].T, matrix[end:, begin:end]
        solved = own @ pivot  # [K, D]
        for first in range(0, size, block):
            last = min(first + block, size)
            matrix[first:last, :last].addmm_(solved[first:last], own[:last].T, alpha=-1)
        matrix[begin:end, :begin], matrix[end:, begin:end] = solved[:begin].T, solved[end:]
        matrix[begin:end, begin:end] = -pivot
    # Swept by all rows, it is the negative inverse, and only its lower triangle is up to date.
    for begin in range(0, size, block):
        end = min(begin + block, size)
        own = matrix[begin:end, begin:end]
        matrix[begin:end, begin:end] = own.tril() + own.tril(-1).T
        matrix[begin:end, end:] = matrix[end:, begin:end].T
    return matrix.neg_()
