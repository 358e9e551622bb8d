"""A small log of many days: users walk round the items of their cluster, and join one by one."""

import numpy as np
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs, RetrievalSettings
from recsys.models.configs import EaseWeightsConfig, ItemToItemConfig, PopularityConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.replay.experiment import PreparedData, Recipe
from recsys.replay.steps import SECONDS_PER_DAY
from recsys.retrieval.blend.config import BlendConfig
from recsys.training.optim import ScheduleConfig
from recsys.training.passes import TrainingConfig

NUM_CLUSTERS, CLUSTER_SIZE, NUM_USERS, NUM_DAYS = 5, 8, 90, 40


def walks(seed: int = 0) -> Sequences:
    """Each user begins on some day and takes the next item every few days, at times two at once."""
    rng = np.random.default_rng(seed)
    rows, times, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [0]
    for user in range(NUM_USERS):
        length = int(rng.integers(4, 8))
        steps = (int(rng.integers(CLUSTER_SIZE)) + np.arange(length)) % CLUSTER_SIZE
        days = int(rng.integers(NUM_DAYS - 14)) + np.cumsum(rng.integers(0, 4, length))
        rows.append(1 + user % NUM_CLUSTERS * CLUSTER_SIZE + steps)
        times.append(days * SECONDS_PER_DAY)
        lengths.append(length)
    offsets = np.cumsum(lengths)
    offsets = np.concatenate([[0], offsets])
    ends = offsets[1:]
    return Sequences(np.concatenate(rows), offsets, ends, ends, times=np.concatenate(times))


def prepared_of(sequences: Sequences) -> PreparedData:
    """Put a log into the form that a replay reads."""
    num_rows = 1 + NUM_CLUSTERS * CLUSTER_SIZE
    training = TrainingConfig(
        batch_size=32, max_epochs=2.0, schedule=ScheduleConfig(learning_rate=1e-2)
    )
    recipe = Recipe(
        models={
            "popularity": PopularityConfig(),
            "item_to_item": ItemToItemConfig(),
            "ease": EaseWeightsConfig(enabled=True, l2=(1.0, 10.0), history_power=(0.0, 1.0)),
            "sequence": SequenceConfig(embedding_dim=8, hidden_dim=8, max_length=10),
        },
        trainings={"sequence": training},
        blend=BlendConfig(min_found=1),
        retrieval=RetrievalSettings(num_candidates=20),
    )
    rows = torch.arange(num_rows)
    categories = Jagged(1 + (rows - 1).clamp(min=0) // CLUSTER_SIZE, torch.arange(num_rows + 1))
    return PreparedData(
        name="walks",
        data_digest="0123456789abcdef",
        recipe=recipe,
        inputs=ModelInputs(
            sequences=sequences,
            catalogue=ItemCatalogue(torch.zeros(num_rows, 4), categories),
            sizes=FeatureSizes(
                num_item_rows=num_rows, content_dim=4, num_categories=NUM_CLUSTERS + 1
            ),
        ),
    )
