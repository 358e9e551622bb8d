"""Time the gated norm on one GPU beside PyTorch's layer norm, product and dropout.

The peer runs eagerly and compiled, with its own random numbers. The floor is each number read and
written once, over the measured copy rate. Nothing is timed where results disagree with float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from recsys.kernels.gated_norm.op import gated_norm
from recsys.kernels.gated_norm.reference import dropout_mask
from recsys.kernels.measure import copy_rate, median_ms, peak_bytes
from tests.benchmarks.harness import Row, write_results

SHAPES = [(131_072, 512), (65_536, 1024)]
DROPOUT = 0.2
TOLERANCE = 1e-2


def eager(x: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    normed = torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, 1e-6)
    return torch.nn.functional.dropout(normed * u, DROPOUT)


def worst_error(leaves: list[Tensor], grad: Tensor, seed: Tensor) -> float:
    """Largest error of result and gradients by the largest true value."""
    out = gated_norm(*leaves, dropout=DROPOUT, seed=seed)
    found = [out, *torch.autograd.grad(out, leaves, grad)]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    normed = torch.nn.functional.layer_norm(wide[0], grad.shape[1:], *wide[2:], 1e-6)
    mask = dropout_mask(*grad.shape, int(seed), DROPOUT, grad.device)
    kept = 65536 / (65536 - round(DROPOUT * 65536))
    exact = normed * wide[1] * mask * kept
    true = [exact, *torch.autograd.grad(exact, wide, grad.double())]
    return max(
        float((a.double() - b).abs().max() / b.abs().max())
        for a, b in zip(found, true, strict=True)
    )


def times_of(
    call: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor
) -> tuple[float, float, int]:
    def forward() -> None:
        with torch.no_grad():
            call()

    def both() -> None:
        torch.autograd.grad(call(), leaves, grad)

    return median_ms([forward]), median_ms([both]), peak_bytes(both)


def rows_of(num_rows: int, width: int, rate: float, compiled: bool) -> list[Row]:
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    x, u, grad = (random(num_rows, width).bfloat16() for _ in range(3))
    leaves = [one.requires_grad_() for one in (x, u, random(width), random(width))]
    # PyTorch's layer norm wants weights of x's type.
    same = [x, u, *(leaf.detach().bfloat16().requires_grad_() for leaf in leaves[2:])]
    seed = torch.tensor([7], device="cuda")
    name = f"[{num_rows}, {width}] bf16"
    error = worst_error(leaves, grad, seed)
    rows = [
        Row(
            name=f"{name}: worst error against float64",
            value=error,
            unit="",
            goal=f"< {TOLERANCE:g}",
            met=error < TOLERANCE,
        )
    ]
    if error >= TOLERANCE:
        return rows
    ours = times_of(lambda: gated_norm(*leaves, dropout=DROPOUT, seed=seed), leaves, grad)
    peers = {"eager": times_of(lambda: eager(*same), same, grad)}
    if compiled:
        one_graph = torch.compile(eager, dynamic=False)
        peers["compiled"] = times_of(lambda: one_graph(*same), same, grad)
    numbers = num_rows * width * 2
    for place, what, moved in ((0, "forward", 3), (1, "forward + backward", 8)):
        share = moved * numbers / rate * 1e3 / ours[place]
        rows.append(Row(name=f"{name}: {what}, share of the copy rate", value=share, unit=""))
        rows += [
            Row(
                name=f"{name}: {what}",
                value=ours[place],
                unit="ms",
                peer=f"{peer}: {found[place]:.4f} ms",
                ratio=found[place] / ours[place],
            )
            for peer, found in peers.items()
        ]
    rows += [
        Row(
            name=f"{name}: peak memory of a step",
            value=ours[2] / 2**20,
            unit="MiB",
            peer=f"{peer}: {found[2] / 2**20:.0f} MiB",
            ratio=found[2] / ours[2],
        )
        for peer, found in peers.items()
    ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    rate = copy_rate()
    rows = [Row(name="device copy", value=rate / 1e12, unit="TB/s")]
    for shape in SHAPES:
        rows += rows_of(*shape, rate, not arguments.no_compile)
    write_results("gated_norm", rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
