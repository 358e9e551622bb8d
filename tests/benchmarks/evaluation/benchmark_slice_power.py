"""How many queries a protected slice needs for the release gate to show that it was lost.

Made-up slices: the champion lists a share of the held-out items in its first 50 places, at even
chance in each; the challenger lists none of them, or half. Judged by the settings of a release
among ten slices, of which the others lose nothing.

    python -m tests.benchmarks.evaluation.benchmark_slice_power
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipelines.config.release import ReleaseConfig
from recsys.evaluation.paired import slice_losses
from tests.benchmarks.harness import Row, command_line, write_results

NUM_SLICES = 10
FOUND = (0.02, 0.05, 0.1, 0.3)
"""Shares of held-out items that the champion lists; 0.05 is the tail of a small shop."""
KEPT = {"all": 0.0, "half": 0.5}
"""What is lost -> share that the challenger still lists."""
POWER = 0.8
SIZES = sorted({round(10 * 1.2**step) for step in range(40)})


def shown(num: int, found: float, kept: float, worlds: int) -> float:
    """Share of worlds in which the loss is shown."""
    config, draw, refused = ReleaseConfig().paired(), np.random.default_rng(0), 0
    for _ in range(worlds):
        gain = np.where(draw.random(num) < found, 1 / np.log2(draw.integers(2, 52, num)), 0.0)
        left = np.where(draw.random(num) < kept, gain, 0.0)
        losses = slice_losses(gain, left, {"one": np.ones(num, bool)}, config, min_users=2)
        refused += any(one.p_value * NUM_SLICES <= config.slice_error for one in losses)
    return refused / worlds


def rows(worlds: int) -> Iterator[Row]:
    """Find the smallest size that shows each loss."""
    for found in FOUND:
        for lost, kept in KEPT.items():
            size = next(num for num in SIZES if shown(num, found, kept, worlds) >= POWER)
            name = f"{found:.0%} of the items found: queries that show the loss of {lost}"
            yield Row(name=name, value=size)


def main() -> None:
    """Measure and write the result."""
    parser = command_line(__doc__)
    parser.add_argument("--worlds", type=int, default=200)
    arguments = parser.parse_args()
    least = ReleaseConfig().min_compared
    notes = f"Shown in {POWER:.0%} of {arguments.worlds} worlds. A slice of fewer than "
    notes += f"`release.min_compared` ({least}) queries is never judged."
    write_results("slice_power", [*rows(arguments.worlds)], notes=notes)


if __name__ == "__main__":
    main()
