"""Held-back events: which they are, and what precedes them."""

import numpy as np
import pytest
import torch

from pipelines.config.trainings import RankerTrainingConfig
from pipelines.ranking.fit import split_by_user
from pipelines.ranking.out_of_sample import hold_back
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.ranker.batch import Candidates
from recsys.training.ranking_examples import RankingExamples


def sequences() -> Sequences:
    """Users with 22, 2, 5 and no events; the last two of each are held out."""
    lengths = np.array([0, 22, 2, 5, 0])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ends = np.maximum(offsets[1:] - 2, offsets[:-1])
    return Sequences(
        item_rows=np.arange(1, 30),
        offsets=offsets,
        train_end=ends,
        validation_end=np.minimum(ends + 1, offsets[1:]),
        times=np.arange(29) * 100,
        context={"hour": np.arange(29)},
    )


def inputs() -> ModelInputs:
    return ModelInputs(
        sequences=sequences(),
        catalogue=ItemCatalogue.empty(30),
        sizes=FeatureSizes(num_item_rows=30),
        user_features={},
    )


def test_the_latest_train_events_are_queries_with_what_precedes_them() -> None:
    config = RankerTrainingConfig(max_held_back=3, share_held_back=0.5)
    held_back = hold_back(inputs(), config, seed=0)
    # 20 train events give 3, 3 give 1, none gives none; nobody's held-out events are queries.
    assert held_back.held_out.targets.values.tolist() == [18, 19, 20, 27]
    seen = held_back.held_out.seen
    assert seen.lengths().tolist() == [17, 18, 19, 2]
    assert seen.take(torch.tensor([3])).values.tolist() == [25, 26]
    before = held_back.inputs.sequences
    assert before.item_rows.tolist() == [*range(1, 18), 25, 26]
    assert before.times is not None
    assert before.times.tolist() == [*range(0, 1700, 100), 2400, 2500]
    assert before.context["hour"].tolist() == [*range(17), 24, 25]
    assert before.train_end.tolist() == before.offsets[1:].tolist() == [0, 17, 17, 19, 19]


def test_queries_are_sampled_by_the_seed() -> None:
    config = RankerTrainingConfig(max_held_back=10, share_held_back=0.9, max_queries=5)
    first, again, other = (hold_back(inputs(), config, seed) for seed in (1, 1, 2))
    assert len(first.held_out.positions) == 5
    assert first.held_out.positions.tolist() == again.held_out.positions.tolist()
    assert first.held_out.positions.tolist() != other.held_out.positions.tolist()
    assert (np.diff(first.held_out.positions) > 0).all()


@pytest.mark.parametrize("limit", [2, 100])
def test_users_that_calibrate_are_not_trained_on(limit: int) -> None:
    users = torch.tensor([10, 10, 20, 3, 4, 5])
    labels = torch.zeros(6, 3, 1)
    labels[[0, 3, 4], 1] = 1
    each = Jagged.one_each(users)
    candidates = Candidates(torch.ones(6, 3, dtype=torch.int64), torch.zeros(6, 3, 1))
    examples = RankingExamples(JaggedBatch({"user": each}), each, candidates, labels)
    split = split_by_user(examples, limit, seed=0)
    # Query 5 has no positive, so it is not trained on either.
    assert split.train.tolist() == [3, 4]
    assert set(split.held_out.tolist()) <= {0, 1, 2}
    assert len(split.held_out) == min(limit, 3)
