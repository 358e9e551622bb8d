"""Users are spread evenly over arms, stay where they are, and move no more than they must."""

import hashlib
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from serving.configuration.file import check_configuration
from serving.configuration.resolve import Resolver

USERS = [f"user-{number}" for number in range(20_000)]
# Chi-square by degrees of freedom: larger once in a thousand times.
ONE_IN_A_THOUSAND = {1: 10.83, 2: 13.82, 3: 16.27, 9: 27.88}


def arms_of(weights, users=USERS, name="test", salt=None):
    """Arm of each user, under an experiment with these weights by arm."""
    experiment = {
        "name": name,
        "arms": [{"name": arm, "weight": weight} for arm, weight in weights.items()],
    }
    if salt is not None:
        experiment["salt"] = salt
    resolver = Resolver(check_configuration({"experiments": [experiment]}), exclude_history=True)
    return [resolver.resolve("home", user, 0).arm for user in users]


def chi_square(counts, expected):
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    "weights", [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 70, "b": 20, "c": 10}]
)
def test_arms_get_their_shares(weights):
    counts = Counter(arms_of(weights))
    total = sum(weights.values())
    found = chi_square(
        [counts[arm] for arm in weights],
        [len(USERS) * weight / total for weight in weights.values()],
    )
    assert found < ONE_IN_A_THOUSAND[len(weights) - 1]


def test_the_arm_is_the_same_in_another_process_and_order():
    code = (
        "from tests.serving.configuration.test_assignment import arms_of, USERS;"
        "print(''.join(arms_of({'b': 2, 'a': 1, 'c': 1}, USERS[:2000])))"
    )
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert other == "".join(arms_of({"a": 1, "b": 2, "c": 1}, USERS[:2000]))
    # As it always was: servers of two versions serve one user the same.
    digest = hashlib.sha256(other.encode()).hexdigest()
    assert digest.startswith("f0ce9a8f0ec11004"), digest


@pytest.mark.parametrize("salt", [None, "another"])
def test_experiments_are_independent(salt):
    one = arms_of({"a": 1, "b": 1}, name="one")
    other = arms_of({"a": 1, "b": 1}, name="other" if salt is None else "one", salt=salt)
    both = Counter(zip(one, other, strict=True))
    assert len(both) == 4
    assert chi_square(list(both.values()), [len(USERS) / 4] * 4) < ONE_IN_A_THOUSAND[3]


def test_a_salt_keeps_users_where_they_are_under_another_name():
    one = arms_of({"a": 1, "b": 1}, name="one", salt="s")
    assert one == arms_of({"a": 1, "b": 1}, name="two", salt="s")
    assert one == arms_of({"a": 5, "b": 5}, name="s")


@pytest.mark.parametrize(
    ("after", "share"),
    [
        ({"a": 2, "b": 1, "c": 1}, 1 / 2 - 1 / 3),
        ({"a": 1, "b": 1, "c": 7}, 7 / 9 - 1 / 3),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, 1 / 4),
        ({"a": 1, "c": 1}, 1 / 3),
    ],
    ids=["more of one", "much more of the last", "one comes", "one goes"],
)
def test_only_users_that_must_move_do(after, share):
    before = {"a": 1, "b": 1, "c": 1}
    moved = [
        pair for pair in zip(arms_of(before), arms_of(after), strict=True) if pair[0] != pair[1]
    ]
    deviation = math.sqrt(share * (1 - share) / len(USERS))
    assert abs(len(moved) / len(USERS) - share) < 4 * deviation
    grown = {arm for arm in after if after[arm] != before.get(arm)}
    assert all(now in grown or was not in after for was, now in moved)
