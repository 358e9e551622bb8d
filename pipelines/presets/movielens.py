"""MovieLens: films, many events a person, times to the second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from features.schema import FeatureChoice
from pipelines.config.adapter import AdapterConfig
from pipelines.config.content import BEHAVIOUR, SemanticIdsConfig
from pipelines.config.ranker import RankerTrainingConfig
from pipelines.config.run import (
    DataConfig,
    GenerativeTrainingConfig,
    RunConfig,
    SearchConfig,
    SequenceTrainingConfig,
    TwoTowerTrainingConfig,
)
from pipelines.presets.shop import shop
from recsys.models.configs import ItemToItemConfig, PopularityConfig, TwoTowerConfig
from recsys.models.generative.config import GenerativeConfig
from recsys.models.ranker.config import RankerConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.training.optim import AdamWConfig, ScheduleConfig


def movielens_100k() -> RunConfig:
    """MovieLens-100K, small enough for a demo on two cores."""
    return replace(
        shop(),
        workspace=Path("runs/movielens-100k"),
        data=DataConfig(dataset="movielens-100k"),
        features=FeatureChoice(user_columns=("age", "gender", "occupation"), context_features=()),
        popularity=PopularityConfig(half_life_days=30.0),
        two_tower=TwoTowerConfig(
            embedding_dim=64,
            hidden_dim=128,
            max_history=10,
            dropout=0.2,
            content_weight=1.0,
            temperature=0.1,
            num_uniform_negatives=512,
        ),
        two_tower_training=TwoTowerTrainingConfig(
            batch_size=512,
            max_epochs=3.0,
            epochs_per_evaluation=1.5,
            schedule=ScheduleConfig(learning_rate=1.2e-2),
            refit_epochs=1.0,
        ),
        sequence=SequenceConfig(
            embedding_dim=64, hidden_dim=128, dropout=0.2, content_weight=1.0, temperature=0.1
        ),
        sequence_training=SequenceTrainingConfig(
            enabled=True,
            batch_size=16,
            max_epochs=4.0,
            schedule=ScheduleConfig(learning_rate=4e-3),
            refit_epochs=1.0,
        ),
        semantic_ids=SemanticIdsConfig(source=BEHAVIOUR),
        ranker=RankerConfig(
            # No trunk of equal compute differs from another; this one's experts are in the report.
            trunk="sparse",
            embedding_dim=16,
            key_dim=16,
            hidden_dim=16,
            head_dim=49,
            num_cross_layers=1,
            max_history=20,
            dropout=0.1,
            id_dropout=0.95,
        ),
        # For the time: few held-back events, one pass, retrievers refitted by a quarter of theirs.
        ranker_training=RankerTrainingConfig(
            enabled=True, max_epochs=1.0, max_held_back=5, max_queries=1_000, refit_share=1 / 4
        ),
        search=SearchConfig(enabled=True, num_steps=100),
        adapter=AdapterConfig(
            domains=("classics",),
            rank=4,
            batch_size=64,
            max_epochs=2.0,
            schedule=ScheduleConfig(learning_rate=2e-3),
        ),
        # Generating is the dearest part on two cores: one block and one pass say how it works.
        generative=GenerativeConfig(embedding_dim=64, hidden_dim=128, num_layers=1, dropout=0.1),
        generative_training=GenerativeTrainingConfig(
            enabled=True,
            batch_size=16,
            max_epochs=1.0,
            validation_users=200,
            schedule=ScheduleConfig(learning_rate=4e-3),
            refit_epochs=0.5,
        ),
    )


def movielens_1m() -> RunConfig:
    """MovieLens-1M; its mirror has an order but no times."""
    return replace(
        movielens_100k(),
        workspace=Path("runs/movielens-1m"),
        adapter=AdapterConfig(),
        ranker_training=RankerTrainingConfig(),
        search=SearchConfig(enabled=True),
        data=DataConfig(dataset="movielens-1m"),
        features=FeatureChoice(
            user_columns=("age_group", "gender", "occupation"), context_features=()
        ),
        # A list of films follows an order, so what came later counts, and counts by how soon.
        item_to_item=ItemToItemConfig(
            window=14,
            distance_power=1.0,
            reverse_weight=0.0,
            source_power=0.7,
            target_power=0.3,
            history_power=1.0,
        ),
        two_tower_training=TwoTowerTrainingConfig(
            batch_size=1024, max_epochs=20.0, schedule=ScheduleConfig(learning_rate=2e-3)
        ),
        # Six networks of 256, attention and HSTU in turn; profile fast queries the first alone.
        sequence=SequenceConfig(
            embedding_dim=6 * 256,
            num_members=6,
            member_blocks=("attention", "hstu") * 3,
            trained_apart=True,
            fast_members=1,
            hidden_dim=512,
            max_length=200,
            num_blocks=4,
            num_heads=4,
            dropout=0.3,
            id_dropout=0.05,
            temperature=0.06,
            label_smoothing=0.05,
        ),
        sequence_training=SequenceTrainingConfig(
            enabled=True,
            batch_size=128,
            max_epochs=30.0,
            epochs_per_evaluation=3.0,
            optimizer=AdamWConfig(weight_decay=0.3, matrices="orthogonal"),
        ),
        generative=GenerativeConfig(max_length=200, dropout=0.2),
        generative_training=GenerativeTrainingConfig(
            enabled=True,
            batch_size=128,
            max_epochs=20.0,
            epochs_per_evaluation=5.0,
            schedule=ScheduleConfig(learning_rate=2e-3, decay="linear", final_share=0.02),
            precision="float32",
        ),
    )
