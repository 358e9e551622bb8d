"""Tolerances for tests of tensors."""

from __future__ import annotations

import math

import torch


def rounding(num_terms: int, *, size: float = 1.0, dtype: torch.dtype = torch.float32) -> float:
    """Bound how far apart two orders of the same arithmetic may come out.

    An addition rounds by up to half an eps of its result. Errors of n additions add up like a
    random walk, to sqrt(n) times that; 8 eps instead of a half leaves room for both orders, for
    products and functions between the additions, and for the largest of many values.

    Args:
        num_terms: Additions on the way to a value, such as the widths of its layers together.
        size: Largest absolute number on that way.
        dtype: In which it is computed.
    """
    return 8 * torch.finfo(dtype).eps * math.sqrt(num_terms) * size
