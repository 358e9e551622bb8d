"""Stage build_features: hand the raw tables to features/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from features.build import FeaturesConfig, SourceConfig
from features.build import build_features as build
from pipelines.config.run import RunConfig
from pipelines.engine.forgotten import forgotten_users, list_path
from pipelines.engine.memory import free_memory
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.exported import list_parts

NO_VALUES = {"value": ""}
"""A price or a number of seconds is no rating, which the value of an event is elsewhere."""


def raw_files(config: RunConfig) -> Mapping[str, Path]:
    """List the raw files that shape the artefact."""
    online = {f"online_events[{path.name}]": path for path in online_files(config)}
    forgotten = list_path(config)
    return {
        **config.data.files(),
        **online,
        **({"forgotten": forgotten} if forgotten.exists() else {}),
    }


def online_files(config: RunConfig) -> list[Path]:
    """List the files of what a server collected."""
    folder = config.data.online_events
    return [] if folder is None else list_parts(Path(folder))


def features_config(config: RunConfig) -> FeaturesConfig:
    """Put the run's sections together as features/ takes them."""
    data, online = config.data, tuple(online_files(config))
    splits, features = config.splits, config.features
    if not config.auto.enabled:
        # Only an automatic run lets the log decide.
        splits = replace(splits, kind="leave_one_out") if splits.kind == "auto" else splits
        if features.catalogue_only_items == "auto":
            features = replace(features, catalogue_only_items=False)
    return FeaturesConfig(
        events=data.source(data.event_paths(), data.columns),
        online_events=SourceConfig(paths=online, columns=NO_VALUES) if online else None,
        items=data.source(data.item_paths(), data.item_columns) if data.items else None,
        users=data.source((Path(data.users),), data.user_columns) if data.users else None,
        filters=config.filters,
        splits=splits,
        forgotten=forgotten_users(config),
        target_types=config.evaluation.target_types,
        **vars(features),
    )


def build_features(context: StageContext) -> StageRows:
    """Build the features artefact; its report.json counts the rows left out, with reasons."""
    config = features_config(context.config)
    report = build(config, context.output, memory=free_memory())
    return StageRows(
        rows_in=report.rows_in,
        rows_out=report.events,
        more={
            "users": report.users,
            "items": report.items,
            "quarantined": sum(report.quarantined.values()),
        },
    )
