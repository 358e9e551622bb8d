"""What other presets and automatic plans start from: defaults for any size of data."""

from __future__ import annotations

from pathlib import Path

from pipelines.config.run import EvaluationConfig, RunConfig, SearchConfig, TwoTowerTrainingConfig
from recsys.models.configs import EaseWeightsConfig, PopularityConfig, TwoTowerConfig
from recsys.training.optim import ScheduleConfig


def shop() -> RunConfig:
    """Popularity, item-to-item, content and the two-tower."""
    return RunConfig(
        workspace=Path("runs/shop"),
        evaluation=EvaluationConfig(max_users=100_000),
        popularity=PopularityConfig(half_life_days=60.0),
        ease=EaseWeightsConfig(enabled=True),
        search=SearchConfig(enabled=True),
        two_tower=TwoTowerConfig(embedding_dim=64),
        two_tower_training=TwoTowerTrainingConfig(
            batch_size=256,
            max_epochs=20.0,
            max_steps=20_000,
            schedule=ScheduleConfig(learning_rate=2e-3),
        ),
    )
