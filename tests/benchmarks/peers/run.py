"""Fit a peer for each step of a backtest and write its lists beside ours.

    python -m tests.benchmarks.peers.run FOLDER --peer ease bm25 [--steps 1 2 3] [--tune]

A peer is fitted on all events before the step, ranks all candidates for every query without the
query's history, and short lists are filled with what is popular. A step that has its file is
skipped. Where a peer fails, ``peer.<row>.error.txt`` says why and the next step follows, whether
it raised an exception or its process was ended.

``--tune`` chooses settings with Optuna on the warm-up step, as ours are, and names the row
``<peer>_tuned``. ``--refit-every 3`` keeps a model for three steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.peers.folder import WARM_UP, Backtest, Rows
from tests.benchmarks.peers.named import PEERS, PROJECT, Peer, named
from tests.benchmarks.peers.ranking import check, filled, ndcg

ENVIRONMENTS = Path(__file__).parents[1] / ".peers"
ROOT = Path(__file__).parents[3]
TUNING = "rectools"
"""The environment in which peers of the project's are tuned."""


def python_of(peer: Peer, environments: Path, *, tune: bool = False) -> str:
    """Give the Python that a peer runs with; the project's has no Optuna to tune with.

    Raises:
        ValueError: Its environment is not made yet.
    """
    name = TUNING if tune and peer.environment == PROJECT else peer.environment
    if name == PROJECT:
        return sys.executable
    python = environments / name / "bin" / "python"
    if not python.exists():
        raise ValueError(
            f"there is no {python}; make it with `python -m tests.benchmarks.peers.environments "
            f"{name} --folder {environments}`"
        )
    return str(python)


def row_of(name: str, tuned: bool) -> str:
    """Name the row of a peer's lists."""
    return name.rpartition(":")[2] + ("_tuned" if tuned else "")


def supervise(options: argparse.Namespace, name: str) -> None:
    """Run a peer in a process of its own, and once more for the steps behind one that ended it."""
    backtest = Backtest(options.folder)
    row = row_of(name, options.tune)
    python = python_of(named(name), options.environments, tune=options.tune)
    left = [step for step in options.steps or backtest.steps() if step > WARM_UP]
    for step in left:
        backtest.error(step, row).unlink(missing_ok=True)
    while left := [step for step in left if not is_done(backtest, step, row)]:
        command = [python, "-m", __spec__.name, str(options.folder), "--inside", "--peer", name]
        command += ["--tune"] if options.tune else []
        command += ["--tune-seconds", str(options.tune_seconds)]
        command += ["--refit-every", str(options.refit_every), "--settings", options.settings]
        command += ["--steps", *map(str, left)]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        code = subprocess.run(command, check=False, env=environment).returncode
        undone = [step for step in left if not is_done(backtest, step, row)]
        if undone:
            backtest.write_error(undone[0], row, f"the process ended with code {code}")


def is_done(backtest: Backtest, step: int, row: str) -> bool:
    """Say whether a step has lists or a reason for none."""
    return backtest.lists(step, row).exists() or backtest.error(step, row).exists()


def run(
    backtest: Backtest,
    row: str,
    peer: Peer,
    settings: Mapping[str, Any],
    steps: Sequence[int],
    *,
    refit_every: int = 1,
) -> None:
    """Fit and rank in this process; an exception is written down and the next model follows.

    A model is kept for ``refit_every`` steps, counted from the first that is judged.
    """
    groups: dict[int, list[int]] = {}
    for step in sorted(steps):
        if not backtest.lists(step, row).exists():
            groups.setdefault(step - (step - 1) % refit_every, []).append(step)
    for fitted_for, group in groups.items():
        try:
            known = backtest.known_before(backtest.queries(fitted_for).begin)
            begin = time.perf_counter()
            fitted = peer.fit(known, settings)
            seconds = time.perf_counter() - begin
        except Exception as error:
            for step in group:
                backtest.write_error(step, row, reason(error))
            continue
        for step in group:
            try:
                rank(backtest, step, row, fitted, seconds if step == group[0] else 0.0, known.begin)
            except Exception as error:
                backtest.write_error(step, row, reason(error))


def rank(
    backtest: Backtest, step: int, row: str, fitted: Any, fit_seconds: float, known_at: int
) -> None:
    """Rank for a step's queries and write the lists."""
    queries = backtest.queries(step)
    begin = time.perf_counter()
    lists = fitted.lists(queries)
    seconds = time.perf_counter() - begin
    check(lists, queries)
    lists = filled(lists, queries, most_popular(backtest, known_at))
    backtest.write_lists(
        step, row, lists, fit_seconds=fit_seconds, rank_seconds=seconds, known_at=known_at
    )
    print(
        f"step {step} {row}: ndcg@10 {ndcg(lists, queries):.4f}, fitted in {fit_seconds:.1f} s, "
        f"ranked in {seconds:.1f} s",
        flush=True,
    )


def most_popular(backtest: Backtest, known_at: int) -> Rows:
    """List all items, most events before a moment first."""
    counts = backtest.known_before(known_at).counts()
    return np.argsort(-counts[1:], kind="stable") + 1


def reason(error: Exception) -> str:
    """Say in one line what failed, and where."""
    traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", nargs="+", required=True, help=", ".join(PEERS))
    parser.add_argument("--steps", nargs="*", type=int, help="all that are judged")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--tune-seconds", type=float, default=300.0)
    parser.add_argument("--refit-every", type=int, default=1)
    parser.add_argument("--settings", default="{}", help="JSON; takes the place of usual settings")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.folder = options.folder.resolve()
    for name in options.peer:
        if not options.inside:
            supervise(options, name)
            continue
        backtest, row, peer = Backtest(options.folder), row_of(name, options.tune), named(name)
        peer = replace(peer, usual={**peer.usual, **json.loads(options.settings)})
        settings: Mapping[str, Any] = peer.usual
        if options.tune:
            from tests.benchmarks.peers.tuning import chosen

            settings = chosen(backtest, row, peer, options.tune_seconds)
        print(f"{row}: {json.dumps(settings)}", flush=True)
        backtest.write_settings(row, settings)
        run(backtest, row, peer, settings, options.steps, refit_every=options.refit_every)


if __name__ == "__main__":
    main()
