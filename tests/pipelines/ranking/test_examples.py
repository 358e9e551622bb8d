"""Events that a ranker learns from, and which ranker is released."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from pipelines.config.trainings import RankerTrainingConfig
from pipelines.inputs.tensors import HeldOut
from pipelines.ranking.artefact import served_ranker
from pipelines.ranking.examples import read_outcomes
from pipelines.ranking.fit import split_by_user
from pipelines.ranking.out_of_sample import hold_back
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.ranker.network import Candidates
from recsys.training.ranking_examples import RankingExamples

NAN = float("nan")


def test_held_out_events_have_their_own_values_and_types(tmp_path):
    seconds = [10, 20, 30, 5, 6]
    table = pl.DataFrame(
        {
            "user_row": [1, 1, 1, 2, 2],
            "item_row": [3, 4, 4, 4, 5],
            "sequence_index": [0, 1, 2, 0, 1],
            "event_time": [second * 1_000_000 for second in seconds],
            "event_type": ["view", "view", "purchase", "view", "refund"],
            "value": [1.0, 2.0, 5.0, 3.0, None],
        }
    ).with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC")))
    for name, left_out in (("timed", "sequence_index"), ("ordered", "event_time")):
        (tmp_path / name / "events").mkdir(parents=True)
        table.drop(left_out).write_parquet(tmp_path / name / "events/part.parquet")
    sequences = Sequences(
        np.array([3, 4, 4, 4, 5]),
        np.array([0, 0, 3, 5]),
        np.array([0, 1, 4]),
        np.array([0, 3, 5]),
        times=np.array(seconds),
    )

    def read(name, sequences):
        inputs = ModelInputs(
            sequences=sequences,
            catalogue=ItemCatalogue.empty(6),
            sizes=FeatureSizes(num_item_rows=6),
            user_features={},
        )
        return read_outcomes(tmp_path / name, inputs, HeldOut.of(sequences, "validation"))

    found = read("timed", sequences)
    # Item 4 was viewed before it was bought: each event has its own value, the first led to both.
    assert found.values.nan_to_num(-1).tolist() == [2, 5, -1]
    assert found.type_names == ("purchase", "refund", "view")
    assert found.types.int().tolist() == [[1, 0, 1], [1, 0, 0], [0, 1, 0]]
    # What the next split holds out is not reported.
    before = read("timed", replace(sequences, validation_end=np.array([0, 2, 5])))
    assert before.types.int().tolist() == [[0, 0, 1], [0, 1, 0]]
    # Without times the last event on an item counts.
    ordered = replace(
        sequences,
        item_rows=np.array([3, 4, 4, 5]),
        offsets=np.array([0, 0, 2, 4]),
        train_end=np.array([0, 1, 3]),
        validation_end=np.array([0, 2, 4]),
        times=None,
    )
    assert read("ordered", ordered).values.nan_to_num(-1).tolist() == [5, -1]
    assert read("none", ordered).values.isnan().all()


def test_a_ranker_that_lost_or_was_never_trained_is_not_released(tmp_path):
    assert served_ranker(tmp_path) is None
    (tmp_path / "ranker.json").write_text('{"served": false}')
    assert served_ranker(tmp_path) is None
    (tmp_path / "ranker.json").write_text('{"served": true}')
    assert served_ranker(tmp_path) == tmp_path / "ranker"


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


def test_the_latest_train_events_are_queries_with_what_precedes_them():
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


def test_after_a_moment_everyone_is_asked_with_what_precedes_the_event():
    config = RankerTrainingConfig(max_held_back=3, share_held_back=0.2)
    held_back = hold_back(inputs(), config, seed=0, by_time=True)
    # A fifth of the 23 train events are later than 1,760: two of one user, all of another.
    assert held_back.held_out.targets.values.tolist() == [19, 20, 25, 26, 27]
    assert held_back.held_out.seen.lengths().tolist() == [18, 19, 0, 1, 2]
    assert held_back.inputs.sequences.item_rows.tolist() == [*range(1, 19)]


def test_queries_are_sampled_by_the_seed():
    config = RankerTrainingConfig(max_held_back=10, share_held_back=0.9, max_queries=5)
    first, again, other = (hold_back(inputs(), config, seed) for seed in (1, 1, 2))
    assert len(first.held_out.positions) == 5
    assert first.held_out.positions.tolist() == again.held_out.positions.tolist()
    assert first.held_out.positions.tolist() != other.held_out.positions.tolist()
    assert (np.diff(first.held_out.positions) > 0).all()


@pytest.mark.parametrize("limit", [2, 100])
def test_users_that_calibrate_are_not_trained_on(limit):
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
