"""Amazon reviews 2014, 5-core: short histories, day-resolution times, the literature's protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from features.schema import SplitConfig
from pipelines.config import (
    ContentConfig,
    DataConfig,
    FeatureChoice,
    RunConfig,
    SequenceTrainingConfig,
    TrainingConfig,
)
from pipelines.presets.shop import shop
from recsys.models.popularity import PopularityConfig
from recsys.models.two_tower import TwoTowerConfig
from recsys.training.optim import ScheduleConfig


def amazon_beauty() -> RunConfig:
    """Beauty, in the literature's order and with tied days shuffled."""
    return replace(
        shop(),
        workspace=Path("runs/amazon-beauty"),
        data=DataConfig(dataset="amazon-beauty"),
        splits=SplitConfig(tie_orders=("given", "shuffled")),
        features=FeatureChoice(context_features=()),
        popularity=PopularityConfig(),
        two_tower=TwoTowerConfig(),
        training=TrainingConfig(max_epochs=12.0, schedule=ScheduleConfig(learning_rate=2e-3)),
        sequence_training=SequenceTrainingConfig(enabled=True),
    )


def amazon_sports() -> RunConfig:
    """Sports and Outdoors."""
    return replace(
        amazon_beauty(),
        workspace=Path("runs/amazon-sports"),
        data=DataConfig(dataset="amazon-sports"),
    )


def amazon_toys() -> RunConfig:
    """Toys and Games: no times, so one order; attributes are numbers, which say nothing as text."""
    return replace(
        amazon_beauty(),
        workspace=Path("runs/amazon-toys"),
        data=DataConfig(dataset="amazon-toys"),
        content=ContentConfig(text_columns=("title",)),
    )
