"""Prepare the arrays and settings that models are replayed and tuned on.

The stages up to the content run in a workspace of their own, so a second call finds them done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from features.schema import SplitConfig
from pipelines.candidates.load import list_models
from pipelines.config.run import OWN_DATA, RunConfig, TrainingConfig
from pipelines.engine.forgotten import list_path
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.inputs.snapshots import with_snapshots
from pipelines.inputs.tensors import read_inputs, retrieval_settings
from pipelines.presets.resolve import with_dataset, with_online_events
from pipelines.stages.list import STAGES
from pipelines.training.fitters import is_on, own_settings
from recsys.data.durable import digest_of_file
from recsys.models.names import CONTENT
from recsys.models.sequence.members import SequenceConfig, of_first
from recsys.replay.experiment import PreparedData, Recipe, is_replayed
from serving.surfaces import HOME

WORKSPACE = "workspace"
PREPARING = ("build_features", "enrich_items", "embed_items")
DIGITS = 16


def files_digest(paths: Sequence[Path]) -> str:
    """Hash files of events by their bytes."""
    digests = "".join(digest_of_file(path) for path in paths)
    return hashlib.sha256(digests.encode()).hexdigest()[:DIGITS]


def build_recipe(config: RunConfig, models: Sequence[str]) -> Recipe:
    """Return the settings of some models in a run's configuration."""
    settings, trainings = {}, {}
    specs = {one.name: one for one in list_models(config)}
    for one in map(specs.__getitem__, models):
        own = own_settings(one, config)
        # All members are of profile full, which is not replayed.
        settings[one.name] = of_first(own) if isinstance(own, SequenceConfig) else own
        if one.names.training:
            trainings[one.name] = only_training(getattr(config, one.names.training))
    return Recipe(
        models=settings,
        trainings=trainings,
        blend=config.blend,
        fusion_weights=dict(HOME.weights),
        metric=config.evaluation.primary_metric,
        retrieval=retrieval_settings(config),
        outside={name: at for name, at in config.outside_models().items() if name in models},
    )


def only_training(training: TrainingConfig) -> TrainingConfig:
    """Leave out whether a stage is switched on."""
    return TrainingConfig(
        **{field.name: getattr(training, field.name) for field in fields(TrainingConfig)}
    )


def replayed_models(config: RunConfig) -> tuple[str, ...]:
    """List the models of profile ``fast`` that a run fits."""
    known = [one.names for one in list_models(config) if is_replayed(one.names)]
    names = [one.name for one in known]
    if wrong := set(config.backtest.models) - set(names):
        raise ValueError(
            f"backtest.models has {', '.join(sorted(wrong))}, which cannot be replayed; it may "
            f"name {', '.join(names)}"
        )
    if config.backtest.models:
        return config.backtest.models
    return tuple(one.name for one in known if is_on(one, config))


def replayed_config(config: RunConfig, folder: Path) -> RunConfig:
    """Take what a replay needs of a run's configuration, in a workspace of its own."""
    if config.sequence.trained_apart and "incremental" in config.backtest.policies:
        raise ValueError(
            "backtest.policies has incremental, and members of the sequence model that are "
            "trained apart cannot be continued; set sequence.trained_apart = false, or "
            'backtest.policies = ["full", "never"]'
        )
    return replace(
        config,
        workspace=folder / WORKSPACE,
        data=replace(config.data, forgotten=list_path(config)),
        auto=replace(config.auto, enabled=False),
        splits=SplitConfig(),
        semantic_ids=replace(config.semantic_ids, method="none"),
        generative_training=replace(config.generative_training, enabled=False),
        backtest=replace(config.backtest, models=replayed_models(config)),
    )


def prepare_replay(config: RunConfig, folder: Path, *, show_progress: bool) -> PreparedData:
    """Run the preparing stages, and read the arrays and settings of a replay."""
    config = with_online_events(replayed_config(config, folder))
    name = config.data.dataset or OWN_DATA
    config = with_dataset(with_snapshots(config))
    events = config.data.event_paths()
    run_stages(pick_stages(STAGES, PREPARING, None), config, show_progress=show_progress)
    inputs = read_inputs(config.workspace / "build_features", config.workspace / "embed_items")
    # Without texts there is no content to compare.
    has_content = bool((inputs.catalogue.content[1:] != 0).any())
    models = [one for one in config.backtest.models if has_content or one != CONTENT.name]
    return PreparedData(
        name=name,
        data_digest=files_digest(events),
        recipe=build_recipe(config, models),
        inputs=inputs,
    )
