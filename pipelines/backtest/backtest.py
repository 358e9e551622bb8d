"""Replay a run's past, and write the measurements as a document and a page.

<workspace>/backtest/
  workspace/       the stages that prepare the arrays
  steps/, ...      the replay, see recsys/replay/folder.py
  backtest.json    metrics of every policy and source by step, summary
  backtest.html    the page
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.backtest.prepare import prepare_replay
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import write_json
from recsys.data.durable import locked
from recsys.replay.fits import Replay
from recsys.replay.measures import measure_replay, moment_text
from recsys.replay.replay import describe_replay
from recsys.replay.replay import run as run_replay

FOLDER = "backtest"
DOCUMENT, PAGE = "backtest.json", "backtest.html"
LOCK = ".backtest.lock"


@dataclass(frozen=True)
class Backtest:
    """Folder, document and page of a finished backtest."""

    folder: Path
    document: dict[str, Any]
    page: Path


def backtest(
    config: RunConfig, folder: Path, say: Callable[[str], None], *, show_progress: bool
) -> Backtest:
    """Replay the remaining steps, measure, and write the page."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK):
        prepared = prepare_replay(config, folder, show_progress=show_progress)
        replay = describe_replay(
            prepared,
            replace(config.backtest, models=tuple(prepared.recipe.models)),
            folder,
            seed=config.seed,
            device=config.device,
        )
        for line in plan_lines(replay):
            say(line)
        run_replay(replay, say)
        return write(replay)


def write(replay: Replay) -> Backtest:
    """Measure a finished replay and write its document and page."""
    from pipelines.pages.backtest import backtest_page, state_results
    from pipelines.pages.file import write_page

    folder = replay.folder.path
    document = measure_replay(replay)
    page = backtest_page(document)
    document["words"] = state_results(page)
    write_json(folder / DOCUMENT, document)
    write_page(page, folder / PAGE)
    return Backtest(folder, document, folder / PAGE)


def plan_lines(replay: Replay) -> list[str]:
    """Describe the steps and models of a replay."""
    steps, config = replay.steps, replay.config
    first, last = (moment_text(at)[:10] for at in (steps[1].begin, steps[-1].end))
    lines = [
        f"{len(steps) - 1} steps from {first} to {last}, after a warm-up step: "
        + ", ".join(config.policies),
        f"models: {', '.join(replay.models)}",
    ]
    missing = config.num_steps - (len(steps) - 1)
    if missing > 0:
        lines.append(
            f"note: {config.num_steps} steps were requested; the log's timestamps allow "
            f"{len(steps) - 1}"
        )
    return lines
