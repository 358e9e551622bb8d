"""Amazon reviews 2014, 5-core: short histories, day-resolution times, the literature's protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from features.schema import FeatureChoice, SplitConfig
from pipelines.config.content import BEHAVIOUR, ContentConfig, SemanticIdsConfig
from pipelines.config.run import (
    DataConfig,
    GenerativeTrainingConfig,
    RunConfig,
    SequenceTrainingConfig,
    TwoTowerTrainingConfig,
)
from pipelines.presets.shop import shop
from recsys.models.configs import ContentSimilarityConfig, PopularityConfig, TwoTowerConfig
from recsys.models.generative.config import GenerativeConfig, TeachingConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.replay.steps import ReplayConfig
from recsys.retrieval.blend.config import BlendConfig
from recsys.training.optim import ScheduleConfig

MEANING = 384
"""Columns of MiniLM's vectors; hashed words follow them."""


def amazon_beauty() -> RunConfig:
    """Beauty, in the literature's order and with tied days shuffled."""
    return replace(
        shop(),
        workspace=Path("runs/amazon-beauty"),
        data=DataConfig(dataset="amazon-beauty"),
        splits=SplitConfig(tie_orders=("given", "shuffled")),
        features=FeatureChoice(context_features=()),
        content=ContentConfig(encoder="minilm+words"),
        # Codes group items with similar users; new items get codes by content.
        semantic_ids=SemanticIdsConfig(source=BEHAVIOUR, content_columns=MEANING),
        content_similarity=ContentSimilarityConfig(columns=MEANING),
        # What sold in the last weeks; a year has a third of its quality in a replay.
        popularity=PopularityConfig(half_life_days=7.0),
        two_tower=TwoTowerConfig(),
        # Two members of the width that one has by default.
        sequence=SequenceConfig(embedding_dim=256, num_members=2, calendar_days=140.0),
        two_tower_training=TwoTowerTrainingConfig(
            max_epochs=12.0, schedule=ScheduleConfig(learning_rate=2e-3)
        ),
        sequence_training=SequenceTrainingConfig(enabled=True),
        # Short histories: what is new needs many passes, what is old few.
        backtest=ReplayConfig(
            new_passes=12.0, new_rate=1.0, replay_share=0.25, continue_from="full"
        ),
        # Items by their number of events; new ones at four times the odds, so that they are found.
        blend=BlendConfig(item_bounds=(5.0, 20.0), new_item_odds=4.0),
        # 98 in 100 histories are no longer, and a step costs by the longest. What a sequence model
        # expects is smooth already.
        generative=GenerativeConfig(
            max_length=30,
            items="codes_vectors",
            carries_place=True,
            dense_weight=0.0,
            dropout=0.1,
            label_smoothing=0.0,
        ),
        generative_training=GenerativeTrainingConfig(
            enabled=True,
            max_epochs=20.0,
            epochs_per_evaluation=5.0,
            warmup_share=0.1,
            schedule=ScheduleConfig(learning_rate=2e-3, decay="linear", final_share=0.02),
            precision="float32",
            teaching=TeachingConfig(share=1.0, dropped_events=0.4),
        ),
    )


def amazon_sports() -> RunConfig:
    """Sports and Outdoors; half as many windows again, so fewer passes over them."""
    beauty = amazon_beauty()
    return replace(
        beauty,
        generative_training=replace(beauty.generative_training, max_epochs=12.0),
        workspace=Path("runs/amazon-sports"),
        data=DataConfig(dataset="amazon-sports"),
    )


def amazon_toys() -> RunConfig:
    """Toys and Games: no times, so one order; attributes are numbers, which say nothing as text."""
    return replace(
        amazon_beauty(),
        workspace=Path("runs/amazon-toys"),
        data=DataConfig(dataset="amazon-toys"),
        content=ContentConfig(encoder="minilm+words", text_columns=("title",)),
    )
