"""Count items outside of their filter in many random requests.

Each request has a random filter (an expression, categories, exclusions) and goes through
`Recommender.answer` over a made-up bundle of 40 items; which items it may list is known from a slow
reading of the filter, item by item. Shares of the requests: profile `fast` with the learned blend
80%, with the ranker too 10%, profile `full` (with generation under the trie) 10%.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import torch

from serving.bundle.load import load_bundle
from serving.recommend import Recommender
from serving.settings import ServingOptions
from tests.benchmarks.harness import RESULTS, Row, command_line, write_results
from tests.serving.filtering.random_filters import RandomRequests, with_properties
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

REQUESTS_PER_POOL = 20_000
FILTERS_PER_POOL = 1_000


def counted(folder: Path, seed: int, num_requests: int, until: float) -> Counter[str]:
    """Answer requests until there are enough or the time is over."""
    torch.set_num_threads(1)
    blended, ranked = (
        with_properties(load_bundle(folder / f"bundle-{name}")) for name in ("blended", "ranked")
    )
    recommenders = (
        Recommender(blended),
        Recommender(ranked),
        Recommender(blended, ServingOptions(profile="full")),
    )
    rng, counts = Random(seed), Counter[str]()
    while counts["requests"] < num_requests and time.time() < until:
        pool = RandomRequests(blended, rng, FILTERS_PER_POOL)
        counts["filters"] += FILTERS_PER_POOL
        for _ in range(min(REQUESTS_PER_POOL, num_requests - counts["requests"])):
            one = pool.next()
            (recommender,) = rng.choices(recommenders, weights=(8, 1, 1))
            reply = recommender.answer(one.request)
            found = {item.item_id for item in reply.items}
            counts["requests"] += 1
            counts["items"] += len(found)
            counts["items outside"] += len(found - one.allowed)
            counts["empty though something passes"] += bool(one.allowed) and not found
            counts["failed sources"] += any("failed" in note.code for note in reply.degraded)
    return counts


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=20, help="stop after so long")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--add", action="store_true", help="to the counts of an earlier run")
    options = parser.parse_args()
    begin, counts = time.time(), Counter[str]()
    earlier = RESULTS / "serving" / "hard_filters.json"
    if options.add:
        rows = json.loads(earlier.read_text())["rows"]
        counts.update({row["name"]: int(row["value"]) for row in rows})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, ranker in (("blended", False), ("ranked", True)):
            size = SyntheticSize(history_models=True, ranker=ranker)
            write_synthetic_bundle(folder, name, size)
        share = (options.requests - counts["requests"]) // options.processes
        until = begin + 60 * options.minutes
        seeds = range(options.first_seed, options.first_seed + options.processes)
        tasks = [(folder, seed, share, until) for seed in seeds]
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            for found in pool.starmap(counted, tasks):
                counts.update(found)
    bars = ("items outside", "empty though something passes", "failed sources")
    rows = [Row(name=name, value=counts[name]) for name in ("requests", "filters", "items")]
    rows += [Row(name=name, value=counts[name], at_most=0) for name in bars]
    write_results("hard_filters", rows, notes=__doc__ or "")


if __name__ == "__main__":
    main()
