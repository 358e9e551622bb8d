"""The gated norm against float64; through Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from recsys.kernels.gated_norm.op import gated_norm
from recsys.kernels.gated_norm.reference import dropout_mask
from recsys.kernels.tuning import asking, trying

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest error by the largest true value."""
SEED = (7 << 32) + 12_345


def test_philox_gives_the_published_words() -> None:
    # Known answers of Random123 for Philox 4x32-10: counter and key of zeros.
    from recsys.kernels.gated_norm.reference import _philox

    words = _philox([torch.zeros(1, dtype=torch.int64)] * 4, 0)
    assert [int(word) for word in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_a_row_of_known_numbers() -> None:
    x = torch.tensor([[1.0, 3.0]])
    u, weight, bias = (
        torch.tensor([[2.0, 10.0]]),
        torch.tensor([3.0, 1.0]),
        torch.tensor([0.0, 5.0]),
    )
    assert torch.allclose(gated_norm(x, u, weight, bias), torch.tensor([[-6.0, 60.0]]))


def test_the_mask_depends_on_seed_row_and_column_alone() -> None:
    large = dropout_mask(300, 100, SEED, 0.3)
    assert torch.equal(dropout_mask(40, 33, SEED, 0.3), large[:40, :33])
    assert not torch.equal(dropout_mask(300, 100, SEED + 1, 0.3), large)
    assert not torch.equal(dropout_mask(300, 100, SEED + (1 << 32), 0.3), large)
    # Nine standard deviations of 30,000 draws.
    assert abs(large.float().mean() - 0.7) < 0.024
    assert not torch.equal(large[0], large[1])


def test_dropout_keeps_the_mean_and_drops_the_same_gradients() -> None:
    x, u = torch.randn(400, 64), torch.ones(400, 64).requires_grad_()
    weight, bias = torch.zeros(64), torch.ones(64)
    out = gated_norm(x, u, weight, bias, dropout=0.25, seed=torch.tensor(SEED))
    found = out.detach()
    assert found.unique().tolist() == [0, pytest.approx(1 / 0.75)]
    assert float(found.mean()) == pytest.approx(1, abs=0.03)
    out.sum().backward()
    assert torch.equal(u.grad, found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": torch.ones(4, 5)}, r"must be \[N, D\] alike"),
        ({"weight": torch.ones(5)}, r"weight and bias must be \[6\]"),
        ({"u": torch.ones(4, 6).half()}, "of one type"),
        ({"x": torch.ones(6, 4).T}, "contiguous rows"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": 0.5}, "dropout needs a seed"),
        ({"dropout": 0.5, "seed": torch.ones(1)}, "one int64 number"),
    ],
)
def test_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        **dict.fromkeys(("x", "u"), torch.ones(4, 6)),
        **dict.fromkeys(("weight", "bias"), torch.ones(6)),
    }
    with pytest.raises(ValueError, match=message):
        gated_norm(**{**arguments, **change})  # type: ignore[arg-type]


def test_the_operation_meets_the_rules_of_its_library() -> None:
    x, u = torch.randn(5, 12), torch.randn(5, 24)[:, 12:]
    weight, bias = torch.randn(12), torch.randn(12)
    leaves = [one.requires_grad_() for one in (x, u.detach(), weight, bias)]
    arguments = (*leaves, torch.tensor(SEED), 0.25, 1e-6)
    torch.library.opcheck(torch.ops.recsys.gated_norm.default, arguments)


def inputs(num_rows: int, width: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(num_rows + width)
    made = {
        "x": torch.randn(num_rows, width, generator=generator) * 3 + 1,
        # A slice of a wider projection, as in a layer.
        "u": torch.randn(num_rows, 2 * width, generator=generator)[:, width:],
        "weight": torch.randn(width, generator=generator),
        "bias": torch.randn(width, generator=generator),
        "grad": torch.randn(num_rows, width, generator=generator),
    }
    return {
        name: (x if name in ("weight", "bias") else x.to(dtype)).to(device)
        for name, x in made.items()
    }


def run(made: dict[str, Tensor], dropout: float) -> list[Tensor]:
    """Result and gradients of x, u, weight and bias."""
    leaves = [made[name].detach().requires_grad_() for name in ("x", "u", "weight", "bias")]
    seed = torch.tensor([SEED], device=made["x"].device)
    out = gated_norm(*leaves, dropout=dropout, seed=seed)
    out.backward(made["grad"])
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def truth(made: dict[str, Tensor], dropout: float) -> list[Tensor]:
    """The same by PyTorch's own operations in float64."""
    names = ("x", "u", "weight", "bias")
    x, u, weight, bias = (made[name].detach().double().requires_grad_() for name in names)
    normed = torch.nn.functional.layer_norm(x, (x.shape[1],), weight, bias, 1e-6)
    out = normed * u
    if dropout:
        mask = dropout_mask(*x.shape, SEED, dropout).to(x.device)
        out = out * mask / (1 - dropout)
    out.backward(made["grad"].double())
    return [out.detach(), *(one.grad for one in (x, u, weight, bias) if one.grad is not None)]


Shape = tuple[int, int]


def check_kernel(device: str, shape: Shape, dtype: torch.dtype, repeats: int = 1) -> None:
    """Compare with float64, then the bits with those of further runs."""
    made = inputs(*shape, dtype, device)
    for dropout in (0.0, 0.25):
        found, true = run(made, dropout), truth(made, dropout)
        assert len(found) == len(true) == 5
        for place, (one, exact) in enumerate(zip(found, true, strict=True)):
            assert one.shape == exact.shape
            if exact.numel() and exact.abs().max() > 0:
                error = (one.double() - exact).abs().max() / exact.abs().max()
                assert error < TOLERANCES[dtype], (shape, dtype, dropout, place, float(error))
            else:
                # Rows of one number have no gradient but rounding, grown by 1 / sqrt(epsilon).
                assert (one.abs() < 1e-3).all()
        for _ in range(repeats):
            again = run(made, dropout)
            assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


SMALL = [(0, 8), (3, 1), (5, 100), (17, 48)]
LARGE = [(1, 3), (1000, 257), (70_001, 64), (5000, 512), (300, 8192)]


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_the_plain_path(shape: Shape, dtype: torch.dtype) -> None:
    check_kernel("cpu", shape, dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", SMALL + LARGE, ids=str)
def test_kernel_on_the_gpu(shape: Shape, dtype: torch.dtype) -> None:
    check_kernel("cuda", shape, dtype, repeats=5)


def check_tiles(device: str, shape: Shape) -> None:
    """Launches ask for their tiles, and others are right too."""
    with asking() as questions:
        check_kernel(device, shape, torch.float32, repeats=0)
    different = {one.name: one for one in questions}.values()
    names = {"forward", "backward"}
    assert {one.kernel for one in different} == {f"gated_norm.{name}" for name in names}
    for one in different:
        halves = {
            key: number if key == "registers" else max(1, number // 2)
            for key, number in one.default.items()
        }
        with trying(one.kernel, halves):
            check_kernel(device, shape, torch.float32, repeats=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tiles_on_the_gpu() -> None:
    check_tiles("cuda", (1000, 257))


def test_kernel_in_the_interpreter() -> None:
    code = (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('cases', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "for shape in module.SMALL:\n"
        "    for dtype in module.TOLERANCES:\n"
        "        module.check_kernel('cpu', shape, dtype)\n"
        "module.check_tiles('cpu', (17, 48))\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)
