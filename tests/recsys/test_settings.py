"""Settings out of range are refused where they are made; the message names the key."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from recsys.content.config import AttributeConfig, EmbeddingEndpointConfig, EnrichmentConfig
from recsys.data.batch import Jagged, JaggedBatch
from recsys.evaluation.config import PairedConfig, ReplayConfig
from recsys.evaluation.sequential import SequentialConfig, sample_ratio
from recsys.kernels.embedding_bag.layout import OptimizerConfig
from recsys.models.configs import (
    ContentSimilarityConfig,
    EaseWeightsConfig,
    PopularityConfig,
    TwoTowerConfig,
)
from recsys.models.generative.config import GenerativeConfig, TeachingConfig
from recsys.models.ranker.config import RankerConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.retrieval.faiss_index import FaissIndexConfig
from recsys.training.passes import (
    AdamWConfig,
    LoopConfig,
    ScheduleConfig,
    ShardingConfig,
    TrainingConfig,
)

KIND = AttributeConfig(name="kind", type="choice", description="Kind", values=("a", "b"))
ENDPOINT = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (SequenceConfig, {"block": "gru"}, "block is one of attention,"),
    (SequenceConfig, {"temperature": 0.0}, "temperature must be > 0"),
    (SequenceConfig, {"dropout": 1.0}, "dropout must be in [0, 1)"),
    (SequenceConfig, {"embedding_dim": 16, "num_heads": 3}, "must divide the width 16, got 3"),
    (SequenceConfig, {"num_blocks": 0}, "num_blocks must be >= 1, got 0"),
    (SequenceConfig, {"num_members": 0}, "num_members must be >= 1, got 0"),
    (SequenceConfig, {"embedding_dim": 16, "num_members": 3}, "must divide embedding_dim 16"),
    (SequenceConfig, {"max_length": 0}, "max_length must be >= 1, got 0"),
    (SequenceConfig, {"num_uniform_negatives": 0}, "num_uniform_negatives must be >= 1"),
    (SequenceConfig, {"time_buckets": -1}, "time_buckets must be >= 0"),
    (SequenceConfig, {"num_neighbours": -1}, "must be >"),
    (SequenceConfig, {"neighbour_weight": 0.0}, "must be >"),
    (TwoTowerConfig, {"temperature": 0.0}, "temperature must be > 0"),
    (TwoTowerConfig, {"dropout": 1.0}, "dropout must be in [0, 1)"),
    (TwoTowerConfig, {"num_uniform_negatives": -1}, "num_uniform_negatives must be >= 0"),
    (GenerativeConfig, {"items": "vectors"}, "items is one of"),
    (GenerativeConfig, {"embedding_dim": 16, "num_heads": 3}, "must divide the width 16, got 3"),
    (GenerativeConfig, {"dropout": 1.0}, "dropout must be in [0, 1), got 1.0"),
    (GenerativeConfig, {"num_layers": 0}, "num_layers must be >= 1, got 0"),
    (TeachingConfig, {"share": 1.5}, "share must be in"),
    (TeachingConfig, {"dropped_events": 1.0}, "dropped_events must be in"),
    (RankerConfig, {"trunk": "deep"}, "trunk is one of"),
    (RankerConfig, {"num_experts": 4, "top_k": 9}, "top_k must be in"),
    (RankerConfig, {"hidden_dim": 0}, "hidden_dim must be >= 1"),
    (RankerConfig, {"dropout": 1.0}, "dropout must be in"),
    (RankerConfig, {"tile_rows": 300}, "tile_rows must be a multiple of 32"),
    (RankerConfig, {"task_values": {"click": math.nan}}, "must be >= 0 and finite"),
    (PopularityConfig, {"half_life_days": 0.0}, "half_life_days must be > 0"),
    (PopularityConfig, {"half_life_days": math.inf}, "half_life_days must be > 0"),
    (PopularityConfig, {"half_life_days": math.nan}, "half_life_days must be > 0"),
    (ContentSimilarityConfig, {"history_power": -1.0}, "history_power must be >= 0"),
    (ContentSimilarityConfig, {"columns": 0}, "columns must be >= 1"),
    (EaseWeightsConfig, {"l2": ()}, "l2"),
    (EaseWeightsConfig, {"l2": (0.0,)}, "l2"),
    (EaseWeightsConfig, {"history_power": (-1.0,)}, "history_power"),
    (EaseWeightsConfig, {"exact_items": 0}, "exact_items"),
    (ScheduleConfig, {"learning_rate": 0.0}, "learning_rate must be > 0"),
    (ScheduleConfig, {"learning_rate": math.inf}, "learning_rate must be > 0 and finite"),
    (ScheduleConfig, {"warmup_steps": -1}, "warmup_steps must be >= 0"),
    (ScheduleConfig, {"decay": "step"}, "decay is one of constant, linear, cosine, got 'step'"),
    (ScheduleConfig, {"final_share": 2.0}, "final_share must be in [0, 1]"),
    (AdamWConfig, {"tables": "lazy"}, "tables is one of auto, dense"),
    (AdamWConfig, {"matrices": "x"}, "matrices is one of adam, orthogonal, got 'x'"),
    (LoopConfig, {"num_steps": 0}, "num_steps must be > 0, got 0"),
    (LoopConfig, {"num_steps": 1, "patience": 0}, "patience must be > 0, got 0"),
    (LoopConfig, {"num_steps": 1, "precision": "half"}, "precision is one of auto, float32"),
    (LoopConfig, {"num_steps": 1, "max_seconds": 0.0}, "max_seconds must be > 0"),
    (TrainingConfig, {"max_seconds": -1.0}, "max_seconds must be > 0"),
    (TrainingConfig, {"refit_epochs": 0.0}, "refit_epochs must be > 0"),
    (TrainingConfig, {"refit_rate": 0.0}, "refit_rate must be > 0"),
    (ShardingConfig, {"shard_from": -1}, "shard_from must be >= 0, got -1"),
    (ReplayConfig, {"num_steps": 0}, "backtest.num_steps must be >= 1, got 0"),
    (ReplayConfig, {"step_days": 0.0}, "backtest.step_days must be > 0, got 0.0"),
    (ReplayConfig, {"first_share": 1.0}, "backtest.first_share must be in (0, 1), got 1.0"),
    (ReplayConfig, {"policies": ("daily",)}, "full, incremental, never, got ['daily']"),
    (ReplayConfig, {"policies": ()}, "full, incremental, never, got []"),
    (ReplayConfig, {"max_queries": 0}, "backtest.max_queries must be >= 1, got 0"),
    (ReplayConfig, {"new_passes": 0.0}, "backtest.new_passes must be > 0, got 0.0"),
    (PairedConfig, {"confidence": 1.0}, "confidence"),
    (PairedConfig, {"margin": -0.1}, "margin"),
    (PairedConfig, {"power": 0.0}, "power"),
    (SequentialConfig, {"error": 1}, "error must be in (0, 1), got 1"),
    (SequentialConfig, {"narrow_at": 0}, "narrow_at must be >= 1"),
    (sample_ratio, {"arms": np.array([0]), "shares": [1, 0]}, "above 0, got [1, 0]"),
    (FaissIndexConfig, {"kind": "ivf"}, "kind is one of auto, flat, ivf_sq8, got 'ivf'"),
    (FaissIndexConfig, {"build_threads": 0}, "build_threads must be >= 1, got 0"),
    (EmbeddingEndpointConfig, {**ENDPOINT, "dim": 0}, "dim must be >= 1"),
    (EmbeddingEndpointConfig, {**ENDPOINT, "dim": 1, "batch_size": 0}, "batch_size must be >= 1"),
    (EnrichmentConfig, {"attributes": (KIND, KIND)}, "each of another name"),
    (EnrichmentConfig, {"token_budget": -1}, "token_budget must be >= 0, got -1"),
    (EnrichmentConfig, {"max_attempts": 0}, "max_attempts must be >= 1"),
    (
        lambda **given: JaggedBatch({n: Jagged.one_each(torch.ones(s)) for n, s in given.items()}),
        {"first": 2, "second": 3},
        "batch",
    ),
]


@pytest.mark.parametrize(
    ("build", "settings", "message"),
    REFUSED,
    ids=[f"{getattr(build, '__name__', '')} {' '.join(given)}" for build, given, _ in REFUSED],
)
def test_settings_out_of_range_are_refused(
    build: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**settings)


def test_limits_that_never_apply_are_inf_in_a_file_without_null() -> None:
    LoopConfig(num_steps=1, max_grad_norm=math.inf, max_seconds=math.inf)
    OptimizerConfig(max_row_norm=math.inf)
