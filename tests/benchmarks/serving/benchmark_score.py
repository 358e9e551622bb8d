"""Lists a second of `recsys score`, and how long it takes for a million users.

A made-up bundle of 100,000 items and a million users with 20 events each: two-tower, sequence
model, item weights, content, blend and ranker, nearest items by ANN. A sample of the users is
scored; what all of them take is computed from its rate and the time of loading.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.scoring.job import ScoreRequest
from pipelines.scoring.run import score
from serving.bundle.write import write_bundle
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.serving.benchmark_bundle_load import made_up_users
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts


def make(folder: Path, num_items: int, num_users: int) -> Path:
    """Write a bundle; models are fitted on few users, everyone has a history."""
    size = SyntheticSize(
        num_items=num_items,
        num_users=5_000,
        events_per_user=50,
        embedding_dim=64,
        content_dim=64,
        semantic_ids=False,
        history_models=True,
        ranker=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        parts = synthetic_parts(Path(scratch), size)
        users = made_up_users(num_users, num_items)
        return write_bundle(folder, replace(parts, users=users), version="v1")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=30_000, help="users that are scored")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-k", type=int, default=20, help="list length")
    parser.add_argument("--bundles", type=Path, help="where the bundle lies, or is made to stay")
    options = parser.parse_args()
    chosen = np.random.default_rng(0).permutation(options.users)[: options.sample] + 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        bundle = (options.bundles or folder / "bundles") / "bundle-v1"
        if not bundle.exists():
            make(bundle.parent, options.items, options.users)
        request = ScoreRequest(
            bundle=str(bundle), out=str(folder / "lists"), k=options.k, workers=options.workers
        )
        found = score(request, keys=[f"user-{row}" for row in chosen.tolist()])
    rate, cpu = found["lists_made"] / found["seconds"], found["cpu_seconds"] / found["lists_made"]
    minutes = (found["load_seconds"] + options.users * cpu / options.workers) / 60
    everyone = f"{options.users:,} users on {options.workers} cores"
    rows = [
        Row(name="processor time of a list", value=1_000 * cpu, unit="ms"),
        Row(name=f"{everyone}, by processor time", value=minutes, unit="min", at_most=60),
        Row(name="lists a second, other work on the cores", value=rate, unit="lists/s"),
        Row(name="load", value=found["load_seconds"], unit="s"),
    ]
    notes = (
        f"{options.items:,} items, k = {options.k}, {options.workers} processes of one thread, "
        f"{options.sample:,} users drawn at random, writing included. Made-up vectors have no "
        "clusters, so that their three indexes search with efforts of 64 to 1,024. Load average "
        f"of the last minute: {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores, "
        "this run's own included."
    )
    write_results("score", rows, notes=notes)


if __name__ == "__main__":
    main()
