"""Whether rubrics separate planted bad lists from served ones, and agree with held-out events.

Of the demo's run (MovieLens-100K, validation): the served lists against popular ones, pairs of
near-duplicates and items of categories that the user has least. Agreement is the share of pairs of
two models' lists of one user, one with the held-out event, in which a rubric prefers that one. Of
worlds whose good lists are known (three seeds): the same planted lists against those.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from pipelines.judging.run import judge_lists
from recsys.evaluation.judges import planted_lists, separation
from recsys.evaluation.rubrics import rubrics_of
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.evaluation.test_judges import BY_RUBRIC, world

SEEDS = (0, 1, 2)


def of_run(workspace: Path) -> list[Row]:
    """Judge a run's lists."""
    begin = time.perf_counter()
    document = judge_lists(workspace)
    seconds = time.perf_counter() - begin
    rows = []
    for name, one in document["judges"].items():
        for kind, auc in one["separates"].items():
            bar = 0.9 if BY_RUBRIC[kind] == name else None
            rows.append(Row(name=f"{name}: AUC {kind}", value=auc, at_least=bar))
        clicks = one["clicks"]
        rows += [
            Row(name=f"{name}: agrees with clicks", value=100 * clicks["mean"], unit="%"),
            Row(name=f"{name}: low", value=100 * clicks["low"], unit="%"),
            Row(name=f"{name}: high", value=100 * clicks["high"], unit="%"),
            Row(name=f"{name}: halved, sd", value=one["length_bias"]),
        ]
    held = document["explanations"]
    rows += [
        Row(name="explanations: named items lose places", value=100 * held["holds"], unit="%"),
        Row(name="explanations: random items", value=100 * held["random_holds"], unit="%"),
        Row(name="explanations: AUC", value=held["separates"], at_least=0.9),
        Row(name="all of it", value=seconds, unit="s"),
    ]
    return rows


def of_worlds() -> list[Row]:
    """Judge planted lists of worlds with known good ones; the worst of the seeds."""
    found: dict[str, list[float]] = {kind: [] for kind in BY_RUBRIC}
    for seed in SEEDS:
        known, good, users = world(seed)
        planted = planted_lists(good, users, known, torch.Generator().manual_seed(seed))
        rubrics = rubrics_of(known)
        for kind, lists in planted.items():
            rubric = rubrics[BY_RUBRIC[kind]]
            scores = (rubric(one, users, known) for one in (good, lists))
            found[kind].append(separation(*scores))
    return [
        Row(name=f"worlds, {kind} by {BY_RUBRIC[kind]}", value=float(np.min(aucs)), at_least=0.9)
        for kind, aucs in found.items()
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--workspace", type=Path, default=Path("runs/movielens-100k"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [*of_run(options.workspace), *of_worlds()]
    notes = (
        "943 users, lists of 10 of the served ranker on validation, ten models' lists for the "
        "agreement (intervals over users, 95%). No rubric follows the order of a list (reversed: "
        "0). Of the worlds the worst of three seeds. 20 users' explanations."
    )
    write_results("judges", rows, notes=notes)


if __name__ == "__main__":
    main()
