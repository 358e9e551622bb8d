"""Traps for tensors: memory that nobody wrote shows up as NaN instead of as luck."""

from __future__ import annotations

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


def _poison(tensor: Tensor) -> Tensor:
    if tensor.device.type == "meta" or tensor.dtype == torch.bool:
        return tensor
    if tensor.is_floating_point():
        return tensor.detach().fill_(torch.nan).requires_grad_(tensor.requires_grad)
    return tensor.fill_(torch.iinfo(tensor.dtype).max)
