from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from recsys.content.attribute_gate import (
    GateDecision,
    Queries,
    choose_attributes,
    clustered_variance,
    cut_queries,
    discounted,
)
from recsys.content.encoder import HashEncoder, Vectors

NUM_ITEMS, NUM_KINDS, HISTORY = 400, 20, 8


def wrong_at_rate(words: list[str], rate: float, generator: np.random.Generator) -> list[str]:
    """Replace a share of the words by those of items drawn at random."""
    drawn = generator.permutation(len(words))
    wrong = generator.random(len(words)) < rate
    return [words[drawn[i]] if wrong[i] else word for i, word in enumerate(words)]


def planted_world(
    seed: int, num_users: int = 250, rate: float = 0.2
) -> tuple[list[str], dict[str, list[str]], list[NDArray[np.int64]]]:
    """Titles that say nothing, an oracle's attributes, and users who stay with a kind or two."""
    generator = np.random.default_rng(seed)
    kinds = generator.integers(0, NUM_KINDS, NUM_ITEMS)
    names = generator.integers(0, 60, (NUM_ITEMS, 2))
    texts = [f"name{first} word{second}" for first, second in names]
    true = [f"kind{kind}" for kind in kinds]
    attributes = {
        "true": true,
        "fifth wrong": wrong_at_rate(true, rate, generator),
        "random": wrong_at_rate(true, 1.0, generator),
        "the same for all": ["thing"] * NUM_ITEMS,
        "absent": [""] * NUM_ITEMS,
    }
    users = []
    for _ in range(num_users):
        liked = np.isin(kinds, generator.choice(NUM_KINDS, 2, replace=False))
        weights = np.where(liked, 8.0, 1.0)
        users.append(generator.choice(NUM_ITEMS, HISTORY, replace=False, p=weights / weights.sum()))
    return texts, attributes, users


def decisions(
    texts: Sequence[str],
    attributes: Mapping[str, Sequence[str]],
    queries: Queries,
    encode: Callable[[list[str]], Vectors],
    seed: int = 0,
) -> list[GateDecision]:
    def texts_with(name: str | None, rows: Sequence[int]) -> list[str]:
        if name is None:
            return list(texts)
        words = (attributes[name][row] for row in rows)
        return [
            f"{text}. {word}" if word else text for text, word in zip(texts, words, strict=True)
        ]

    return choose_attributes(
        list(attributes), texts_with, encode, queries, num_items=len(texts), seed=seed
    )


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
