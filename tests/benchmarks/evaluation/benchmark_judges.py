"""Whether rubrics separate planted bad lists from served ones, and agree with held-out events.

Of the demo's run (MovieLens-100K, validation): the served lists against popular ones, pairs of
near-duplicates and items of categories that the user has least. Agreement is the share of pairs of
two models' lists of one user, one with the held-out event, in which a rubric prefers that one. Of
worlds whose good lists are known (three seeds): the same planted lists against those.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from pipelines.evaluation.judges import judge_lists
from recsys.evaluation.judges import planted_lists, rubrics_of, separation
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.evaluation.test_judges import BY_RUBRIC, world

SEEDS = (0, 1, 2)


def measured(workspace: Path) -> tuple[list[Row], str]:
    """Judge a run's lists; the numbers, and what else to say."""
    begin = time.perf_counter()
    document = judge_lists(workspace)
    seconds = time.perf_counter() - begin
    judges, worlds = document["judges"], of_worlds()
    rows = [
        Row(
            name=f"AUC of {kind} by {name}",
            value=judges[name]["separates"][kind],
            peer=f"{worlds[kind]:.3f} in worlds",
            at_least=0.9,
        )
        for kind, name in BY_RUBRIC.items()
    ]
    rows.append(Row(name="seconds of recsys judge", value=seconds, unit="s"))
    agreement = ", ".join(
        f"{name} {one['clicks']['mean']:.1%} ({one['clicks']['low']:.1%} to "
        f"{one['clicks']['high']:.1%})"
        for name, one in judges.items()
    )
    others = ", ".join(
        f"{name} {kind} {auc:.2f}"
        for name, one in judges.items()
        for kind, auc in one["separates"].items()
        if BY_RUBRIC[kind] != name
    )
    halved = ", ".join(f"{name} {one['length_bias']:+.2f}" for name, one in judges.items())
    return rows, (
        f"Agreement with clicks: {agreement}. AUC of the other pairs: {others}. Half a list, in "
        f"standard deviations: {halved}; reversed: 0."
    )


def of_worlds() -> dict[str, float]:
    """Judge planted lists of worlds with known good ones; the worst AUC of the seeds, by kind."""
    found: dict[str, list[float]] = {kind: [] for kind in BY_RUBRIC}
    for seed in SEEDS:
        known, good, users = world(seed)
        planted = planted_lists(good, users, known, torch.Generator().manual_seed(seed))
        rubrics = rubrics_of(known)
        for kind, lists in planted.items():
            rubric = rubrics[BY_RUBRIC[kind]]
            scores = (rubric(one, users, known) for one in (good, lists))
            found[kind].append(separation(*scores))
    return {kind: min(aucs) for kind, aucs in found.items()}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--workspace", type=Path, default=Path("runs/movielens-100k"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, notes = measured(options.workspace)
    notes = (
        f"943 users, lists of 10 of the served ranker on validation, ten models' lists for the "
        f"agreement (intervals over users, 95%); of the worlds the worst of three seeds. {notes}"
    )
    write_results("judges", rows, notes=notes)


if __name__ == "__main__":
    main()
