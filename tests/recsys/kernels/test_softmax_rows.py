"""Softmaxes of long rows: known answers, and the kernel against torch in float64."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from recsys.data.windows import SampledItems, mixed_candidates
from recsys.kernels.choice import without
from recsys.kernels.softmax_rows.op import softmax_rows
from recsys.layers.chunked_softmax import SoftmaxCandidates, sampled_softmax_loss, softmax_loss
from tests.recsys.kernels.devices import DEVICE, ON_A_GPU, RUNS_KERNELS
from tests.recsys.testing.refusals import assert_refused

ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Relative distance of neighbours, of what is stored: Triton's interpreter cuts bfloat16 off."""
CASES = [(1, 1, 1), (5, 40, 40), (3, 70, 72), (4, 1_000, 1_000), (2, 9_001, 9_008)]
"""Rows, columns, and columns with those that count for nothing."""


def drawn(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Draw scores with nothing at all in many places, logs of inclusion, and finite labels."""
    rows, columns, room = shape
    generator = torch.Generator().manual_seed(columns)
    scores = 20 * torch.randn(rows, room, generator=generator)
    labels = torch.randint(columns, (rows,), generator=generator)
    scores[torch.rand(rows, room, generator=generator) < 0.3] = -torch.inf
    scores.scatter_(1, labels[:, None], 3.0)
    logs = torch.log(torch.rand(columns, generator=generator).clamp(min=1e-4))
    return scores.to(dtype), logs, labels


def check(shape: tuple[int, int, int], dtype: torch.dtype, corrected: bool, device: str) -> None:
    scores, logs, labels = drawn(shape, dtype)
    exact = scores[:, : shape[1]].double()
    if corrected:
        own = torch.zeros_like(exact, dtype=torch.bool).scatter(1, labels[:, None], True)
        exact = torch.where(own, exact, exact - logs.double())
    found = softmax_rows(
        scores.to(device), logs.to(device) if corrected else None, labels.to(device), shape[1]
    )
    found = found._replace(weights=found.weights.cpu())
    # A score of up to 80 with its correction, rounded once in float32, moves its exponential so.
    bound = 128 * ROUNDING[torch.float32]
    highest = exact.amax(1, keepdim=True)
    torch.testing.assert_close(found.highest.cpu().double(), highest, rtol=bound, atol=bound)
    weights = torch.exp(exact - highest)
    stored = bound + ROUNDING[dtype]
    torch.testing.assert_close(
        found.weights[:, : shape[1]].double(), weights, rtol=stored, atol=1e-7
    )
    assert (found.weights[:, shape[1] :] == 0).all()
    sums = weights.sum(1, keepdim=True)
    torch.testing.assert_close(found.sums.cpu().double(), sums, rtol=bound, atol=0)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("corrected", [True, False])
def test_torch_agrees(dtype: torch.dtype, corrected: bool) -> None:
    for shape in CASES:
        check(shape, dtype, corrected, "cpu")


@RUNS_KERNELS
@pytest.mark.parametrize("corrected", [True, False])
def test_the_kernel_agrees(corrected: bool) -> None:
    for place, shape in enumerate(CASES + [(64, 100_000, 100_000)] * ON_A_GPU):
        one = [list(ROUNDING)[(place + corrected) % 3]]
        for dtype in ROUNDING if ON_A_GPU else one:
            check(shape, dtype, corrected, DEVICE)


def gradients(max_scores: int, dtype: torch.dtype) -> list[Tensor]:
    """Loss and gradients of 9 positions over 21 drawn candidates, some left out."""
    torch.manual_seed(0)
    queries = torch.randn(9, 6, dtype=dtype, requires_grad=True)
    vectors = torch.randn(21, 6, dtype=dtype, requires_grad=True)
    logs = torch.log(torch.rand(21, dtype=dtype) / 2 + 0.5)
    labels, weights = torch.randint(21, (9,)), torch.rand(9, dtype=dtype)
    loss = softmax_loss(
        queries,
        SoftmaxCandidates(vectors, logs),
        labels,
        weights,
        label_smoothing=0.1,
        max_scores=max_scores,
    )
    return [loss.detach(), *torch.autograd.grad(loss, [queries, vectors])]


@pytest.mark.interpreted(only=True)
@pytest.mark.parametrize("max_scores", [1 << 20, 50])
def test_the_loss_over_a_made_up_multiple_of_columns_is_the_same(max_scores: int) -> None:
    found = gradients(max_scores, torch.float32)
    with without("softmax_rows"):
        expected = gradients(max_scores, torch.float32)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@RUNS_KERNELS
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize(("queries", "uniform", "width"), [(5, 3, 6), (70, 150, 64)])
def test_drawn_items_give_the_loss_of_all_their_scores(queries, uniform, width, smoothing) -> None:
    """Labels repeat, so that many candidates are some query's own."""
    torch.manual_seed(0)
    labels, counts = torch.randint(1, 20, (queries,)), torch.randint(0, 90, (20,))
    drawn = mixed_candidates(labels, uniform, counts)
    tower = torch.nn.functional.normalize(torch.randn(queries, width), dim=1) * 9
    found, expected = [], []
    for device, into in ((DEVICE, found), ("cpu", expected)):
        one = tower.detach().to(device).requires_grad_()
        table = (torch.arange(20.0 * width).view(20, width).sin()).to(device).requires_grad_()
        rows, own = SampledItems(*(t.to(device) for t in drawn[:2]), uniform), labels.to(device)
        scores = (one * table[own]).sum(1)
        with nullcontext() if into is found else without("softmax_rows"):
            loss = sampled_softmax_loss(one, table[rows.rows], rows, own, scores, smoothing)
        into += [loss, *torch.autograd.grad(loss * 3, (one, table))]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)


def test_shapes_that_do_not_fit_are_refused() -> None:
    scores, labels = torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)
    assert_refused(
        {
            "contiguous": lambda: softmax_rows(scores.T, None, labels, 2),
            "C = 6": lambda: softmax_rows(scores, None, labels, 6),
            "labels must be": lambda: softmax_rows(scores, None, labels[:1], 5),
            "log_inclusion must be": lambda: softmax_rows(scores, torch.zeros(4), labels, 5),
        }
    )
