"""From a run's configuration to the arrays that a replay fits its models on.

The stages that prepare them run in a workspace of the replay's own, so a run beside it is not
disturbed, and a second call finds them done.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from features.schema import SplitConfig
from pipelines.backtest.prepare import ORDER, prepare, recipe_of
from pipelines.config.run import OWN_DATA, RunConfig
from pipelines.engine.forgotten import list_path
from pipelines.presets.resolve import with_online_events
from pipelines.training.fitters import is_on
from recsys.models.names import BY_NAME, CONTENT
from recsys.replay.experiment import REPLAYED, PreparedData

WORKSPACE = "workspace"


def models_of(config: RunConfig) -> tuple[str, ...]:
    """List the models of profile ``fast`` that a run fits."""
    if wrong := set(config.backtest.models) - set(REPLAYED):
        raise ValueError(
            f"backtest.models has {', '.join(sorted(wrong))}, which cannot be replayed; it may "
            f"name {', '.join(REPLAYED)}"
        )
    if config.backtest.models:
        return config.backtest.models
    return tuple(name for name in REPLAYED if is_on(BY_NAME[name], config))


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
        splits=SplitConfig(tie_orders=(ORDER,)),
        semantic_ids=replace(config.semantic_ids, method="none"),
        generative_training=replace(config.generative_training, enabled=False),
        backtest=replace(config.backtest, models=models_of(config)),
    )


def arrays_of(config: RunConfig, folder: Path, *, show_progress: bool) -> PreparedData:
    """Prepare the arrays of a replay."""
    config = with_online_events(replayed_config(config, folder))
    prepared = prepare(config.data.dataset or OWN_DATA, config, show_progress=show_progress)
    # Without texts there is no content to compare.
    has_content = bool((prepared.inputs.catalogue.content[1:] != 0).any())
    models = config.backtest.models
    if not has_content:
        models = tuple(name for name in models if name != CONTENT.name)
    return replace(prepared, recipe=recipe_of(config, models))
