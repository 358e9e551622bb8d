"""The gated delta rule: known answers, chunks and kernels against events one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recsys.kernels.choice import without
from recsys.kernels.gated_delta.chunked import chunked
from recsys.kernels.gated_delta.op import gated_delta
from recsys.kernels.gated_delta.reference import DeltaInputs, one_step, recurrent

TOLERANCE = 2e-5
"""Largest error by the largest true value, in float32."""


def drawn(num: int, heads: int, dim: int, width: int, *, repeats: bool = False) -> DeltaInputs:
    keys = torch.randn(3 if repeats else num, heads, dim)
    key = functional.normalize(keys[torch.randint(len(keys), (num,))] if repeats else keys, dim=2)
    return DeltaInputs(
        functional.normalize(torch.randn(num, heads, dim), dim=2),
        key,
        torch.randn(num, heads, width),
        -torch.rand(num, heads) * 0.3,
        torch.rand(num, heads) if not repeats else 0.9 + 0.1 * torch.rand(num, heads),
    )


def in_float64(inputs: DeltaInputs, offsets: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    exact = DeltaInputs(*(part.double() for part in inputs))
    return recurrent(exact, offsets, None if state is None else state.double())


def assert_close(found: Tensor, true: Tensor) -> None:
    assert found.shape == true.shape
    error = (found.double() - true).abs().max() / true.abs().max()
    assert error <= TOLERANCE, f"off by {error:.2e}"


def test_a_value_is_read_under_its_key_and_replaced_by_the_next() -> None:
    first, second = torch.eye(4)[0].view(1, 1, 4), torch.eye(4)[1].view(1, 1, 4)
    state, gate = torch.zeros(1, 1, 4, 2), torch.ones(1, 1)
    for key, value in ((first, [1.0, 2.0]), (second, [5.0, 6.0]), (first, [3.0, -1.0])):
        event = DeltaInputs(key, key, torch.tensor(value).view(1, 1, 2), 0 * gate, gate)
        _, state = one_step(event, state)
    # Reading changes nothing where beta is 0; a decay of log 2 halves what is there.
    query = DeltaInputs(first, first, torch.zeros(1, 1, 2), -math.log(2) * gate, 0 * gate)
    read, _ = one_step(query, state)
    assert torch.allclose(read.flatten(), torch.tensor([3.0, -1.0]) / 2 / math.sqrt(4))


@pytest.mark.parametrize("repeats", [False, True])
def test_chunks_agree_with_single_events(repeats: bool) -> None:
    torch.manual_seed(0)
    offsets = torch.tensor([0, 0, 200, 265, 266])
    inputs = drawn(266, 2, 16, 24, repeats=repeats)
    state = torch.randn(4, 2, 16, 24)
    true = in_float64(inputs, offsets, state)
    with without("gated_delta"):
        found = gated_delta(inputs, offsets, 200, state)
    for one, other in zip(found, true, strict=True):
        assert_close(one, other)


def test_gradients_of_chunks_are_those_of_single_events() -> None:
    torch.manual_seed(0)
    gradients = []
    inputs = drawn(70, 2, 8, 8)
    for form in ("events", "chunks"):
        parts = DeltaInputs(*(part.double().requires_grad_() for part in inputs))
        if form == "events":
            read, state = recurrent(parts, torch.tensor([0, 70]))
        else:
            read, state = chunked(DeltaInputs(*(part[None] for part in parts)), chunk=16)
        (read.square().sum() + state.square().sum()).backward()
        gradients.append([part.grad for part in parts])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert torch.allclose(one, other, atol=1e-10)


@pytest.mark.interpreted(only=True)
@pytest.mark.parametrize(("dim", "width", "repeats"), [(16, 16, True), (24, 40, False)])
def test_kernels_agree_with_single_events(dim: int, width: int, repeats: bool) -> None:
    torch.manual_seed(0)
    offsets = torch.tensor([0, 0, 70, 198, 199])
    inputs = drawn(199, 2, dim, width, repeats=repeats)
    for state in (None, torch.randn(4, 2, dim, width)):
        true = in_float64(inputs, offsets, state)
        found = gated_delta(inputs, offsets, 128, state)
        for one, other in zip(found, true, strict=True):
            assert_close(one, other)


def test_shapes_that_do_not_fit_are_refused() -> None:
    inputs = drawn(5, 2, 8, 8)
    with pytest.raises(ValueError, match=r"the state must be \[B, H, D, V\] = \(1, 2, 8, 8\)"):
        gated_delta(inputs, torch.tensor([0, 5]), 5, torch.zeros(2, 2, 8, 8))
    with pytest.raises(ValueError, match=r"decay and beta must be \[M, H\] = \(5, 2\)"):
        gated_delta(inputs._replace(beta=torch.ones(5, 1)), torch.tensor([0, 5]), 5)
