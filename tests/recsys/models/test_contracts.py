"""The contract holds for retrievers that keep it and names what one that breaks it broke."""

import json

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from tests.recsys.models.contracts import assert_retriever_contract, assert_same_seed_same_result

NUM_ITEM_ROWS = 9


class LastItem:
    """Scores the history's last item 1 and all others 0."""

    def score(self, queries):
        scores = torch.zeros(queries.batch_size, NUM_ITEM_ROWS)
        history = queries["history"]
        owners = history.lengths().nonzero()[:, 0]
        scores[owners, history.values[history.offsets[owners + 1] - 1]] = 1.0
        scores[:, 0] = -torch.inf
        return scores

    def save(self, directory):
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({}))

    @classmethod
    def load(cls, directory):
        json.loads((directory / "config.json").read_text())
        return cls()


class RecommendsPadding(LastItem):
    def score(self, queries):
        return super().score(queries).nan_to_num(neginf=0.0)


class ForgetsRowZero(LastItem):
    def score(self, queries):
        return super().score(queries)[:, 1:]


class FailsOnUnknown(LastItem):
    def score(self, queries):
        scores = super().score(queries)
        return scores / (queries["history"].lengths() > 0)[:, None] if len(scores) else scores


class LooksAtNeighbours(LastItem):
    def score(self, queries):
        return super().score(queries).cumsum(0)


class LosesItsWeights(LastItem):
    @classmethod
    def load(cls, directory):
        return LooksAtNeighbours()


class Pickles(LastItem):
    def save(self, directory):
        super().save(directory)
        (directory / "model.pkl").write_bytes(b"")


def queries():
    return JaggedBatch(
        {
            "history": Jagged.from_lists([[3, 4], [5], [8, 1, 2]]),
            "user": Jagged.one_each(torch.tensor([1, 2, 3])),
        }
    )


def test_contract_holds_for_a_retriever_that_keeps_it(tmp_path):
    assert_retriever_contract(LastItem(), LastItem.load, queries(), NUM_ITEM_ROWS, tmp_path)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (RecommendsPadding, "row 0 is padding"),
        (ForgetsRowZero, r"\(3, 8\)"),
        (FailsOnUnknown, "NaN"),
        (LooksAtNeighbours, "not close"),
        (LosesItsWeights, "differ after a save"),
        (Pickles, r"unexpected files: .*\.pkl"),
    ],
)
def test_contract_names_what_a_retriever_breaks(broken, message, tmp_path):
    with pytest.raises(AssertionError, match=message):
        assert_retriever_contract(broken(), broken.load, queries(), NUM_ITEM_ROWS, tmp_path)


def test_unseeded_fit_is_caught():
    class Noise(LastItem):
        def __init__(self):
            self.noise = torch.rand(())

        def score(self, queries):
            return super().score(queries) + self.noise

    def seeded(seed):
        torch.manual_seed(seed)
        return Noise()

    assert_same_seed_same_result(seeded, queries())
    with pytest.raises(AssertionError, match="two fits with one seed"):
        assert_same_seed_same_result(lambda _: Noise(), queries())
