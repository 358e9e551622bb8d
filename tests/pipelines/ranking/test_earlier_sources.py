"""Events that are held back from sources: which, and what precedes them."""

import numpy as np
import pytest
import torch

from pipelines.config.ranker import RankerTrainingConfig
from pipelines.ranking.earlier_sources import asked_at, earlier_of, events_before
from pipelines.ranking.fit import parts_of
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.data.top_k import TopK
from recsys.fitting.inputs import ModelInputs
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.training.ranking_examples import Candidates, RankingExamples


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


def test_the_latest_train_events_are_asked_for_with_what_precedes_them() -> None:
    config = RankerTrainingConfig(max_held_back=3, share_held_back=0.5)
    earlier = earlier_of(inputs(), config, seed=0)
    # 20 train events give 3, 3 give 1, none gives none; nobody's held-out events are asked for.
    assert earlier.held_out.targets.values.tolist() == [18, 19, 20, 27]
    seen = earlier.held_out.seen
    assert seen.lengths().tolist() == [17, 18, 19, 2]
    assert seen.take(torch.tensor([3])).values.tolist() == [25, 26]
    before = earlier.inputs.sequences
    assert before.item_rows.tolist() == [*range(1, 18), 25, 26]
    assert before.times is not None
    assert before.times.tolist() == [*range(0, 1700, 100), 2400, 2500]
    assert before.context["hour"].tolist() == [*range(17), 24, 25]
    assert before.train_end.tolist() == before.offsets[1:].tolist() == [0, 17, 17, 19, 19]


def test_no_source_has_seen_an_event_that_is_asked_for() -> None:
    whole = inputs()
    earlier = earlier_of(whole, RankerTrainingConfig(max_held_back=9), seed=0)
    users = whole.sequences.users_of(earlier.held_out.positions)
    known = earlier.inputs.sequences
    for user, item in zip(users, earlier.held_out.targets.values.tolist(), strict=True):
        assert item not in known.item_rows[known.offsets[user] : known.offsets[user + 1]]


def test_so_many_are_drawn_by_the_seed() -> None:
    config = RankerTrainingConfig(max_held_back=10, share_held_back=0.9, max_queries=5)
    first, again, other = (earlier_of(inputs(), config, seed) for seed in (1, 1, 2))
    assert len(first.held_out.positions) == 5
    assert first.held_out.positions.tolist() == again.held_out.positions.tolist()
    assert first.held_out.positions.tolist() != other.held_out.positions.tolist()
    assert (np.diff(first.held_out.positions) > 0).all()


def test_nothing_held_back_asks_nothing() -> None:
    whole = sequences()
    assert len(asked_at(whole, np.empty(0, np.int64)).positions) == 0
    same = events_before(whole, np.asarray(whole.offsets[1:]))
    assert same.item_rows.tolist() == whole.item_rows.tolist()


@pytest.mark.parametrize("limit", [2, 100])
def test_users_that_calibrate_teach_nothing(limit: int) -> None:
    users = torch.tensor([10, 10, 20, 3, 4, 5])
    labels = torch.zeros(6, 3, 1)
    labels[[0, 3, 4], 1] = 1
    top = TopK(torch.zeros(6, 3), torch.ones(6, 3, dtype=torch.int64))
    queries = JaggedBatch({"user": Jagged.one_each(users)})
    examples = RankingExamples(queries, Candidates(top, torch.zeros(6, 3, 1)), labels)
    parts = parts_of(examples, limit, seed=0)
    # Query 5 has nothing that was taken; it teaches nothing either.
    assert parts.learned_from.tolist() == [3, 4]
    assert set(parts.held.tolist()) <= {0, 1, 2}
    assert len(parts.held) == min(limit, 3)
