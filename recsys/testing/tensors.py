"""Tolerances and traps for tests of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor


@contextmanager
def nan_filled_empty() -> Iterator[None]:
    """Make ``torch.empty`` and ``torch.empty_like`` hold NaN (or the largest int) meanwhile.

    Code that takes empty memory and forgets to write part of it then fails its comparison.
    """
    empty, empty_like = torch.empty, torch.empty_like

    def filled_empty(*args: Any, **kwargs: Any) -> Tensor:
        return _poison(empty(*args, **kwargs))

    def filled_empty_like(*args: Any, **kwargs: Any) -> Tensor:
        return _poison(empty_like(*args, **kwargs))

    with (
        mock.patch.object(torch, "empty", filled_empty),
        mock.patch.object(torch, "empty_like", filled_empty_like),
    ):
        yield


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


def _poison(tensor: Tensor) -> Tensor:
    if tensor.device.type == "meta" or tensor.dtype == torch.bool:
        return tensor
    if tensor.is_floating_point():
        return tensor.detach().fill_(torch.nan).requires_grad_(tensor.requires_grad)
    return tensor.fill_(torch.iinfo(tensor.dtype).max)
