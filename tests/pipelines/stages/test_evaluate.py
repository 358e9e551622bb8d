"""Weights that an increment continues are measured with the demand of its own events."""

from __future__ import annotations

import numpy as np
import torch

from pipelines.candidates.rank import Blending
from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.fitting.blend import ProfileBlend
from recsys.fitting.queries import ModelInputs
from recsys.fitting.source_lists import known_demand
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.blend.demand import DEMAND, PARTS
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import FEATURES

NOW = 1_700_000_000


def test_demand_is_of_the_events_that_the_sources_were_fitted_on():
    sequences = Sequences(
        item_rows=np.array([1, 2, 2]),
        offsets=np.array([0, 0, 3]),
        train_end=np.array([0, 2]),
        validation_end=np.array([0, 3]),
        times=np.array([NOW, NOW + 1, NOW + 2]),
    )
    nothing = ItemCatalogue(torch.empty(3, 0), Jagged.from_lists([[], [], []]))
    inputs = ModelInputs(
        sequences=sequences, catalogue=nothing, sizes=FeatureSizes(num_item_rows=3)
    )
    weights = torch.zeros(2, 1, len(FEATURES))
    demand = torch.ones(PARTS, len(DEMAND))
    blend = LearnedBlend(
        BlendConfig(), ("popularity",), weights, torch.ones(1), demand=demand
    ).with_demand(torch.zeros(2, len(DEMAND)))
    found = Blending.of({"fast": ProfileBlend.unlearned(blend)}, inputs, "test", 0)
    expected = known_demand(inputs, "train")
    assert expected is not None
    odds = found.profiles["fast"].served.odds
    assert odds is not None
    torch.testing.assert_close(odds[0], expected.sum(1))
    assert bool((odds[0, 1:] != 0).all())
