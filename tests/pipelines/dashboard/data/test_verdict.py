"""The rule of which of two to release, on outcomes that are given."""

from dataclasses import replace

import numpy as np
import pytest

from pipelines.dashboard.data.answers import Joined
from pipelines.dashboard.data.measures import Measures
from pipelines.dashboard.data.paired import Pairs
from pipelines.dashboard.data.search import SearchConfig, search
from pipelines.dashboard.data.slices import Slicing
from pipelines.dashboard.data.verdict import (
    VerdictConfig,
    cost_reasons,
    coverage_reasons,
    judge,
    overall_reasons,
)
from recsys.evaluation.paired import Decision, Paired

CONFIG = VerdictConfig()
NUM_USERS = 4000


def ranks_of(seed: int, moved: np.ndarray | float = 0.0) -> np.ndarray:
    """Ranks whose logarithms are moved; above 0 is worse."""
    shared = np.random.default_rng(1).normal(3.6, 1.3, NUM_USERS)
    exact = np.ceil(np.exp(shared + np.random.default_rng(seed).normal(0, 0.5, NUM_USERS) + moved))
    found: np.ndarray = np.where(exact <= 100, exact, 0).astype(np.uint8)
    return found


def pairs_of(first: np.ndarray, second: np.ndarray, groups: dict[str, np.ndarray]) -> Pairs:
    """Sides with slicings of the test's own: each a name and a code of each query."""
    users = np.arange(1, NUM_USERS + 1)
    pairs = Pairs(
        Joined(
            sides=(),
            user_rows=users,
            item_rows=users,
            places=np.full(NUM_USERS, 9),
            times=None,
            ranks=(first, second),
            features=None,
            order="",
            dropped=(),
        )
    )
    made = {
        group: Slicing(
            group,
            tuple(f"{group}{code}" for code in range(codes.max() + 1)),
            codes.astype(np.int32),
            np.arange(NUM_USERS, dtype=np.int32),
        )
        for group, codes in groups.items()
    }
    pairs.slicings.__dict__["groups"] = list(made)
    pairs.slicings._made.update(made)
    return pairs


HALVES = {"half": np.arange(NUM_USERS) % 2, "tenth": np.arange(NUM_USERS) % 10}


def test_one_cause_has_one_name() -> None:
    """A loss in one tenth shows in its half as well; the tenth is named alone."""
    lost = np.where(HALVES["tenth"] == 3, 1.5, 0.0)
    found = search(pairs_of(ranks_of(2), ranks_of(3, lost), HALVES), 0, 1)
    assert [one.key for one in found.lost] == ["tenth/tenth3"]
    assert found.lost[0].num_users == 400
    assert found.explained == {"half/half1": "lost"}
    assert found.num_searched == 12
    assert found.gained == ()


def test_two_causes_have_two_names_the_clearer_first() -> None:
    moved = np.select([HALVES["tenth"] == 3, HALVES["tenth"] == 6], [1.2, 2.5], 0.0)
    found = search(pairs_of(ranks_of(2), ranks_of(3, moved), HALVES), 0, 1)
    assert {one.key for one in found.lost} == {"tenth/tenth3", "tenth/tenth6"}
    assert found.lost[0].key == "tenth/tenth6"


def test_a_loss_within_the_margin_is_let_pass() -> None:
    moved = np.where(HALVES["tenth"] == 3, 0.12, 0.0)
    config = SearchConfig(margin=0.25)
    assert search(pairs_of(ranks_of(2), ranks_of(3, moved), HALVES), 0, 1, config).lost == ()


def test_small_slices_are_counted_not_searched() -> None:
    groups = {"fortieth": np.arange(NUM_USERS) % 80}
    found = search(pairs_of(ranks_of(2), ranks_of(3), groups), 0, 1)
    assert (found.num_searched, found.num_too_small) == (0, 80)


def test_a_ruined_slice_vetoes_a_better_side() -> None:
    moved = np.where(HALVES["tenth"] == 3, 1.5, -0.4)
    found = judge(pairs_of(ranks_of(2), ranks_of(3, moved), HALVES), 0, 1, (Measures(), Measures()))
    assert found.answer == "first"
    assert [one.slice for one in found.decisive] == ["tenth/tenth3"]
    assert {one.kind for one in found.against} == {"overall", "slice"}


def test_few_users_conclude_nothing() -> None:
    config = replace(CONFIG, min_users=NUM_USERS + 1)
    pairs = pairs_of(ranks_of(2), ranks_of(3, -2.0), HALVES)
    found = judge(pairs, 0, 1, (Measures(), Measures()), config)
    assert found.answer == "no evidence"
    assert f"{NUM_USERS:,}. Below {NUM_USERS + 1}" in found.reasons[0].words


def paired(decision: Decision) -> Paired:
    return Paired(
        num_queries=10, num_users=10, champion=0.2, challenger=0.2, difference=0.0, low=0.0,
        high=0.0, time_low=None, time_high=None, standard_error=0.0, detectable=0.0,
        decision=decision, not_worse=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("primary", "deep", "speak"),
    [
        ("better", "better", ["second", "second"]),
        ("better", "worse", ["second"]),
        ("worse", "better", ["first"]),
        ("not enough evidence", "better", ["second"]),
        ("not enough evidence", "worse", ["first"]),
        ("not enough evidence", "not enough evidence", []),
    ],
)
def test_the_first_places_have_the_last_word(
    primary: Decision, deep: Decision, speak: list[str]
) -> None:
    overall = {CONFIG.primary: paired(primary), CONFIG.deep: paired(deep)}
    assert [one.speaks_for for one in overall_reasons(overall, CONFIG)] == speak


@pytest.mark.parametrize(
    ("before", "after", "speaks"),
    [
        ({"coverage@10": 0.6}, {"coverage@10": 0.4}, "first"),
        ({"coverage@10": 0.4}, {"coverage@10": 0.6}, "second"),
        ({"coverage@10": 0.6}, {"coverage@10": 0.5}, None),
        ({"coverage@10": 1.0, "gini@10": 0.5}, {"coverage@10": 0.9, "gini@10": 0.8}, "first"),
        ({"coverage@10": 0.6}, {}, None),
        ({}, {"coverage@10": 0.1}, None),
    ],
)
def test_collapses_of_coverage_and_exposure_are_seen(
    before: dict[str, float], after: dict[str, float], speaks: str | None
) -> None:
    measures = (Measures(beyond_accuracy=before), Measures(beyond_accuracy=after))
    found = [one.speaks_for for one in coverage_reasons(measures, CONFIG)]
    assert found == ([] if speaks is None else [speaks])


def test_costs_are_compared_where_both_are_known_and_times_on_one_machine() -> None:
    cheap = Measures(seconds=100, peak_memory=10**9, list_ms=5.0, host="a")
    dear = Measures(seconds=400, peak_memory=10**9, list_ms=5.5, host="a")
    assert [one.speaks_for for one in cost_reasons((cheap, dear), CONFIG)] == ["first"]
    assert [one.speaks_for for one in cost_reasons((dear, cheap), CONFIG)] == ["second"]
    (found,) = cost_reasons((cheap, dear), CONFIG)
    assert "4.0 times more with B (1 min 40 s to 6 min 40 s)" in found.words
    assert cost_reasons((cheap, replace(dear, host="b")), CONFIG) == []
    assert cost_reasons((cheap, Measures()), CONFIG) == []


def test_a_slower_list_of_an_equal_side_is_refused() -> None:
    pairs = pairs_of(ranks_of(2), ranks_of(3), HALVES)
    found = judge(pairs, 0, 1, (Measures(list_ms=5.0), Measures(list_ms=30.0)))
    assert found.answer == "first"
    assert "time of a list is 6.0 times more" in found.decisive[0].words
