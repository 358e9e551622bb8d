"""Run an increment in a workspace of its own below the shop's.

<workspace>/update/
  released/                    what the served bundle was made from
  fit_blend/, train_ranker/    of the served bundle, as they are
  build_features/ ... release/ of the increment
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import Manifest, begin, commit
from pipelines.engine.runner import StageOutcome, StageRecorder, run_stages
from pipelines.engine.workspace import RELEASED, DailyState, Workspace, bundles_dir
from pipelines.publishing.released import Released, link_tree
from pipelines.update.stages import CARRIED, update_stages


def update_config(config: RunConfig) -> RunConfig:
    """Set an increment up: its own workspace, no intervals.

    A champion's metrics on another day say nothing about this one, so only the comparison on the
    same queries counts.
    """
    return replace(
        config,
        workspace=DailyState(config.workspace).update,
        splits=replace(config.splits, kind="leave_one_out"),
        evaluation=replace(config.evaluation, num_resamples=0),
        release=replace(config.release, bundles=bundles_dir(config), max_drop_from_champion=1.0),
    )


def lay_out(workspace: Workspace, base: Path) -> None:
    """Put what the served bundle was made from where the stages look for it.

    The caller holds the workspace's lock.
    """
    served, here = Released.read(base), Released.read(workspace.stage(RELEASED))
    if served == here and workspace.manifest(RELEASED) is not None:
        return
    final = workspace.stage(RELEASED)
    partial = begin(final)
    for path in sorted(base.iterdir()):
        if path.is_dir():
            link_tree(path, partial / path.name)
        else:
            shutil.copy2(path, partial / path.name)
    manifest = Manifest(stage=RELEASED, inputs={}, config={}, versions={}, rows={}, files={})
    commit(partial, final, manifest=replace(manifest, rows={"in": 0, "out": 0}), run={})
    for name in CARRIED:
        carried = workspace.stage(name)
        shutil.rmtree(carried, ignore_errors=True)
        if (base / name).exists():
            link_tree(base / name, carried)


def run_update(
    config: RunConfig,
    base: Path,
    *,
    show_progress: bool = False,
    recorder: StageRecorder | None = None,
    finished: Callable[[StageOutcome], None] = lambda _outcome: None,
) -> list[StageOutcome]:
    """Continue the served models on new events, judge them, and release them if they pass.

    Raises:
        WorkspaceBusyError: Another increment runs.
        RefusedError: A release check did not pass.
    """
    settings = update_config(config)
    workspace = Workspace(settings.workspace)
    with workspace.lock():
        lay_out(workspace, base)
    return run_stages(
        update_stages(), settings, show_progress=show_progress, recorder=recorder, finished=finished
    )
