"""Routed experts and their router against float64; through Triton's interpreter without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from recsys.kernels.routed_experts.op import Routed, count_visits, route, routed_experts
from tests.recsys.kernels.devices import DEVICE, ON_A_GPU, RUNS_KERNELS
from tests.recsys.testing.experts import loop_over_experts
from tests.recsys.testing.kernels import asking, trying
from tests.recsys.testing.refusals import assert_refused

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Largest error by the largest true value, gradients too."""

Shape = tuple[int, int, int, int, int, int]
"""B rows, E experts, K of each row, D in, F within, O out."""
SMALL: list[Shape] = [
    (0, 4, 2, 16, 16, 16),
    (1, 3, 1, 16, 16, 16),
    (70, 4, 2, 24, 40, 16),
    (20, 3, 3, 33, 20, 17),
    (30, 20, 2, 32, 48, 16),
]
LARGE: list[Shape] = [
    (5000, 32, 2, 512, 256, 512),
    (4096, 6, 2, 72, 264, 136),
    (9000, 200, 3, 64, 192, 64),
]


def choices(num_rows: int, num_experts: int, top_k: int, *, same: bool = False) -> Tensor:
    """Different experts for each row, or the same for all, which leaves the others empty."""
    if same:
        return torch.arange(top_k).expand(num_rows, -1).contiguous()
    scores = torch.rand(num_rows, num_experts, generator=torch.Generator().manual_seed(3))
    return scores.topk(top_k, dim=1).indices


def inputs(shape: Shape, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Rows, up, down and weights."""
    num_rows, num_experts, top_k, dim, hidden_dim, output_dim = shape
    generator = torch.Generator().manual_seed(num_rows)
    # Whole numbers by powers of two, whose products are exact in all types: no inner number is on
    # another side of zero than in the truth.
    rows = torch.randint(-2, 3, (num_rows, dim), generator=generator).float()
    up = torch.randint(-1, 2, (num_experts, hidden_dim, dim), generator=generator) / 16
    down = torch.randn(num_experts, output_dim, hidden_dim, generator=generator) / hidden_dim**0.5
    weights = torch.rand(num_rows, top_k, generator=generator)
    return [*(one.to(dtype).to(device) for one in (rows, up, down)), weights.to(device)]


def run(made: list[Tensor], experts: Tensor, grad: Tensor) -> list[Tensor]:
    """Result and gradients of rows, up, down and weights."""
    rows, up, down, weights = leaves = [one.detach().requires_grad_() for one in made]
    out = routed_experts(rows, up, down, experts, weights)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def check_experts(device: str, shape: Shape, dtype: torch.dtype, repeats: int = 0) -> None:
    """Compare with a loop over experts in float64, then the bits with those of further runs.

    Interpreted, rows of shapes of four experts choose the same ones, others different ones.
    """
    made = inputs(shape, dtype, device)
    grad = torch.randn(shape[0], shape[5], generator=torch.Generator().manual_seed(7))
    grad = grad.to(dtype).to(device)
    for same in (False, True) if ON_A_GPU else (shape[1] == 4,):
        experts = choices(*shape[:3], same=same).to(device)
        found = run(made, experts, grad)
        rows, up, down, weights = leaves = [one.double().requires_grad_() for one in made]
        out = loop_over_experts(rows, up, down, experts, weights)
        true = [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]
        for place, (one, exact) in enumerate(zip(found, true, strict=True)):
            assert one.shape == exact.shape
            assert one.dtype == (torch.float32 if place == 4 else dtype)
            if exact.numel():
                error = (one.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30)
                assert error < TOLERANCES[dtype], (shape, dtype, same, place, float(error))
        unvisited = torch.bincount(experts.flatten(), minlength=shape[1]) == 0
        assert not found[2][unvisited].any()
        assert not found[3][unvisited].any()
        for _ in range(repeats):
            again = run(made, experts, grad)
            assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def check_tiles(device: str, shape: Shape, dtype: torch.dtype) -> None:
    """Other tiles, loads with and without descriptors, and programs of many tiles are right too."""
    with asking() as questions:
        check_experts(device, shape, dtype)
    assert {one.kernel.split(".")[1] for one in questions} == {"product", "weights"}
    defaults = {one.kernel: one.default for one in questions}
    for changes in (
        {"block_n": 64, "descriptors": 0},
        {"block_n": 64, "descriptors": 2, "per_processor": 1, "flattens": 1},
        {"block_c": 32, "descriptors": 1, "per_processor": 1},
    ):
        with trying("routed_experts.product", {**defaults["routed_experts.product"], **changes}):
            check_experts(device, shape, dtype)
    smaller = {"block_m": 64, "block_n": 32, "block_s": 32, "descriptors": 0}
    with trying("routed_experts.weights", {**defaults["routed_experts.weights"], **smaller}):
        check_experts(device, shape, dtype)


def check_router(device: str, num_rows: int, num_experts: int, top_k: int, dim: int) -> None:
    """Compare choices, weights and gradients with float64."""
    generator = torch.Generator().manual_seed(num_rows)
    rows = torch.randn(num_rows, dim, generator=generator).bfloat16().to(device)
    weight = (torch.randn(num_experts, dim, generator=generator) / dim**0.5).to(device)
    bias = (torch.randn(num_experts, generator=generator) / 10).to(device)
    grads = [torch.randn(num_rows, n, generator=generator).to(device) for n in (num_experts, top_k)]

    def routed(leaves: list[Tensor]) -> tuple[Routed, list[Tensor]]:
        found = route(*leaves, bias, top_k)
        alone = torch.autograd.grad(found.weights, leaves, grads[1], retain_graph=True)
        both = torch.autograd.grad([found.logits, found.weights], leaves, grads)
        return found, [*both, *alone]

    found, gradients = routed([rows.clone().requires_grad_(), weight.clone().requires_grad_()])
    wide = [rows.double().requires_grad_(), weight.double().requires_grad_()]
    logits = wide[0] @ wide[1].T
    scores = logits.softmax(1)
    experts = torch.topk(scores + bias, top_k, dim=1).indices
    same = (found.experts == experts).all(1)
    assert same.double().mean() > 0.999
    # A share of the chosen scores, a single one's of all.
    chosen = scores.gather(1, found.experts)
    parts = scores if top_k == 1 else chosen
    weights = chosen / (parts.sum(1, keepdim=True) + 1e-9)
    wanted = [one.double() for one in grads]
    true = [*torch.autograd.grad([logits, weights], wide, wanted, retain_graph=True)]
    true += torch.autograd.grad(weights, wide, wanted[1])
    assert (found.logits.double() - logits).abs().max() < 4e-6
    assert (found.weights.double() - weights).abs().max() < 2e-6
    for one, exact, tolerance in zip(gradients, true, (8e-3, 2e-5) * 2, strict=True):
        # Of softmax, all experts chosen, weights' gradients are nearly none.
        scale = exact.abs().max() + 1e-2
        assert (one.double() - exact).abs().max() / scale < tolerance
    # A row's bits do not depend on its batch.
    few = route(rows[:1].clone(), weight, bias, top_k)
    assert all(torch.equal(one, all_[:1]) for one, all_ in zip(few, found, strict=True))


ROUTERS = [(1, 2, 2, 100), (70, 20, 1, 40), (130, 32, 2, 64)]
LARGE_ROUTERS = [(5000, 32, 2, 512), (777, 128, 8, 256)]


def test_says_what_is_wrong() -> None:
    def changed(**change: Tensor) -> Callable[[], object]:
        arguments = {
            "rows": torch.ones(4, 6),
            "up": torch.ones(3, 8, 6),
            "down": torch.ones(3, 4, 8),
            "experts": torch.zeros(4, 2).long(),
            "weights": torch.ones(4, 2),
        }
        return lambda: routed_experts(**{**arguments, **change})

    assert_refused(
        {
            r"rows must be \[B, D\]": changed(up=torch.ones(3, 8, 5)),
            "must share E and F": changed(down=torch.ones(2, 4, 8)),
            r"must be \[4, K\] alike": changed(weights=torch.ones(4, 3)),
            "of one type": changed(rows=torch.ones(4, 6).half()),
            "experts must be int64": changed(experts=torch.zeros(4, 2).int()),
        }
    )


@RUNS_KERNELS
@pytest.mark.parametrize("shape", SMALL + LARGE * ON_A_GPU, ids=str)
def test_kernels_agree_with_a_loop_over_experts(shape: Shape) -> None:
    # Interpreted, each shape meets one type.
    one = [torch.bfloat16 if len(set(shape)) % 2 else torch.float32]
    for dtype in TOLERANCES if ON_A_GPU else one:
        check_experts(DEVICE, shape, dtype, repeats=3 * ON_A_GPU)


@RUNS_KERNELS
def test_visits_are_counted_and_other_tiles_are_right() -> None:
    experts = choices(150, 200, 3)
    counts = torch.bincount(experts.flatten(), minlength=200)
    assert torch.equal(count_visits(experts.to(DEVICE), 200).cpu(), counts)
    shape = (3000, 8, 2, 128, 256, 64) if ON_A_GPU else (40, 2, 1, 32, 64, 16)
    check_tiles(DEVICE, shape, torch.bfloat16)


@RUNS_KERNELS
@pytest.mark.parametrize("case", ROUTERS + LARGE_ROUTERS * ON_A_GPU, ids=str)
def test_a_router_agrees_with_float64(case: tuple[int, int, int, int]) -> None:
    check_router(DEVICE, *case)
