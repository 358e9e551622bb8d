"""Stage build_features: hand the raw tables to features/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from features.build import FeaturesConfig
from features.build import build_features as build
from features.schema import SourceConfig
from pipelines.config.run import DataConfig, RunConfig
from pipelines.engine.stage import StageContext, StageRows


def raw_files(config: RunConfig) -> Mapping[str, Path]:
    """Name the raw files that shape the artefact."""
    return config.data.files()


def source(data: DataConfig, paths: tuple[Path, ...], columns: Mapping[str, str]) -> SourceConfig:
    """Describe the files of one table."""
    return SourceConfig(
        paths=paths,
        columns=columns,
        separator=data.separator,
        time_unit=data.time_unit,
        time_format=data.time_format,
        decimal_comma=data.decimal_comma,
        time_zone=data.time_zone,
        list_separator=data.list_separator,
    )


def features_config(config: RunConfig) -> FeaturesConfig:
    """Put the run's sections together as features/ takes them."""
    data, choice = config.data, config.features
    return FeaturesConfig(
        events=source(data, data.event_paths(), data.columns),
        items=source(data, (data.items,), data.item_columns) if data.items else None,
        users=source(data, (data.users,), data.user_columns) if data.users else None,
        filters=config.filters,
        splits=config.splits,
        user_columns=choice.user_columns,
        context_features=choice.context_features,
        catalogue_only_items=choice.catalogue_only_items,
        write_events=choice.write_events,
        seed=config.seed,
    )


def build_features(context: StageContext) -> StageRows:
    """Build the features artefact; what was left out and why goes into its report.json."""
    report = build(features_config(context.config), context.output)
    return StageRows(
        rows_in=report.rows_in,
        rows_out=report.events,
        more={
            "users": report.users,
            "items": report.items,
            "quarantined": sum(report.quarantined.values()),
        },
    )
