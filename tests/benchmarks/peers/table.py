"""Set the peers of a backtest beside what is served, as a table.

    python -m tests.benchmarks.peers.table FOLDER [--write NAME]

Every row's metrics are averages over the judged steps, each of the same weight, as in
``backtest.json``. A row of fewer steps than the others says so; a peer's failures stand below.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.harness import Row, as_table, write_results
from tests.benchmarks.peers.folder import Backtest, Queries, Rows

PEER = "peer."
SERVED = ".served"
DAY = 86_400


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of lists, measured over the steps that it has."""

    name: str
    ndcg: float
    recall: float
    fit_seconds: float
    """Of a step, on average."""
    age_days: float
    """From the moment up to which the model knows events to the step, on average."""
    num_steps: int


def ours(lists: Rows, queries: Queries) -> dict[str, float]:
    """Measure with the project's code."""
    import torch

    from recsys.data.batch import Jagged
    from recsys.evaluation.ranking import list_ranks, per_user_metric

    targets = Jagged(torch.from_numpy(queries.targets), torch.from_numpy(queries.target_offsets))
    ranks = list_ranks(torch.from_numpy(lists), targets)
    return {name: float(per_user_metric(ranks, name).mean()) for name in ("ndcg@10", "recall@10")}


def lists_path(backtest: Backtest, step: int, row: str) -> Path:
    """Where lists of any row lie, ours included."""
    return backtest.path / "steps" / str(step) / "lists" / f"{row}.npz"


def names_of(backtest: Backtest) -> list[str]:
    """Name what is served and all peers that have lists of a judged step."""
    names = {
        path.name.removesuffix(".npz")
        for step in backtest.steps()
        for path in lists_path(backtest, step, "").parent.glob("*.npz")
        if ".part." not in path.name
    }
    return sorted(name for name in names if name.startswith(PEER) or name.endswith(SERVED))


def line_of(backtest: Backtest, name: str) -> Line:
    """Measure a row."""
    means: list[dict[str, float]] = []
    seconds, ages = [], []
    for step in backtest.steps():
        path = lists_path(backtest, step, name)
        if not path.exists():
            continue
        queries = backtest.queries(step)
        with np.load(path, allow_pickle=False) as file:
            means.append(ours(file["item_rows"].astype(np.int64), queries))
            seconds.append(float(file["fit_seconds"]))
            known_at = int(file["known_at"]) if "known_at" in file else queries.begin
            ages.append((queries.begin - known_at) / DAY)
    return Line(
        name=name,
        ndcg=float(np.mean([mean["ndcg@10"] for mean in means])),
        recall=float(np.mean([mean["recall@10"] for mean in means])),
        fit_seconds=float(np.mean(seconds)),
        age_days=float(np.mean(ages)),
        num_steps=len(means),
    )


def failures(backtest: Backtest) -> list[str]:
    """Say where a peer has no lists and why."""
    return [
        f"step {path.parents[1].name}, {path.name.removesuffix('.error.txt')}: "
        f"{path.read_text(encoding='utf-8').strip()}"
        for path in sorted(backtest.path.glob(f"steps/*/lists/{PEER}*.error.txt"))
    ]


def rows_of(lines: Sequence[Line]) -> list[Row]:
    """Write lines as measurements, best first.

    What is served is held to the best peer among those with the most steps.
    """
    lines = sorted(lines, key=lambda line: -line.ndcg)
    most = max((line.num_steps for line in lines), default=0)
    peers = [line for line in lines if line.name.startswith(PEER) and line.num_steps == most]
    rows = []
    for line in lines:
        is_served = line.name.endswith(SERVED) and bool(peers)
        rows += [
            Row(
                name=f"{line.name}: ndcg@10",
                value=round(line.ndcg, 4),
                peer=peers[0].name if is_served else None,
                ratio=line.ndcg / peers[0].ndcg if is_served else None,
            ),
            Row(name=f"{line.name}: recall@10", value=round(line.recall, 4)),
            *fit_row(line),
        ]
    return rows


def fit_row(line: Line) -> list[Row]:
    """The seconds of a fit; what is served is made of rows that have theirs."""
    if line.name.endswith(SERVED):
        return []
    return [Row(name=f"{line.name}: fit", value=round(line.fit_seconds, 1), unit="s")]


def exceptions(lines: Sequence[Line]) -> list[str]:
    """Name the rows of fewer steps, and those whose models were kept for several."""
    most = max((line.num_steps for line in lines), default=0)
    found = []
    for line in lines:
        if line.num_steps < most:
            found.append(f"{line.name} has {line.num_steps} of {most} steps")
        if line.age_days > 0:
            found.append(
                f"{line.name}'s models are {line.age_days:.1f} days old on average as a step begins"
            )
    return found


def notes_of(backtest: Backtest, lines: Sequence[Line]) -> str:
    """Say what was set and what failed."""
    settings = []
    for path in sorted((backtest.path / "peers").glob("*.json")):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        chosen = ""
        if "num_trials" in found:
            chosen = (
                f"; {found['num_trials']} trials of Optuna in {found['seconds']:.0f} s on the "
                f"warm-up, ndcg@10 {found['usual_ndcg@10']:.4f} to {found['ndcg@10']:.4f}"
            )
        settings.append(f"- {path.stem}: {rounded(found['settings'])}{chosen}")
    failed = [f"- {line}" for line in failures(backtest)]
    parts = [
        "Averages of steps. Seconds are of a step's fit on one thread of a shared machine, waiting "
        "included. " + "".join(f"{text}. " for text in exceptions(lines))
    ]
    if settings:
        parts += ["Settings; all others are the library's own:", "\n".join(settings)]
    if failed:
        parts += ["Failed:", "\n".join(failed)]
    return "\n\n".join(parts)


def rounded(settings: Mapping[str, Any]) -> str:
    """Write settings in few digits."""
    words = [
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
    ]
    return ", ".join(words) or "none"


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", help="name of the result in results/peers")
    options = parser.parse_args()
    backtest = Backtest(options.folder)
    lines = [line_of(backtest, name) for name in names_of(backtest)]
    rows, notes = rows_of(lines), notes_of(backtest, lines)
    if options.write:
        write_results(options.write, rows, notes=notes)
    else:
        sys.stdout.write(f"{as_table(rows)}\n\n{notes}\n")


if __name__ == "__main__":
    main()
