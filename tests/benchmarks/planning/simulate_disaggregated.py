"""Simulate a ranker of 100 billion weights with its experts on the same GPUs and on their own."""

from __future__ import annotations

from pipelines.planning.machine import machine_named
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.planning.disaggregated import Outcome, RankerSize, Rates, best

WAYS = ("together", "overlapped", "apart")
DEADLINE_MS = 100.0
CASES = [
    ("generation, 1 token, 1,000 events", 1_000, 1),
    ("generation, 1 token, 10,000 events", 10_000, 1),
    ("50 candidates, 1,000 events", 1_000, 50),
    ("50 candidates, 10,000 events", 10_000, 50),
    ("500 candidates, 1,000 events", 1_000, 500),
    ("500 candidates, 10,000 events", 10_000, 500),
    ("500 candidates, 100,000 events", 100_000, 500),
]
GPUS = (8, 16, 64)


def described(outcome: Outcome) -> str:
    """Say how the GPUs are used."""
    gpus = f"{outcome.attention_gpus}+{outcome.expert_gpus}"
    return (
        f"{gpus} GPUs, {outcome.requests} requests in {outcome.micro_batches}, attention "
        f"{outcome.attention_busy:.0%}, experts {outcome.expert_busy:.0%}"
    )


def rows() -> list[Row]:
    """Search the best use of the GPUs for each case and way."""
    machine, rates, found = machine_named("h200"), Rates(), []
    for name, history, candidates in CASES:
        size = RankerSize(history=history, candidates=candidates)
        for gpus in GPUS:
            outcomes = {way: best(size, rates, machine, gpus, DEADLINE_MS, way) for way in WAYS}
            base = outcomes["overlapped"]
            for way, outcome in outcomes.items():
                if outcome is None or base is None:
                    continue
                row = Row(
                    name=f"{name}, {gpus} GPUs: {way}",
                    value=outcome.requests_a_second,
                    unit="requests/s a GPU",
                    peer=described(outcome),
                    ratio=outcome.requests_a_second / base.requests_a_second,
                )
                found.append(row)
    return found


def main() -> None:
    command_line(__doc__).parse_args()
    notes = (
        f"Within {DEADLINE_MS:.0f} ms. Ratio: against `overlapped`, the same GPUs for both with "
        "micro-batches. The third column says how the GPUs are used: attention + experts "
        "(the same GPUs twice, but for `apart`), requests scored at once, in how many "
        "micro-batches, and the share of time each side works. The model is in "
        "`docs/disaggregated-experts.md`."
    )
    write_results("disaggregated", rows(), notes=notes, device="simulated from NVIDIA H200 kernels")


if __name__ == "__main__":
    main()
