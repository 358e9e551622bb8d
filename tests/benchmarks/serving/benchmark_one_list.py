"""Processor time of one list in process: compiled functions, numpy and torch, and another checkout.

    python -m tests.benchmarks.serving.benchmark_one_list --bundles runs/movielens-100k/bundles \
        --ranker runs/movielens-100k/train_ranker/given/ranker [--before CHECKOUT]

Each variant is a process with one thread. They answer the same requests in turn, several rounds, so
that other work on the machine slows all alike; a round is the processor time of its requests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
CASES = ("with the ranker", "without", "unknown visitor")
STAGES = ("hydrate", "filter", "retrieve", "rank", "select")


def answer_rounds(bundles: Path, ranker: Path | None, num_requests: int) -> None:
    """Answer all requests for each line on stdin; print their processor time and stages, in us."""
    import torch

    from serving.bundle.load import load_bundle
    from serving.bundle.ranker import LoadedRanker
    from serving.recommend import Recommender
    from serving.schemas import Request
    from serving.settings import ServingOptions

    torch.set_num_threads(1)
    bundle = load_bundle(bundles / "current")
    loaded = bundle.ranker if ranker is None else LoadedRanker.load(ranker, bundle.items)
    users = list(bundle.users.user_ids)[1:]
    chosen = np.random.default_rng(0).choice(len(users), num_requests)
    known = [Request(user_id=users[row], k=20) for row in chosen]
    ranked = Recommender(replace(bundle, ranker=loaded), ServingOptions())
    plain = Recommender(replace(bundle, ranker=None), ServingOptions())
    found = dict(
        zip(CASES, ((ranked, known), (plain, known), (ranked, [Request(k=20)] * 400)), strict=True)
    )
    for name in sys.stdin:
        recommender, requests = found[name.strip()]
        stages: dict[str, list[float]] = {stage: [] for stage in STAGES}
        begin = time.process_time()
        for request in requests:
            timings = recommender.answer(request).timings_ms
            for stage in STAGES:
                stages[stage].append(1_000 * timings[stage])
        passed = 1e6 * (time.process_time() - begin) / len(requests)
        medians = {stage: statistics.median(values) for stage, values in stages.items()}
        print(json.dumps({"list": passed, **medians}), flush=True)


class Variant:
    """A process that answers rounds."""

    def __init__(self, checkout: Path, arguments: list[str], off: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "RECSYS_KERNELS_OFF": off}
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--answer", *arguments]
        self._process = subprocess.Popen(
            command,
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def round(self, case: str) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{case}\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate()


def measure(options: argparse.Namespace) -> list[Any]:
    from tests.benchmarks.harness import Row

    given = ["--bundles", str(options.bundles.resolve()), "--requests", str(options.requests)]
    if options.ranker is not None:
        given += ["--ranker", str(options.ranker.resolve())]
    variants = {"compiled": Variant(ROOT, given, ""), "numpy": Variant(ROOT, given, "one_query")}
    if options.before is not None:
        variants["before"] = Variant(options.before, given, "")
    rows = []
    for case in CASES:
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
        for number in range(options.rounds + 1):
            for name, variant in variants.items():
                found = variant.round(case)
                if number:  # the first one warms up
                    rounds[name].append(found)
        own = [one["list"] for one in rounds["compiled"]]
        for name, all_of in rounds.items():
            lists = [one["list"] for one in all_of]
            what = f"{case}, {name}"
            rows.append(Row(name=f"{what}: least", value=min(lists), unit="us"))
            rows.append(Row(name=f"{what}: median", value=statistics.median(lists), unit="us"))
            paired = statistics.median(one / two for one, two in zip(lists, own, strict=True))
            rows.append(Row(name=f"{what}: against compiled", value=paired, unit="x"))
            for stage in STAGES:
                value = min(one[stage] for one in all_of)
                rows.append(Row(name=f"{what}: {stage}", value=value, unit="us"))
    for variant in variants.values():
        variant.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundles", type=Path, required=True, help="folder with current")
    parser.add_argument("--ranker", type=Path, help="a ranker's folder, if the bundle has none")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer_rounds(options.bundles, options.ranker, options.requests)
        return
    from tests.benchmarks.harness import write_results

    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    rows = measure(options)
    notes = (
        f"{options.rounds} rounds of {options.requests} requests, k = 20, in turn. Stages are by "
        f"the clock, the least of the rounds' medians. Load average before: {load}."
    )
    write_results("one_list", rows, notes=notes)


if __name__ == "__main__":
    main()
