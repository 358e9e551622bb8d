"""A small world in which the next item is known: users walk round the items of one cluster."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.fitting.queries import RetrievalSettings
from recsys.models.configs import TwoTowerConfig
from recsys.models.generative.config import GenerativeConfig, TeachingConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.semantic_ids.codes import ItemCodes
from recsys.training.passes import ScheduleConfig, TrainingConfig
from tests.benchmarks.recipes.prepared import VERSION, Prepared
from tests.benchmarks.recipes.recipe import Recipe

NUM_CLUSTERS = 8
CLUSTER_SIZE = 10
NUM_USERS = 160


def walks(seed: int) -> Sequences:
    """Each user starts somewhere in a cluster and takes the next item each time."""
    rng = np.random.default_rng(seed)
    rows, lengths = [np.empty(0, np.int64)], [0]
    for user in range(NUM_USERS):
        length = int(rng.integers(5, 9))
        steps = (int(rng.integers(CLUSTER_SIZE)) + np.arange(length)) % CLUSTER_SIZE
        rows.append(1 + user % NUM_CLUSTERS * CLUSTER_SIZE + steps)
        lengths.append(length)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ends = offsets[1:]
    held_out = np.array([0] + [1] * NUM_USERS)
    days = np.arange(offsets[-1])
    return Sequences(
        np.concatenate(rows),
        offsets,
        ends - 2 * held_out,
        ends - held_out,
        times=days * 86_400,
        context={"weekday": 1 + days % 7},
    )


@pytest.fixture(scope="session")
def small_recipe() -> Recipe:
    schedule = ScheduleConfig(learning_rate=1e-2)
    training = TrainingConfig(batch_size=64, max_epochs=8.0, schedule=schedule)
    return Recipe(
        rows=(
            "popularity",
            "item_to_item",
            "content_similarity",
            "two_tower",
            "sequence",
            "generative",
            "blend_fast",
            "blend",
        ),
        two_tower=TwoTowerConfig(embedding_dim=16, hidden_dim=16),
        two_tower_training=replace(training, max_epochs=2.0),
        sequence=SequenceConfig(embedding_dim=16, hidden_dim=16, max_length=10),
        sequence_training=training,
        generative=GenerativeConfig(
            embedding_dim=16,
            hidden_dim=16,
            num_heads=1,
            max_length=9,
            dropout=0.0,
            items="codes_vectors",
            carries_place=True,
        ),
        generative_training=replace(training, max_epochs=40.0, patience=40),
        generative_ids="sequence",
        generative_teaching=TeachingConfig(share=0.8, dropped_events=0.2),
        retrieval=RetrievalSettings(beam_width=10, num_candidates=20),
    )


@pytest.fixture(scope="session")
def small_world(small_recipe) -> Prepared:
    num_items = NUM_CLUSTERS * CLUSTER_SIZE
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(NUM_CLUSTERS, 12, generator=generator)
    content = centres.repeat_interleave(CLUSTER_SIZE, 0)
    content = content + 0.3 * torch.randn(num_items, 12, generator=generator)
    content = torch.cat([torch.zeros(1, 12), torch.nn.functional.normalize(content, dim=1)])
    rows = torch.arange(num_items + 1)
    categories = Jagged(1 + (rows - 1).clamp(min=0) // CLUSTER_SIZE, torch.arange(num_items + 2))
    codes = torch.stack([(rows - 1) // CLUSTER_SIZE, (rows - 1) % CLUSTER_SIZE], 1).int()
    codes[0] = -1
    return Prepared(
        name="walks",
        data_digest="0123456789abcdef",
        recipe=small_recipe,
        orders={"given": walks(0), "shuffled": walks(1)},
        catalogue=ItemCatalogue(content, categories),
        sizes=FeatureSizes(
            num_item_rows=num_items + 1,
            content_dim=12,
            num_categories=NUM_CLUSTERS + 1,
            context_features={"weekday": 8},
        ),
        codes=ItemCodes(codes=codes, level_sizes=(NUM_CLUSTERS, CLUSTER_SIZE), version=VERSION),
    )
