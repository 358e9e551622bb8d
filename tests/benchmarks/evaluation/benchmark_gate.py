"""Does the release gate find 3%, and does it stay silent between equals.

A world is 20,000 users whose item two systems rank as two real trainings do (`rank_pairs`): equal
pairs are two seeds, pairs 3% apart mix in users of a training of half as many passes, so that the
true NDCG@10 differs by 3%. In half of those the challenger is the better one, in half the worse.
The gate judges by the code and the settings of a release: intervals by users and by 20 blocks of
time, and protected slices (here of users at random).

    python -m tests.benchmarks.evaluation.benchmark_gate             # 10 to 25 minutes
    python -m tests.benchmarks.evaluation.benchmark_gate --pairs 50
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipelines.config.run import ReleaseConfig
from recsys.evaluation.paired import paired, slice_losses
from tests.benchmarks.evaluation.rank_pairs import (
    Floats,
    Pairs,
    Rows,
    apart,
    drawn_ranks,
    load_pairs,
    true_ndcg,
)
from tests.benchmarks.harness import Row, command_line, write_results

GAP = 0.03
NUM_BLOCKS = 20
SLICES = {"new": 0.3, "heavy": 0.15, "head": 0.5, "tail": 0.1}
"""Protected slices and their share of users."""
DEPTHS = (10, 20, 50)
GATE = "gate"


class Verdicts(NamedTuple):
    """What was decided of one pair, by what decides."""

    decisions: Mapping[str, str]
    refused: bool
    """By the gate: it called the challenger worse, or a slice harmed."""
    detectable: float
    """Smallest relative difference that the gate's test finds with 80%."""


def ndcg(ranks: Rows, depth: int) -> Floats:
    """NDCG of one held-out item a user, [U]."""
    return np.where(ranks <= depth, 1 / np.log2(ranks + 1.0), 0)


def judge(first: Rows, second: Rows, config: ReleaseConfig, draw: np.random.Generator) -> Verdicts:
    """Judge a challenger (second) against a champion as a release does, and by other metrics."""
    num_users = len(first)
    blocks = draw.integers(0, NUM_BLOCKS, num_users)
    slices = {name: draw.random(num_users) < share for name, share in SLICES.items()}
    settings = config.paired()
    depth = int(config.compared_by.partition("@")[2])
    values = {k: (ndcg(first, k), ndcg(second, k)) for k in {*DEPTHS, depth}}
    decisions = {
        f"ndcg@{k}, users alone": paired(*values[k], replace(settings, num_resamples=500)).decision
        for k in DEPTHS
    }
    found = paired(*values[depth], settings, blocks=blocks)
    harmed = any(loss.harmed for loss in slice_losses(*values[depth], slices, settings))
    decisions[GATE] = found.decision
    refused = harmed or (found.decision == "worse" and not found.not_worse)
    return Verdicts(decisions, refused, found.relative_detectable)


def worlds(
    table: Floats, num_pairs: int, num_users: int, *, turned: bool, seed: int
) -> list[Verdicts]:
    """Judge so many pairs; where ``turned``, every second one has the better system as champion."""
    draw, config = np.random.default_rng(seed), ReleaseConfig()
    found = []
    for number in range(num_pairs):
        first, second = drawn_ranks(table, num_users, draw)
        if turned and number % 2:
            first, second = second, first
        found.append(judge(first, second, config, draw))
    return found


def rows_of(pairs: Pairs, num_pairs: int, num_users: int, *, goals: bool) -> list[Row]:
    """Measure false alarms between equals and what is found between unequals."""
    (_, best), (low, high) = true_ndcg(pairs.equal), true_ndcg(pairs.unequal)
    gap = min(GAP, 0.99 * (high / low - 1))
    case = f"{pairs.name}, ndcg@10 {best:.3f}, {num_users} users, {gap:.1%} apart"
    equal = worlds(pairs.equal, num_pairs, num_users, turned=False, seed=1)
    unequal = worlds(apart(pairs, gap), num_pairs, num_users, turned=True, seed=2)
    right = ["worse" if number % 2 else "better" for number in range(num_pairs)]
    alarms = sum(one.refused or one.decisions[GATE] == "better" for one in equal)
    found = sum(
        one.refused if wanted == "worse" else one.decisions[GATE] == wanted and not one.refused
        for one, wanted in zip(unequal, right, strict=True)
    )
    most, least = (0.05 * num_pairs, 0.8 * num_pairs) if goals else (None, None)
    smallest = 100 * float(np.median([one.detectable for one in equal]))
    rows = [
        Row(name=f"{case}: equal, refused or called better", value=alarms, at_most=most),
        Row(name=f"{case}: apart, found", value=found, at_least=least),
        Row(name=f"{case}: smallest relative difference found with 80%", value=smallest, unit="%"),
    ]
    for name in (f"ndcg@{k}, users alone" for k in DEPTHS) if goals else ():
        wrong = sum(one.decisions[name] != "not enough evidence" for one in equal)
        known = sum(
            one.decisions[name] == wanted for one, wanted in zip(unequal, right, strict=True)
        )
        rows.append(Row(name=f"{case}: {name}, equal", value=wrong))
        rows.append(Row(name=f"{case}: {name}, apart", value=known))
    return rows


def sparser(pairs: Pairs) -> Pairs:
    """Let half of the users want items that neither system ever ranks: half as many hits."""
    tables = [0.5 * table for table in (pairs.equal, pairs.unequal)]
    for table in tables:
        table[-1, -1] += 0.5
    return Pairs(f"{pairs.name}, half as many hits", pairs.num_users, *tables)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="of each kind")
    parser.add_argument("--users", type=int, default=20_000)
    arguments = parser.parse_args()
    known = load_pairs()
    rows = []
    for pairs in known[:3]:
        rows += rows_of(pairs, arguments.pairs, arguments.users, goals=True)
    rows += rows_of(sparser(known[0]), arguments.pairs, arguments.users, goals=False)
    for num_users in (2_000, 5_000):
        rows += rows_of(known[0], arguments.pairs, num_users, goals=False)
    config = ReleaseConfig()
    notes = (
        f"Counts are of {arguments.pairs} pairs. The gate calls a pair different where its "
        f"interval of {config.compared_by} at {config.confidence:.0%} excludes 0 over users and "
        "over blocks of time; `users alone` is the plain paired test of that metric at the same "
        "confidence, without blocks and slices. Rows without a goal say where the test ends: with "
        "fewer users, or fewer hits, it answers that there is not enough evidence, and names the "
        "difference that it would find. The tables that worlds are drawn from are of real "
        "trainings (`tests/benchmarks/evaluation/train_pairs.py`)."
    )
    write_results("gate", rows, notes=notes)


if __name__ == "__main__":
    main()
