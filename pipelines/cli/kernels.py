"""``recsys kernels``: find the GPU kernels' best configurations, look inside a call."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from pipelines.engine.console import log, out

if TYPE_CHECKING:
    import torch

    from pipelines.kernel_bench.workload import Workload
    from recsys.kernels.tuning import Measured

app = typer.Typer(no_args_is_help=True)

KERNELS = ("embedding_bag", "topk_search", "hstu_attention", "routed_experts")
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", "-k", help=f"One of {', '.join(KERNELS)} (repeatable); all without."),
]


@app.command()
def tune(
    kernel: Kernels = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write to, instead of the user's cache.")
    ] = None,
) -> None:
    """Find the fastest configuration of each launch on this GPU and keep it for all runs.

    [bold]Example[/] recsys kernels tune --kernel topk_search
    """
    from recsys.kernels.tuning import store

    device, cases = chosen(kernel)
    needs_gpu(device, "tune")
    names: set[str] = set()
    path = None
    for case in cases:
        measured = tuned(case, device)
        for one in measured:
            log.print(
                f"{one.question.name}: {one.config}, {one.ms:.4f} ms "
                f"(default {one.default_ms:.4f})",
                markup=False,
                soft_wrap=True,
            )
        if measured:
            # After each case: a search that is interrupted keeps what it found.
            path = store(measured, name_of(device), output)
            names |= {one.question.name for one in measured}
        release()
    if path is None:
        out.print("no launch of these kernels asks for a configuration")
        return
    out.print(f"{len(names)} configurations in {path}", markup=False, soft_wrap=True)


@app.command()
def profile(
    kernel: Annotated[str, typer.Argument(help=f"One of {', '.join(KERNELS)}.")],
    output: Annotated[Path, typer.Option(help="Where Proton's tree goes (.hatchet).")] = Path(
        "kernel.hatchet"
    ),
) -> None:
    """Record with Proton which GPU kernels a call launches and how long each takes.

    [bold]Example[/] recsys kernels profile embedding_bag
    """
    from recsys.kernels.measure import trace

    device, cases = chosen([kernel])
    needs_gpu(device, "profile")
    case = cases[-1]
    prepared = case.prepare(device)
    times = trace(prepared.ours[0], output)
    table = Table("GPU kernel", "ms a call", box=box.SIMPLE, title=case.name)
    for name, ms in times.items():
        table.add_row(name, f"{ms:.4f}")
    out.print(table)
    out.print(f"tree: {output.with_suffix('.hatchet')}", markup=False, soft_wrap=True)


def chosen(kernels: Sequence[str] | None) -> tuple[torch.device, list[Workload]]:
    """Find the device and the cases of some kernels; all by default."""
    import torch

    from pipelines.kernel_bench.workloads import workloads

    unknown = sorted(set(kernels or []) - set(KERNELS))
    if unknown:
        raise ValueError(f"no kernel {', '.join(unknown)}; there are {', '.join(KERNELS)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = [case for case in workloads() if case.kernel in (kernels or KERNELS)]
    return device, cases


def needs_gpu(device: torch.device, command: str) -> None:
    """Refuse a command that says nothing about a CPU."""
    if device.type != "cuda":
        raise ValueError(
            f"recsys kernels {command} needs a CUDA GPU, and torch sees none here; on a CPU the "
            "kernels' reference runs, which has nothing to set"
        )


def name_of(device: torch.device) -> str:
    """Name the GPU."""
    import torch

    return torch.cuda.get_device_name(device)


def release() -> None:
    """Give the memory of a workload back before the next one."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def tuned(case: Workload, device: torch.device) -> list[Measured]:
    """Tune every launch of a workload that asks for a configuration."""
    from recsys.kernels.measure import median_ms
    from recsys.kernels.tuning import asking, climb

    prepared = case.prepare(device)
    with asking() as questions:
        prepared.ours[0]()
    different = {question.name: question for question in questions}
    found = [
        climb(
            question,
            lambda: median_ms(prepared.ours),
            lambda: prepared.error() <= prepared.tolerance,
        )
        for question in different.values()
    ]
    return [one for one in found if math.isfinite(one.ms)]
