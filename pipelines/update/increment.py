"""Run an increment in a workspace of its own below the shop's.

<workspace>/update/
  released/                    what the served bundle was made from
  fit_blend/, train_ranker/    of the served bundle, as they are
  build_features/ ... release/ of the increment

Stages have the names of a full run's, whose other stages read them. ``fit_blend`` is the served
bundle's; so are the weights of generative model and ranker, with rows for new items.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from features.build import build_features as build
from features.schema import NewestSplit
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import Manifest, begin, commit, to_json
from pipelines.engine.memory import free_memory
from pipelines.engine.runner import StageOutcome, StageRecorder, run_stages
from pipelines.engine.stage import Stage, StageContext, StageRows
from pipelines.engine.workspace import RELEASED, DailyState, Workspace, bundles_dir
from pipelines.publishing.released import Released, link_tree
from pipelines.stages.build_features import features_config
from pipelines.stages.list import STAGES
from pipelines.update.models import train_sequence, train_two_tower
from pipelines.update.served import FITTED, embed_items, refit, train_generative, train_ranker

CARRIED = ("fit_blend",)
"""Stages whose artefacts are those of the served bundle."""
SINCE = "new_since.json"


def build_features(context: StageContext) -> StageRows:
    """Build the features with the rows of the served bundle; new users and items follow."""
    folder = context.inputs[RELEASED]
    since = Released.load(folder).new_since(context.config.workspace)
    updates = context.config.updates
    config = replace(
        features_config(context.config),
        previous=folder / "build_features",
        newest=NewestSplit(
            since=since,
            share=updates.held_out_share,
            min_users=updates.min_held_out,
            # Drawn by the day, so that no user is held out each time.
            seed=context.config.seed + since,
        ),
        write_events=False,
    )
    report = build(config, context.output, memory=free_memory())
    (context.output / SINCE).write_text(to_json({"since": since}))
    return StageRows(
        rows_in=report.rows_in,
        rows_out=report.events,
        more={"users": report.users, "items": report.items},
    )


OWN: dict[str, Callable[[StageContext], StageRows]] = {
    one.__name__: one
    for one in (
        build_features,
        embed_items,
        train_two_tower,
        train_sequence,
        train_generative,
        train_ranker,
        refit,
    )
}
CHANGED = ("fit_baselines", *OWN)
"""Stages that read the served bundle's run."""
SKIPPED = (*CARRIED, "report", "adapt_domains")


def update_stages() -> list[Stage]:
    """List the stages of an increment, in order."""
    stages = []
    for stage in STAGES:
        if stage.name in SKIPPED:
            continue
        if stage.name not in CHANGED:
            stages.append(stage)
            continue
        stages.append(
            replace(
                stage,
                function=OWN.get(stage.name, stage.function),
                reads=(RELEASED, *(FITTED if stage.name == "refit" else stage.reads)),
                sections=(*stage.sections, "backtest", "updates"),
                reads_if={},
            )
        )
    return stages


def update_config(config: RunConfig) -> RunConfig:
    """Set an increment up in its own workspace.

    A champion's metrics on another day say nothing about this one, so only the comparison on the
    same queries counts.
    """
    return replace(
        config,
        workspace=DailyState(config.workspace).update,
        splits=replace(config.splits, kind="leave_one_out"),
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
