"""Corrections of rows by their adapters against float64; interpreted where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recsys.kernels.lora.op import Corrections
from recsys.kernels.tuning import asking, trying

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest error by the largest true value."""
Shape = tuple[int, int, int, int, int, int]
SMALL: list[Shape] = [
    # rows, places, inputs, outputs, adapters, rank
    (0, 1, 8, 8, 2, 4),
    (3, 1, 8, 8, 1, 1),
    (7, 1, 12, 20, 3, 4),
    (5, 8, 64, 64, 2, 8),
    (33, 1, 100, 70, 5, 17),
    (9, 2, 40, 24, 40, 3),
]
LARGE: list[Shape] = [
    (7680, 1, 128, 384, 3, 8),
    (60, 1, 256, 128, 3, 16),
    (1000, 3, 257, 511, 40, 5),
    (20_001, 1, 32, 48, 7, 64),
]


def inputs_of(shape: Shape, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    rows, places, width_in, width_out, adapters, rank = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype).to(device)

    numbers = torch.randint(0, adapters + 1, (rows,), generator=generator)
    return {
        "out": normal(rows, places, width_out),
        "weight": normal(width_out, width_in) / width_in**0.5,
        "bias": normal(width_out),
        "inputs": normal(rows, places, width_in),
        "a": normal(adapters, rank, width_in) / width_in**0.5,
        "b": normal(adapters, rank, width_out),
        "numbers": numbers.to(device),
    }


def corrected(made: dict[str, Tensor]) -> Tensor:
    out = made["out"].clone()
    Corrections(made["a"], made["b"]).add(out, made["inputs"], made["numbers"])
    return out


def whole(made: dict[str, Tensor], bias: bool = True) -> Tensor:
    """The layer itself and its corrections."""
    return Corrections(made["a"], made["b"]).linear(
        made["inputs"], made["numbers"], made["weight"], made["bias"] if bias else None
    )


def truth(made: dict[str, Tensor], out: Tensor | None = None) -> Tensor:
    """In float64, each row by the matrices that it gathers; row 0 of them is of none."""
    a, b = (torch.cat([made[name][:1] * 0, made[name]]).double() for name in "ab")
    sums = []
    for part in torch.arange(len(made["numbers"]), device=a.device).split(4096):
        numbers, inputs = made["numbers"][part], made["inputs"][part].double()
        low = torch.bmm(inputs, a[numbers].transpose(1, 2))  # [X, P, r]
        sums.append(torch.bmm(low, b[numbers]))
    return (made["out"] if out is None else out).double() + torch.cat(sums)


def check_close(found: Tensor, exact: Tensor) -> None:
    if found.numel():
        bound = TOLERANCES[found.dtype] * exact.abs().max()
        assert (found.double() - exact).abs().max() <= bound


def check_whole(made: dict[str, Tensor]) -> None:
    for bias in (True, False):
        given = made["bias"].double() if bias else None
        layer = functional.linear(made["inputs"].double(), made["weight"].double(), given)
        check_close(whole(made, bias), truth(made, layer))


def check_kernel(device: str, shape: Shape, dtype: torch.dtype) -> None:
    """Compare with float64; bits of a row with those that it has alone and among others."""
    made = inputs_of(shape, dtype, device)
    found, filled = corrected(made), whole(made)
    check_close(found, truth(made))
    check_whole(made)
    if not found.numel():
        return
    none = made["numbers"] == 0
    assert torch.equal(found[none], made["out"][none])
    row = shape[0] // 2
    for rows in (slice(row, row + 1), slice(row, None), slice(0, row + 1)):
        part = {
            name: one[rows].contiguous() if name in ("out", "inputs", "numbers") else one
            for name, one in made.items()
        }
        # The interpreter's products depend on where in a tile a row lies.
        bound = 0 if device == "cuda" else TOLERANCES[dtype] * float(found.abs().max())
        here = row - rows.start
        torch.testing.assert_close(corrected(part)[here], found[row], rtol=0, atol=bound)
        torch.testing.assert_close(whole(part)[here], filled[row], rtol=0, atol=bound)
    others = {**made, "numbers": (made["numbers"] + 1) % (shape[4] + 1)}
    others["numbers"][row] = made["numbers"][row]
    assert torch.equal(corrected(others)[row], found[row])
    assert torch.equal(whole(others)[row], filled[row])


def check_tiles(device: str, shape: Shape) -> None:
    """Launches ask for their tiles, and others are right too."""
    with asking() as questions:
        check_kernel(device, shape, torch.float32)
    assert {one.kernel for one in questions} == {"lora.add", "lora.linear"}
    tile = {name: max(16, number // 2) for name, number in questions[0].default.items()}
    tile["num_warps"] = 2
    with trying("lora.add", tile), trying("lora.linear", tile):
        check_kernel(device, shape, torch.float32)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_the_plain_path(shape: Shape, dtype: torch.dtype) -> None:
    made = inputs_of(shape, dtype, "cpu")
    check_close(corrected(made), truth(made))
    check_whole(made)


def test_rows_of_known_numbers() -> None:
    a = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    b = torch.tensor([[[10.0]], [[100.0]]])
    out = torch.tensor([[1.0], [1.0], [1.0]])
    inputs = torch.tensor([[2.0, 3.0]]).expand(3, 2)
    Corrections(a, b).add(out, inputs, torch.tensor([0, 1, 2]))
    assert out[:, 0].tolist() == [1.0, 21.0, 301.0]


def test_the_operation_meets_the_rules_of_its_library() -> None:
    made = inputs_of((7, 1, 12, 20, 3, 4), torch.float32, "cpu")
    arguments = (made["out"][:, 0], made["inputs"][:, 0], made["numbers"], made["a"], made["b"])
    torch.library.opcheck(torch.ops.recsys.add_corrections.default, arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.ones(2, 3)}, r"must be \[S, r, I\] and \[S, r, O\]"),
        ({"b": torch.ones(2, 4, 8)}, r"got \(2, 3, 6\) and \(2, 4, 8\)"),
        ({"a": torch.ones(2, 6, 3).transpose(1, 2)}, "a must be contiguous"),
        ({"b": torch.ones(2, 3, 8).double()}, "b must be contiguous, of one of"),
        ({"inputs": torch.ones(4, 6)}, r"inputs \[X, ..., 6\], got \(5, 8\) .* and \(4, 6\)"),
        ({"numbers": torch.ones(4).long()}, r"one for each of 5 rows, .*int64 \(4,\)"),
        ({"numbers": torch.ones(5).int()}, "numbers must be int64"),
    ],
)
def test_says_what_is_wrong(change: dict[str, Tensor], message: str) -> None:
    made = {
        "a": torch.ones(2, 3, 6),
        "b": torch.ones(2, 3, 8),
        "out": torch.ones(5, 8),
        "inputs": torch.ones(5, 6),
        "numbers": torch.ones(5).long(),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        corrected(made)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", SMALL + LARGE, ids=str)
def test_kernel_on_the_gpu(shape: Shape, dtype: torch.dtype) -> None:
    check_kernel("cuda", shape, dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tiles_on_the_gpu() -> None:
    check_tiles("cuda", (1000, 3, 257, 511, 40, 5))


@pytest.mark.interpreted(only=True)
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_kernel_in_the_interpreter(shape: Shape, dtype: torch.dtype) -> None:
    check_kernel("cpu", shape, dtype)


@pytest.mark.interpreted(only=True)
def test_tiles_in_the_interpreter() -> None:
    check_tiles("cpu", (5, 8, 64, 64, 2, 8))
