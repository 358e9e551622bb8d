"""Check logged propensities by a million draws a method, and time configured requests.

Slates are the six ordered pairs of three candidates, at settings at which none is rare: the worst
of their frequencies is compared with the product of logged propensities. Times are of whole
requests in process for users of a made-up bundle, without a configuration and with one, taking
turns. What each method costs alone is measured by benchmark_lists.py.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recsys.reranking.exploration import Slate, epsilon_greedy, plackett_luce, thompson
from serving.bundle.manifest import publish
from serving.configuration.file import configuration_of
from serving.recommend import Recommender
from serving.schemas import Request
from tests.benchmarks.harness import Row, alternating_ms, command_line, write_results
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

SCORES = np.array([1.0, 0.6, 0.0])
DEVIATIONS = np.array([0.9, 1.0, 1.2])
POLICIES: dict[str, Callable[[np.random.Generator], Slate]] = {
    "epsilon .8": lambda random: epsilon_greedy(SCORES, 2, 0.8, random),
    "Plackett-Luce at 2": lambda random: plackett_luce(SCORES, 2, 2.0, random),
    "Thompson": lambda random: thompson(SCORES, DEVIATIONS, 2, random),
}
K = 20
RULES = [
    {"name": "first", "kind": "pin", "items": ["item-7"], "slot": 2},
    {"name": "up", "kind": "boost", "where": "category in ['tens']", "places": 3},
    {"name": "down", "kind": "bury", "items": ["item-3", "item-5"], "places": 5},
    {"name": "gone", "kind": "hide", "items": ["item-11"]},
]
CONFIGURED: dict[str, dict[str, Any]] = {
    "four rules": {"rules": RULES},
    "a filter": {"surfaces": {"home": {"filter": "category in ['even', 'tens']"}}},
    "rules, filter, cap": {
        "rules": RULES,
        "surfaces": {
            "home": {"filter": "category in ['even', 'tens', 'odd']", "caps": {"category": 15}}
        },
    },
    "an experiment of two arms": {
        "experiments": [{"name": "x", "arms": [{"name": "a"}, {"name": "b"}]}]
    },
    "DPP": {"surfaces": {"home": {"diversity": {"method": "dpp", "strength": 0.3}}}},
    "MMR": {"surfaces": {"home": {"diversity": {"method": "mmr", "strength": 0.3}}}},
    "Thompson": {"surfaces": {"home": {"exploration": {"method": "thompson", "scale": 1}}}},
    "Plackett-Luce": {
        "surfaces": {"home": {"exploration": {"method": "plackett_luce", "temperature": 0.1}}}
    },
}


def drawn(name: str, number: int) -> tuple[str, float, float]:
    """Give the largest relative error of a slate's frequency, and the share of the rarest."""
    torch.set_num_threads(1)
    random, policy = np.random.default_rng(1), POLICIES[name]
    counts: Counter[tuple[int, ...]] = Counter()
    chances: dict[tuple[int, ...], float] = {}
    for _ in range(number):
        slate = policy(random)
        shown = tuple(slate.places.tolist())
        counts[shown] += 1
        chances[shown] = float(slate.propensities.prod())
    worst = max(abs(counts[shown] / number / chance - 1) for shown, chance in chances.items())
    return name, worst, min(chances.values())


def propensities(number: int, processes: int) -> list[Row]:
    rows = []
    with ProcessPoolExecutor(processes) as pool:
        # The slowest first.
        names = list(POLICIES)[::-1]
        for name, worst, rarest in pool.map(drawn, names, [number] * len(names)):
            rows += [
                Row(name=f"{name}: worst error", value=100 * worst, unit="%", at_most=1.0),
                Row(name=f"{name}: rarest slate", value=100 * rarest, unit="%"),
            ]
    return rows


def requests(seconds: float) -> list[Row]:
    """Time whole requests, configured and not."""
    size = SyntheticSize(num_items=2_000, num_users=200, events_per_user=20)
    with tempfile.TemporaryDirectory() as scratch:
        bundles = Path(scratch)
        write_synthetic_bundle(bundles, "v1", size)
        publish(bundles, "v1")
        plain = Recommender.load(bundles / "current")
        made = {"nothing": plain} | {
            name: Recommender(plain.bundle, configuration=configuration_of(table))
            for name, table in CONFIGURED.items()
        }
        users = {name: cycle(range(1, 201)) for name in made}

        def answering(name: str) -> Callable[[], object]:
            return lambda: made[name].answer(Request(user_id=f"user-{next(users[name])}", k=K))

        times = alternating_ms({name: answering(name) for name in made}, seconds=seconds)
    rows = [Row(name="a request with nothing configured", value=times["nothing"], unit="ms")]
    for name in CONFIGURED:
        goal = 0.5 if "rules" in name or "filter" in name else None
        more = times[name] - times["nothing"]
        rows.append(Row(name=f"more with {name}", value=more, unit="ms", at_most=goal))
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = requests(options.seconds)
    rows += propensities(options.draws, options.processes)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    note = f"{options.draws:,} draws a method; load average {load} (other work ran beside)."
    write_results("control", rows, notes=note)


if __name__ == "__main__":
    main()
