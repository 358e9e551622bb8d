"""``recsys kernels``: time the GPU kernels, find their best configurations, look inside a call."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from pipelines.engine.console import log, out
from pipelines.engine.errors import RefusedError

if TYPE_CHECKING:
    import torch

    from pipelines.kernel_bench.workload import Call, Workload
    from recsys.kernels.tuning import Measured

app = typer.Typer(no_args_is_help=True)

KERNELS = ("embedding_bag", "topk_search", "hstu_attention", "routed_experts")
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", "-k", help=f"One of {', '.join(KERNELS)} (repeatable); all without."),
]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One workload's numbers; times only where the check is green."""

    kernel: str
    workload: str
    error: float
    tolerance: float
    ms: float | None = None
    peers_ms: dict[str, float] | None = None
    num_bytes: int = 0
    share_of_copy_rate: float | None = None
    tflops: float | None = None

    @property
    def is_right(self) -> bool:
        # Written so that an error that is not a number is wrong.
        return self.error <= self.tolerance


@app.command("bench")
def benchmark(
    kernel: Kernels = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Time kernels beside plain torch, and FBGEMM where it is installed.

    Each result is checked first; a kernel that computes something else gets no time and no
    speed-up, and the command ends with code 3. Medians of many runs over several sets of inputs.

    [bold]Example[/] recsys kernels bench --kernel embedding_bag
    """
    device, cases = chosen(kernel)
    rate = copy_rate_of(device)
    found = []
    for case in cases:
        log.print(f"{case.kernel}: {case.name}", style="dim", soft_wrap=True)
        found.append(timed(case, device, rate))
        release(device)
    if as_json:
        rows = [{**asdict(one), "is_right": one.is_right} for one in found]
        typer.echo(json.dumps({"device": name_of(device), "copy_rate": rate, "rows": rows}))
    else:
        out.print(times_table(found, device))
    wrong = [f"{one.kernel} ({one.workload})" for one in found if not one.is_right]
    if wrong:
        raise RefusedError(
            f"{len(wrong)} of {len(found)} results are wrong: {'; '.join(wrong)}. Nothing is said "
            "of their speed; run the tests in tests/recsys/kernels"
        )


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
        release(device)
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
    """Find the device and the workloads of some kernels; all by default."""
    import torch

    from pipelines.kernel_bench.workloads import workloads

    unknown = sorted(set(kernels or []) - set(KERNELS))
    if unknown:
        raise ValueError(f"no kernel {', '.join(unknown)}; there are {', '.join(KERNELS)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = [case for case in workloads(device) if case.kernel in (kernels or KERNELS)]
    return device, cases


def needs_gpu(device: torch.device, command: str) -> None:
    """Refuse a command that says nothing about a CPU."""
    if device.type != "cuda":
        raise ValueError(
            f"recsys kernels {command} needs a CUDA GPU, and torch sees none here; on a CPU the "
            "kernels' reference runs, which has nothing to set. `recsys kernels bench` works"
        )


def name_of(device: torch.device) -> str:
    """Name the hardware."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def copy_rate_of(device: torch.device) -> float | None:
    """Measure bytes a second of the GPU's copy; None on a CPU."""
    from recsys.kernels.measure import copy_rate

    return copy_rate() if device.type == "cuda" else None


def release(device: torch.device) -> None:
    """Give the memory of a workload back before the next one."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def median_of(calls: Sequence[Call], device: torch.device) -> float:
    """Time calls where they run."""
    from recsys.kernels.measure import host_median_ms, median_ms

    return median_ms(calls) if device.type == "cuda" else host_median_ms(calls)


def timed(case: Workload, device: torch.device, rate: float | None) -> Timed:
    """Check a workload, then time it and its peers where it is right."""
    prepared = case.prepare(device)
    row = Timed(
        kernel=case.kernel,
        workload=case.name,
        error=prepared.error(),
        tolerance=prepared.tolerance,
        num_bytes=prepared.num_bytes,
    )
    if not row.is_right:
        return row
    ms = median_of(prepared.ours, device)
    bytes_per_second = prepared.num_bytes / (ms * 1e-3)
    return replace(
        row,
        ms=ms,
        peers_ms={name: median_of(calls, device) for name, calls in prepared.peers.items()},
        share_of_copy_rate=bytes_per_second / rate if rate and prepared.num_bytes else None,
        tflops=prepared.num_flops / (ms * 1e-3) / 1e12 if prepared.num_flops else None,
    )


def times_table(rows: Sequence[Timed], device: torch.device) -> Table:
    """Lay the numbers out; a wrong result has its error where the times would be."""
    here = name_of(device)
    if device.type != "cuda":
        here = "no GPU here: ours is the reference in plain PyTorch, on small inputs"
    peers = sorted({name for row in rows for name in row.peers_ms or {}})
    table = Table(box=box.SIMPLE, title=here, expand=True)
    table.add_column("kernel", ratio=1)
    for column in ("ms", *peers, "MB", "limit"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        what = f"{row.kernel}, {row.workload}"
        if row.ms is None:
            wrong = f"WRONG: error {row.error:.1e} > {row.tolerance:.0e}"
            table.add_row(f"{what}: [bold red]{wrong}[/]")
            continue
        times = row.peers_ms or {}
        against = [
            f"{times[name]:.3f} ({times[name] / row.ms:.2f}x)" if name in times else ""
            for name in peers
        ]
        megabytes = f"{row.num_bytes / 1e6:.1f}" if row.num_bytes else ""
        table.add_row(what, f"{row.ms:.3f}", *against, megabytes, limit_of(row))
    return table


def limit_of(row: Timed) -> str:
    """Say how near to the hardware's limit a kernel runs."""
    if row.share_of_copy_rate is not None:
        return f"{row.share_of_copy_rate:.0%} of copy"
    return f"{row.tflops:.3g} TFLOP/s" if row.tflops is not None else ""


def tuned(case: Workload, device: torch.device) -> list[Measured]:
    """Tune every launch of a workload that asks for a configuration."""
    from recsys.kernels.tuning import asking, climb

    prepared = case.prepare(device)
    with asking() as questions:
        prepared.ours[0]()
    different = {question.name: question for question in questions}
    found = [
        climb(
            question,
            lambda: median_of(prepared.ours, device),
            lambda: prepared.error() <= prepared.tolerance,
        )
        for question in different.values()
    ]
    return [one for one in found if math.isfinite(one.ms)]
