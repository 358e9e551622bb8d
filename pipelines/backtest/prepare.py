"""Read the arrays and settings that models are replayed and tuned on.

The stages up to the content run in a workspace of their own, so a second call finds them done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import polars as pl

from features.schema import TieOrder
from pipelines.config.run import RunConfig
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.inputs.tensors import read_inputs, retrieval_settings
from pipelines.presets.resolve import with_dataset
from pipelines.stages.list import STAGES
from pipelines.training.fitters import settings_of
from recsys.data.durable import digest_of_file
from recsys.models.names import BY_NAME
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import of_first
from recsys.replay.experiment import PreparedData, Recipe
from recsys.training.passes import TrainingConfig
from serving.surfaces import HOME

PREPARING = ("build_features", "enrich_items", "embed_items")
DIGITS = 16
ORDER: TieOrder = "given"
ORDER_COLUMNS = ("sequence_index", "event_time")


def events_digest(path: Path) -> str:
    """Hash the raw events by user, item and order, independent of their file format."""
    events = pl.read_parquet(path)
    order = [name for name in ORDER_COLUMNS if name in events.columns]
    kept = events.select("user_id", "item_id", *order).sort("user_id", *order, "item_id")
    text = kept.select(pl.all().cast(pl.String)).write_csv(include_header=False, null_value="")
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def files_digest(paths: Sequence[Path]) -> str:
    """Hash files of events by their bytes."""
    digests = "".join(digest_of_file(path) for path in paths)
    return hashlib.sha256(digests.encode()).hexdigest()[:DIGITS]


def recipe_of(config: RunConfig, models: Sequence[str]) -> Recipe:
    """Return the settings of some models in a run's configuration."""
    settings, trainings = {}, {}
    for one in map(BY_NAME.__getitem__, models):
        own = settings_of(one, config)
        # All members are of profile full, which is not replayed.
        settings[one.name] = of_first(own) if isinstance(own, SequenceConfig) else own
        if one.training:
            trainings[one.name] = only_training(getattr(config, one.training))
    return Recipe(
        models=settings,
        trainings=trainings,
        blend=config.blend,
        fusion_weights=dict(HOME.weights),
        metric=config.evaluation.primary_metric,
        retrieval=retrieval_settings(config),
    )


def only_training(training: TrainingConfig) -> TrainingConfig:
    """Leave out whether a stage is switched on."""
    return TrainingConfig(
        **{field.name: getattr(training, field.name) for field in fields(TrainingConfig)}
    )


def prepare(name: str, config: RunConfig, *, show_progress: bool) -> PreparedData:
    """Run the preparing stages and read what they made."""
    config = with_dataset(config)
    events = config.data.event_paths()
    run_stages(pick_stages(STAGES, PREPARING, None), config, show_progress=show_progress)
    return PreparedData(
        name=name,
        data_digest=events_digest(events[0]) if config.data.dataset else files_digest(events),
        recipe=recipe_of(config, config.backtest.models),
        inputs=read_inputs(
            config.workspace / "build_features", config.workspace / "embed_items", ORDER
        ),
    )
