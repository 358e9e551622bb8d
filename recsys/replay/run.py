"""Replay a log: the warm-up, the first judged step, then every policy side by side.

Axes: none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from recsys.replay.blending import serve
from recsys.replay.fits import REPLAYED, Replay, Say, Unit, run_step, run_unit, units_of
from recsys.replay.folder import FIRST, WARM_UP, ReplayFolder, read_json, write_json
from recsys.replay.queries import save_events
from recsys.replay.steps import ReplayConfig
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.recipe import Recipe
from recsys.reproduction.run import LEDGER, RunSettings, note_test_look

DESCRIPTION = "replay.json"
Task = tuple[Replay, Unit]
Elsewhere = Callable[[Callable[[Task], list[str]], Iterable[Task]], Iterator[list[str]]]
"""Applies a function to tasks on other machines and hands the results back."""


def replay_of(
    prepared: Prepared,
    config: ReplayConfig,
    folder: Path,
    *,
    order: str,
    seed: int = 0,
    device: str = "auto",
) -> Replay:
    """Describe a replay, and its folder.

    Raises:
        ValueError: The folder holds another replay, or a model cannot be replayed.
    """
    replay = Replay(
        prepared=prepared,
        config=config,
        models=config.models or models_of(prepared.recipe),
        order=order,
        seed=seed,
        device=device,
        folder=ReplayFolder(folder),
    )
    settings = asdict(replace(config, jobs=1))
    document: dict[str, Any] = {
        "data_set": prepared.name,
        "data_digest": prepared.data_digest,
        "recipe": prepared.recipe.digest(),
        "order": order,
        "seed": seed,
        "config": settings,
        "steps": [asdict(step) for step in replay.steps],
    }
    text = json.dumps(document, sort_keys=True)
    document["digest"] = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / DESCRIPTION
    if path.exists() and read_json(path)["digest"] != document["digest"]:
        raise ValueError(
            f"{folder} holds a replay of other data or settings ({path} has digest "
            f"{read_json(path)['digest']}, this one {document['digest']}); name another folder, "
            "or delete that one"
        )
    if not path.exists():
        # Steps are held out from whoever chooses settings, so each replay is a look at them.
        look = RunSettings(order=order, seed=seed, why="recsys backtest")
        note_test_look(folder / LEDGER, prepared, look)
    write_json(path, document)
    return replay


def models_of(recipe: Recipe) -> tuple[str, ...]:
    """Name a recipe's models of profile ``fast``."""
    return tuple(name for name in REPLAYED if name in recipe.sources)


def run(replay: Replay, say: Say, elsewhere: Elsewhere | None = None) -> None:
    """Do what is not done yet: fits, lists, blends.

    Args:
        replay: What is replayed.
        say: Writes a line of the log.
        elsewhere: Runs units on other machines, which see the replay's folder at the same path.
    """
    write_queries(replay)
    for number, policy in ((0, WARM_UP), (1, FIRST)):
        if not replay.folder.is_done(number, policy):
            run_step(replay, policy, number)
            seconds = read_json(replay.folder.done(number, policy))["seconds"]
            say(f"{policy} models: {seconds:,.1f} s")
    units = [unit for unit in units_of(replay) if any(_open(replay, unit))]
    if elsewhere is not None:
        for lines in elsewhere(unit_lines, [(replay, unit) for unit in units]):
            for line in lines:
                say(line)
    elif replay.config.jobs > 1 and len(units) > 1:
        in_processes(replay, units, say)
    else:
        for unit in units:
            run_unit(replay, unit, say)
    for policy in replay.config.policies:
        serve(replay, policy)
    shutil.rmtree(replay.folder.path / "checkpoints", ignore_errors=True)


def _open(replay: Replay, unit: Unit) -> Iterator[int]:
    """List a unit's steps that are not done."""
    return (number for number in unit.numbers if not replay.folder.is_done(number, unit.policy))


def write_queries(replay: Replay) -> None:
    """Write events and queries, which peers read."""
    events = replay.folder.path / "events.npz"
    if not events.exists():
        save_events(replay.timeline, events)
    for step in replay.steps:
        path = replay.folder.queries(step.number)
        if not path.exists():
            replay.queries(step).save(path)


def in_processes(replay: Replay, units: list[Unit], say: Say) -> None:
    """Run units in processes of their own; the first error ends all of them."""
    threads = max(1, (os.cpu_count() or 1) // replay.config.jobs)
    context = get_context("spawn")
    with ProcessPoolExecutor(replay.config.jobs, mp_context=context) as processes:
        running = [processes.submit(_unit, replay, unit, threads) for unit in units]
        try:
            for done in as_completed(running):
                for line in done.result():
                    say(line)
        except BaseException:
            processes.shutdown(wait=False, cancel_futures=True)
            raise


def _unit(replay: Replay, unit: Unit, threads: int) -> list[str]:
    torch.set_num_threads(threads)
    return unit_lines((replay, unit))


def unit_lines(task: Task) -> list[str]:
    """Run a unit and return what it has to say."""
    replay, unit = task
    lines: list[str] = []
    run_unit(replay, unit, lines.append)
    return lines
