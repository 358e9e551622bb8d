import numpy as np
import pytest

from recsys.content.attribute_gate import (
    GateDecision,
    Queries,
    clustered_variance,
    cut_queries,
    discounted,
)
from recsys.content.encoder import HashEncoder
from tests.recsys.content.planted_attributes import decisions, planted_world


def found_in(seed: int, num_users: int = 250) -> dict[str, GateDecision]:
    texts, attributes, users = planted_world(seed, num_users=num_users)
    found = decisions(texts, attributes, cut_queries(users, seed), HashEncoder().encode)
    return {decision.attribute: decision for decision in found}


def test_a_true_attribute_is_kept_and_useless_and_absent_ones_are_not() -> None:
    found = found_in(0)
    assert {name: one.kept for name, one in found.items()} == {
        "true": True,
        "fifth wrong": True,
        "random": False,
        "the same for all": False,
        "absent": False,
    }
    assert found["true"].gain > found["fifth wrong"].gain > 0
    assert found["true"].low > 0
    assert found["absent"].reason == "no item has it"
    assert found["absent"].num_items == 0


def test_words_that_gain_for_any_item_tell_nothing_of_theirs() -> None:
    """One word for all gains in this world, since it moves cosines."""
    texts, attributes, users = planted_world(0)
    same = {"the same for all": attributes["the same for all"]}
    (found,) = decisions(texts, same, cut_queries(users, 0), HashEncoder().encode)
    assert found.low > 0
    assert not found.kept
    assert found.reason == "other items' values gain as much"


def test_no_query_decides_nothing() -> None:
    queries = cut_queries([np.array([1]), np.array([], np.int64)], 0)
    (found,) = decisions(["a", "b"], {"x": ["c", ""]}, queries, HashEncoder().encode)
    assert not found.kept
    assert found.num_queries == 0


def test_queries_are_last_items_by_those_before_without_repeats() -> None:
    queries = cut_queries([np.array([4, 2, 4, 1])], 0)
    assert queries.targets.tolist() == [2, 1]
    assert [history.tolist() for history in queries.histories] == [[4], [2, 4]]


def test_places_are_discounted_and_ties_count_against_the_target() -> None:
    vectors = np.eye(3, dtype=np.float32)[[0, 0, 0, 1]]
    one = np.array([0])
    near = Queries(one, np.array([1]), [np.array([0])])
    far = Queries(one, np.array([3]), [np.array([0])])
    assert discounted(vectors, near).tolist() == pytest.approx([1 / np.log2(3)])
    assert discounted(vectors, far).tolist() == pytest.approx([1 / np.log2(4)])


def test_values_of_one_group_are_no_independent_evidence() -> None:
    values = np.array([1.0, 1.0, 0.0, 0.0])
    alone = clustered_variance(values, np.arange(4))
    assert alone == pytest.approx(values.var(ddof=1) / 4)
    assert clustered_variance(values, np.array([0, 0, 1, 1])) > alone


def test_few_users_decide_nothing() -> None:
    found = found_in(0, num_users=5)
    assert not any(one.kept for one in found.values())
    assert "at least 30 are needed" in found["true"].reason
