"""Time a table of 24M x 64 in host memory whose hot rows lie on the GPU, beside one wholly on it.

A step looks 400,000 ids up (Zipf, 173,000 different), does nothing or 16 products of 8192 x 8192
beside it, and moves the rows by row-wise Adagrad. Missing rows come by a gather of the CPU and a
copy, or by kernels that read and write pinned host memory (zero-copy); within the step, or a step
ahead on a stream of their own. The cache begins with the hottest rows.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.benchmarks.harness import Row, command_line, timed, write_results
from tests.benchmarks.kernels.benchmark_training_step import zipf
from tests.benchmarks.planning.host_rows import HostRows

ROWS, DIM, IDS, STEPS = 24_000_000, 64, 400_000, 40
SCATTER = 2_654_435_761
"""What ``zipf`` spreads ranks over rows with."""


@triton.jit
def read_rows(source: Any, ids: Any, target: Any, width: tl.constexpr, block: tl.constexpr) -> None:
    place, column = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    row = tl.load(ids + place)
    values = tl.load(source + row * width + column, mask=column < width)
    tl.store(target + place * width + column, values, mask=column < width)


@triton.jit
def write_rows(
    target: Any, ids: Any, source: Any, width: tl.constexpr, block: tl.constexpr
) -> None:
    place, column = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    row = tl.load(ids + place)
    values = tl.load(source + place * width + column, mask=column < width)
    tl.store(target + row * width + column, values, mask=column < width)


class ZeroCopy(HostRows):
    """Kernels read and write host memory."""

    def read(self, rows: Tensor) -> Tensor:
        found = torch.empty(len(rows), self.dim + 1, device=self.device)
        read_rows[(len(rows),)](self.host, rows, found, self.dim + 1, 128)
        return found

    def write(self, rows: Tensor, values: Tensor) -> None:
        write_rows[(len(rows),)](self.host, rows, values.contiguous(), self.dim + 1, 128)


def table_of(kind: type[HostRows], whole: Tensor, share: float, device: torch.device) -> HostRows:
    """Make a table over host memory that is there, its cache full of the hottest rows."""
    table = kind(2, DIM, cached_rows=1, device=device)
    size = int(ROWS * share)
    table.host = whole
    table.cache = torch.zeros(size, DIM + 1, device=device)
    table.slot_of = torch.full((ROWS,), -1, dtype=torch.int32, device=device)
    table.row_in = torch.full((size,), -1, dtype=torch.int64, device=device)
    table.used_at = torch.full((size,), -1, dtype=torch.int32, device=device)
    ranks = torch.arange(size)
    rows = torch.arange(ROWS) if share == 1 else torch.unique(ranks * SCATTER % (ROWS - 2) + 1)
    hot = rows.to(device)
    table.row_in[: len(hot)] = hot
    table.slot_of[hot] = torch.arange(len(hot), dtype=torch.int32, device=device)
    return table


def step_ms(
    table: HostRows, ids: list[Tensor], products: int, *, ahead: bool
) -> tuple[float, float]:
    """Take the median step of the later half, and the rows that it brings in."""
    device = ids[0].device
    work = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    gradient = torch.full((IDS, DIM), 1e-3, device=device)
    missing: list[int] = []

    def step(number: int) -> None:
        fetched = table.fetch(ids[number])
        if ahead and number + 1 < len(ids):
            table.prefetch(ids[number + 1])
        table.rows(fetched)
        for _ in range(products):
            work @ work
        table.move(fetched, gradient, 0.01)
        missing.append(fetched.num_missing)

    times = [1e3 * timed(partial(step, number))[0] for number in range(len(ids))]
    half = len(ids) // 2
    return statistics.median(times[half:-1]), sum(missing[half:]) / half


def main() -> None:
    command_line(__doc__).parse_args()
    device, generator = torch.device("cuda"), torch.Generator().manual_seed(0)
    ids = [zipf(ROWS - 2, IDS, generator).to(device) for _ in range(STEPS)]
    whole = torch.zeros(ROWS, DIM + 1, pin_memory=True)
    rows = []
    for share in (1.0, 0.2, 0.05):
        for kind in (HostRows,) if share == 1 else (HostRows, ZeroCopy):
            for ahead, products in ((False, 0), (False, 16), (True, 16)):
                if ahead and share == 1:
                    continue
                table = table_of(kind, whole, share, device)
                taken, missing = step_ms(table, ids, products, ahead=ahead)
                how = "all on the GPU" if share == 1 else f"{share:.0%} on the GPU"
                way = (
                    "" if share == 1 else ", gather and copy" if kind is HostRows else ", zero-copy"
                )
                when = ", a step ahead" if ahead else ""
                name = f"{how}{way}{when}, {products} products: step"
                peer = None if share == 1 else f"{missing:,.0f} rows brought in"
                rows.append(Row(name=name, value=taken, unit="ms", peer=peer))
    write_results("host_rows", rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
