"""Time all-to-all and all-reduce between the GPUs of a host by size, for ``recsys plan``.

    torchrun --nproc-per-node 2 -m tests.benchmarks.planning.benchmark_exchange

Milliseconds of a call by the bytes of each rank's buffer, medians of 12 with a barrier before each.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from tests.benchmarks.harness import Row, command_line, write_results

KIB = (16, 64, 256, 1024, 4096, 16384, 65536, 262144)


def median_ms(call: Callable[[], object], repeats: int = 12, warm_up: int = 4) -> float:
    times = []
    for number in range(warm_up + repeats):
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number >= warm_up:
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def rows_of(device: torch.device) -> list[Row]:
    """Measure both by size."""
    rows = []
    for kib in KIB:
        given = torch.ones(kib * 256, device=device)
        taken = torch.empty_like(given)
        calls: dict[str, Callable[[], object]] = {
            "all-to-all": lambda one=given, other=taken: dist.all_to_all_single(other, one),
            "all-reduce": lambda one=given: dist.all_reduce(one),
        }
        rows += [
            Row(name=f"{kib} KiB: {name}", value=median_ms(call), unit="ms")
            for name, call in calls.items()
        ]
    return rows


def main() -> None:
    command_line(__doc__).parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rows, size = rows_of(device), dist.get_world_size()
    if dist.get_rank() == 0:
        write_results("exchange", rows, device=f"{size} x {torch.cuda.get_device_name()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
