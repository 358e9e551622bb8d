"""Stages of an increment, under the names of a full run's, whose other stages read them.

``fit_blend`` is the served bundle's; so are the weights of generative model and ranker, with rows
for new items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from features.build import build_features as build
from features.schema import NewestSplit
from pipelines.engine.artifacts import to_json
from pipelines.engine.memory import free_memory
from pipelines.engine.stage import Stage, StageContext, StageRows
from pipelines.engine.workspace import RELEASED
from pipelines.publishing.released import Released, link_tree
from pipelines.stages.build_features import features_config
from pipelines.stages.list import STAGES
from pipelines.update.models import train_sequence, train_two_tower
from pipelines.update.served import embed_items, train_generative, train_ranker
from recsys.fitting.queries import GIVEN

CARRIED = ("fit_blend",)
"""Stages whose artefacts are those of the served bundle."""
FITTED = ("fit_baselines", "train_two_tower", "train_sequence", "train_generative")
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


def refit(context: StageContext) -> StageRows:
    """Take the models as they were judged; their next training sees the held-out events."""
    found = 0
    for stage in FITTED:
        for model in sorted((context.inputs[stage] / GIVEN).glob("*/")):
            link_tree(model, context.output / model.name)
            found += 1
    return StageRows(rows_in=found, rows_out=found)


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
