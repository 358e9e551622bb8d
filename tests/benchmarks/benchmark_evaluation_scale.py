"""Does the full-catalogue evaluation of 1M users x 100k items fit, and how long would it take.

Slices of the users are evaluated in fresh processes, each with its own peak of resident memory.
What grows with the users are the inputs and the per-user results (the top 100 lists, mostly);
that slope is measured and carried on to 1M users, and so is the time per user.

    python tests/benchmarks/benchmark_evaluation_scale.py
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from results_file import Row, write_results

from recsys.data.batch import Jagged, JaggedBatch
from recsys.evaluation.ranking import evaluate_ranking

HISTORY = 20


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, nargs="+", default=[2_048, 8_192, 32_768])
    parser.add_argument("--all-users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--one-slice", type=int, help="evaluate this many users, print JSON, stop")
    return parser.parse_args()


def evaluate_slice(options: argparse.Namespace, num_users: int) -> dict[str, float]:
    """Evaluate random vectors; peak memory of this process in GiB and seconds."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(num_users + 1, options.dim, generator=generator)
    items = torch.randn(options.items + 1, options.dim, generator=generator)
    users = torch.arange(1, num_users + 1)
    drawn = torch.randint(1, options.items + 1, (num_users * (HISTORY + 1),), generator=generator)
    history = Jagged(drawn[num_users:], HISTORY * torch.arange(num_users + 1))
    batches = (
        JaggedBatch({"user": Jagged.one_each(rows)}) for rows in users.split(options.batch_size)
    )
    begin = time.perf_counter()
    result = evaluate_ranking(
        lambda batch: queries[batch["user"].values] @ items.T,
        batches,
        Jagged.one_each(drawn[:num_users]),
        exclude=history,
    )
    seconds = time.perf_counter() - begin
    assert result.num_users == num_users
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "peak_gib": peak}


def main() -> None:
    options = parsed_arguments()
    if options.one_slice:
        print(json.dumps(evaluate_slice(options, options.one_slice)))
        return

    sizes = sorted(options.users)
    measured = []
    for num_users in sizes:
        command = [sys.executable, __file__, *sys.argv[1:], "--one-slice", str(num_users)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        measured.append(json.loads(answer.stdout))
        print(num_users, measured[-1], flush=True)

    few, many = measured[0], measured[-1]
    more = sizes[-1] - sizes[0]
    gib_per_user = max(0.0, many["peak_gib"] - few["peak_gib"]) / more
    seconds_per_user = (many["seconds"] - few["seconds"]) / more
    beyond = options.all_users - sizes[-1]
    peak = many["peak_gib"] + gib_per_user * beyond
    minutes = (many["seconds"] + seconds_per_user * beyond) / 60
    name = f"{options.all_users:,} users x {options.items:,} items"
    rows = [
        Row(name=f"peak memory, {num_users:,} users", value=row["peak_gib"], unit="GiB")
        for num_users, row in zip(sizes, measured, strict=True)
    ]
    rows += [
        Row(name="memory a further user takes", value=gib_per_user * 2**20, unit="KiB"),
        Row(
            name=f"peak memory carried on to {name}",
            value=peak,
            unit="GiB",
            goal="<= 24 GiB",
            met=peak <= 24,
        ),
        Row(name=f"time, {sizes[-1]:,} users", value=many["seconds"], unit="s"),
        Row(name=f"time carried on to {name}", value=minutes, unit="min"),
    ]
    write_results(
        "evaluation_scale",
        rows,
        notes=f"Width {options.dim}, batches of {options.batch_size} users, {HISTORY} excluded "
        "items each, one target each, top 100 kept. Memory that does not depend on the users "
        "(torch, items, a batch of scores) is the peak of the smallest slice. The rows for all "
        f"users are linear extrapolations from {sizes[0]:,} and {sizes[-1]:,} users, not a run.",
    )


if __name__ == "__main__":
    main()
