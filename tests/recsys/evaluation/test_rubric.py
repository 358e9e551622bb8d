"""Answers of several raters, and agreement against other ways to compute it."""

import math
from itertools import permutations

import numpy as np
import pytest

from recsys.evaluation.rubric import Criterion, Ratings, Rubric, agreement, kappas

FITS = Criterion(name="fits", description="Most items fit.", weight=3.0)
VARIED = Criterion(name="varied", description="No two are the same.")
RUBRIC = Rubric(criteria=(FITS, VARIED))


def fill(ratings, *, seed=0, num_lists=40):
    """Three people and a model who err now and then, and leave lists out."""
    rng = np.random.default_rng(seed)
    for key in map(str, range(num_lists)):
        truth = rng.random() < 0.6
        for rater in ("person ann", "person bob", "person cy", "m"):
            if rng.random() < 0.8:
                passes = bool(truth == (rng.random() < 0.75))
                ratings.by_rater.setdefault(rater, {})[key] = {"fits": passes}


def slow_kappa(ratings, rater):
    """Count pairs one by one, each list with one vote, and chance by the raters' own shares."""
    votes = []
    said = ratings.by_rater
    for key in {key for lists in said.values() for key in lists}:
        people = [said[one][key]["fits"] for one in said if one != "m" and key in said[one]]
        own = [said["m"][key]["fits"]] if key in said["m"] else []
        pairs = [(a, b) for a in own for b in people]
        pairs = list(permutations(people, 2)) if rater == "people" else pairs
        votes += [(a, b, 1 / len(pairs)) for a, b in pairs]
    total = sum(weight for *_, weight in votes)
    equal = sum(weight for a, b, weight in votes if a == b) / total
    first, second = (sum(one[2] for one in votes if one[place]) / total for place in (0, 1))
    chance = first * second + (1 - first) * (1 - second)
    return equal, (equal - chance) / (1 - chance)


def test_agreement_is_that_of_a_slow_count(tmp_path):
    ratings = Ratings(tmp_path, RUBRIC)
    fill(ratings)
    for rater in ("people", "m"):
        found = ratings.agreement("fits", rater)
        assert (found.share, found.kappa) == pytest.approx(slow_kappa(ratings, rater))
        assert found.low < found.kappa < found.high
    assert ratings.agreement("varied") is None


def test_known_agreements():
    # Two raters who agree on 20 and 15 lists, and differ on 5 and 10.
    lists = [(1, 0, 0, 0)] * 15 + [(0, 1, 0, 0)] * 5 + [(0, 0, 1, 0)] * 10 + [(0, 0, 0, 1)] * 20
    found = agreement(lists)
    assert (found.num_lists, found.share, found.kappa) == pytest.approx((50, 0.7, 0.4))
    # All alike on few lists shows little; where all answers are one, nothing.
    assert agreement([(1, 0, 0, 0), (0, 0, 0, 1)] * 5).low < 0.6
    assert agreement([(1, 0, 0, 0), (0, 0, 0, 1)] * 50).low > 0.9
    one_answer = agreement([(0, 0, 0, 1)] * 100)
    assert math.isnan(one_answer.kappa)
    assert one_answer.low < 0.1
    assert kappas(np.array([[1.0, 0.0, 0.0, 1.0], [1, 1, 1, 1]])) == pytest.approx([1, 0])


def test_the_interval_is_seldom_above_the_truth():
    """The lower end decides: above the true kappa in about 2.5% of worlds, also near 1."""
    rng = np.random.default_rng(1)
    for shares in ([0.28, 0.02, 0.02, 0.68], [0.4, 0.1, 0.1, 0.4]):
        truth = kappas(np.array([shares]))[0]
        lows = [agreement(rng.multinomial(1, shares, size=50)).low for _ in range(100)]
        assert np.mean(np.array(lows) > truth) <= 0.06


def test_answers_survive_a_cut_line_and_other_words_count_for_nothing(tmp_path):
    ratings, other = Ratings(tmp_path, RUBRIC), Ratings(tmp_path, RUBRIC)
    ratings.keep("Ann", "x", "fits", True)
    other.keep("Bob", "x", "fits", False)
    ratings.keep("Ann", "x", "varied", True)
    ratings.keep("Ann", "x", "fits", False)
    (path,) = tmp_path.glob("*Ann*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + b"7\n\xff\n" + whole.splitlines()[0][:50])
    Ratings(tmp_path, RUBRIC).keep("Ann", "y", "fits", True)
    found = Ratings(tmp_path, RUBRIC)
    assert found.of("person Ann", "x") == {"fits": False, "varied": True}
    assert found.of("person Ann", "y") == {"fits": True}
    assert found.of("person Bob", "x") == {"fits": False}
    reworded = Criterion(name="fits", description="All items fit.")
    assert Ratings(tmp_path, Rubric(criteria=(reworded, VARIED))).by_rater == {}


def test_a_score_weighs_the_criteria_with_an_answer():
    assert RUBRIC.score({"fits": True, "varied": False}) == 0.75
    assert RUBRIC.score({"varied": True}) == 1
    assert math.isnan(RUBRIC.score({}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"criteria": ()}, "at least one table"),
        ({"criteria": (FITS, FITS)}, "fits, fits"),
        ({"criteria": (FITS,), "k": 21}, "k must be in"),
        ({"criteria": (FITS,), "bar": 1.0}, "bar must be in"),
    ],
)
def test_a_rubric_that_cannot_be_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Rubric(**settings)
