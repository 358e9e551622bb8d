from dataclasses import replace

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.fitting.sequence import train_members
from recsys.fitting.spec import member_seed
from recsys.models.item_tower import FeatureSizes
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import alone, first_members, side_by_side
from recsys.models.sequence.model import SequenceModel
from recsys.training.loop import TrainResult
from tests.recsys.testing.catalogues import drawn_catalogue
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

NUM_ITEM_ROWS = 31
INPUTS = FeatureSizes(num_item_rows=NUM_ITEM_ROWS, content_dim=4, num_categories=3)
APART = SequenceConfig(
    embedding_dim=24,
    num_members=3,
    member_blocks=("attention", "hstu", "attention"),
    trained_apart=True,
    hidden_dim=16,
    num_heads=2,
    max_length=6,
    calendar_days=30.0,
)
# Three members, 8 wide inside and 16 hidden, then cosines.
CLOSE = rounding(3 * (8 + 16 + 8))
HISTORY = Jagged.from_lists([[1, 2, 3, 4, 5, 6, 7], [8], [30, 40, 2]])
QUERIES = JaggedBatch(
    {"history": HISTORY, "history.times": HISTORY._replace(values=HISTORY.values * 86_400)}
)


CATALOGUE = drawn_catalogue(NUM_ITEM_ROWS, 4, 2)


def built(config: SequenceConfig, seed: int) -> SequenceModel:
    torch.manual_seed(seed)
    counts = torch.arange(NUM_ITEM_ROWS) % 5
    return SequenceModel(config, INPUTS, CATALOGUE, counts).eval()


def result(best_step: int) -> TrainResult:
    steps = {"num_steps": 10, "best_step": best_step, "bad_steps": 0}
    return TrainResult(**steps, best_metric=0.5, stopped_early=False)


def test_members_trained_apart_become_one_model_of_their_mean_cosines(tmp_path):
    asked = []

    def fit_one(config, number):
        asked.append((config, number))
        return built(config, member_seed(7, number)), result(best_step=4 + number)

    whole, how = train_members(APART, fit_one)
    assert [number for _, number in asked] == [0, 1, 2]
    assert [config.block for config, _ in asked] == ["attention", "hstu", "attention"]
    members = [built(config, member_seed(7, number)) for config, number in asked]
    mean = sum(member.score(QUERIES)[:, 1:] for member in members) / 3
    torch.testing.assert_close(whole.score(QUERIES)[:, 1:], mean, atol=CLOSE, rtol=0)
    # Apart means apart: no two began from the same weights.
    assert not torch.equal(members[0].all_item_vectors(), members[2].all_item_vectors())
    assert how.best_step == 5
    assert how.num_steps == 10

    whole.save(tmp_path)
    read = SequenceModel.load(tmp_path, CATALOGUE)
    assert read.config == APART
    assert torch.equal(read.score(QUERIES), whole.score(QUERIES))


def test_the_first_members_answer_alone_as_if_they_had_been_trained_alone():
    config = replace(APART, fast_members=2)
    members = [built(alone(config, number), number) for number in range(3)]
    whole = side_by_side(config, members)
    first = first_members(whole)
    assert first.config.num_members == 2
    assert first.config.member_blocks == ("attention", "hstu")
    mean = (members[0].score(QUERIES)[:, 1:] + members[1].score(QUERIES)[:, 1:]) / 2
    torch.testing.assert_close(first.score(QUERIES)[:, 1:], mean, atol=CLOSE, rtol=0)
    of_all = built(APART, 0)
    assert first_members(of_all) is of_all
    for wrong in ({"fast_members": 3}, {"fast_members": 1, "trained_apart": False}):
        with pytest.raises(ValueError, match=r"fast_members must be in \[1, num_members\)"):
            replace(APART, **wrong)
