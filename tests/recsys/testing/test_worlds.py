from dataclasses import replace

import numpy as np
import pytest

from tests.recsys.testing.auc import auc, expected_auc
from tests.recsys.testing.world_defects import DEFECT_NAMES, START, Defects
from tests.recsys.testing.world_text import DOMAINS, TOPICS
from tests.recsys.testing.world_truth import TASKS
from tests.recsys.testing.worlds import DAY, FROZEN, KnownWorld, WorldConfig, frozen_world, world

SMALL = WorldConfig(seed=3, num_requests=4_000)


@pytest.fixture(scope="module")
def domains_world() -> KnownWorld:
    return frozen_world("synthetic-domains")


@pytest.fixture(scope="module")
def drift_world() -> KnownWorld:
    return frozen_world("synthetic-drift")


# A second copy, so that a change of the frozen table itself is noticed.
PINNED = {
    "synthetic-tiny": (11, "1da04efd6dbb13b1"),
    "synthetic-domains": (12, "bb91b7a020acb0e6"),
    "synthetic-drift": (13, "3597a7c786f744ce"),
    "synthetic-defects": (14, "40c846d3c459d79d"),
}


def test_the_frozen_table_is_not_edited():
    assert {name: (config.seed, digest[:16]) for name, (config, digest) in FROZEN.items()} == PINNED


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_worlds_have_their_digests(name):
    assert frozen_world(name).digest() == FROZEN[name][1]


def test_another_seed_or_switch_is_another_world():
    digests = {
        world(config).digest()
        for config in (
            SMALL,
            replace(SMALL, seed=4),
            replace(SMALL, leaky_feature=True),
            replace(SMALL, defects=Defects(duplicates=1)),
            replace(SMALL, drift=0.5),
        )
    }
    assert len(digests) == 5


def test_defects_are_added_and_the_good_rows_stay():
    clean = world(SMALL)
    spoiled = world(replace(SMALL, defects=Defects(nan_values=5, nul_ids=3, crawler_events=50)))
    good = spoiled.events.take(np.flatnonzero(spoiled.events.defects == DEFECT_NAMES.index("none")))
    for name in ("user_ids", "item_ids", "times", "values", "propensities"):
        np.testing.assert_array_equal(getattr(good, name), getattr(clean.events, name))
    assert np.bincount(spoiled.events.defects, minlength=len(DEFECT_NAMES))[1:].tolist() == [
        0, 0, 0, 5, 3, 0, 0, 50,
    ]  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_rate_over_relevance_is_the_examination_curve(domains_world, task):
    shown, truth = domains_world.impressions, domains_world.truth
    relevance = truth.probability(task, shown.users, shown.items, shown.domains, days=shown.days)
    happened = shown.labels[:, TASKS.index(task)]
    for slot, examined in enumerate(truth.examination / 1_000):
        here = shown.slots == slot
        expected = relevance[here].sum() * examined
        # Four standard errors of a sum of so many rare events.
        assert abs(happened[here].sum() - expected) < 4 * np.sqrt(expected)


def test_higher_slots_have_better_items_so_clicks_alone_mislead(domains_world):
    shown, truth = domains_world.impressions, domains_world.truth
    quality = [truth.quality_of_item[shown.items[shown.slots == s]].mean() for s in range(6)]
    assert quality == sorted(quality, reverse=True)


def test_propensities_are_the_shares_with_which_items_are_shown(drift_world):
    shown = drift_world.impressions
    assert (shown.propensities > 0).all()
    # The inverse propensities of a slot and domain sum to requests x items that could be shown.
    for late in (False, True):
        in_phase = (shown.days >= drift_world.config.launch_day) == late
        open_items = (drift_world.available_from <= START) | late
        for domain in range(4):
            rows = in_phase & (shown.domains == domain) & (shown.slots == 2)
            weighted = 1 / shown.propensities[rows]
            num_open = (open_items & (drift_world.truth.domain_of_item == domain)).sum()
            error = weighted.std() / np.sqrt(rows.sum())
            assert abs(weighted.mean() - num_open) < 4 * error


def test_requests_show_different_items_of_their_domain_and_never_before_launch(drift_world):
    shown = drift_world.impressions
    slates = shown.items.reshape(-1, drift_world.config.num_slots)
    assert (np.diff(np.sort(slates, axis=1), axis=1) > 0).all()
    assert (drift_world.truth.domain_of_item[shown.items] == shown.domains).all()
    assert (shown.times >= drift_world.available_from[shown.items]).all()
    cold = drift_world.available_from > START
    assert np.isin(shown.items, np.flatnonzero(cold)).any()


def test_auc_of_the_truth_is_the_same_computed_twice(domains_world):
    shown, truth = domains_world.impressions, domains_world.truth
    for place, task in enumerate(TASKS):
        scores = shown.probabilities(truth, task)
        assert auc(scores, shown.labels[:, place]) == pytest.approx(expected_auc(scores), abs=0.005)


def test_auc_agrees_with_counting_pairs():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 9, 60) / 10, rng.random(60) < 0.4
    pairs = np.subtract.outer(scores[labels], scores[~labels])
    assert auc(scores, labels) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())
    above = np.sign(np.subtract.outer(scores, scores)) / 2 + 0.5
    weights = np.outer(scores, 1 - scores)
    assert expected_auc(scores) == pytest.approx((above * weights).sum() / weights.sum())
    with pytest.raises(ValueError, match="labels of both kinds, got 0 positive of 60"):
        auc(scores, np.zeros(60, np.bool_))


def test_no_other_score_beats_the_truth(domains_world):
    shown, truth = domains_world.impressions, domains_world.truth
    clicks = shown.labels[:, 1]
    best = auc(shown.probabilities(truth, "click"), clicks)
    wrong_domain = truth.probability(
        "click", shown.users, shown.items, shown.domains ^ 1, days=shown.days, slots=shown.slots
    )
    slots_alone = (truth.examination / 1_000)[shown.slots]
    assert auc(wrong_domain, clicks) < auc(slots_alone, clicks) < best - 0.1


def test_tastes_of_paired_domains_are_opposite(domains_world):
    truth = domains_world.truth
    users, topics = np.divmod(np.arange(60 * 8), 8)
    zero = np.zeros_like(users)
    first, second = (truth.liking(topics, users, zero + domain, zero) for domain in (0, 1))
    np.testing.assert_array_equal(first, -second)
    assert len(np.unique(first)) == 8


def test_tastes_drift_from_one_persona_to_the_other(drift_world):
    truth = drift_world.truth
    topics, users, zero = np.arange(8), np.zeros(8, np.int64), np.zeros(8, np.int64)
    segment = truth.segment_of_user[0]
    for end, day in enumerate((0, drift_world.config.num_days - 1)):
        liking = truth.liking(topics, users, zero, zero + day)
        np.testing.assert_array_equal(liking, 16 * truth.personas[end, segment])


def test_texts_tell_topic_and_domain(drift_world):
    topics, nouns = list(TOPICS), list(DOMAINS.values())
    for number, text in enumerate(drift_world.catalogue.descriptions):
        words = set(text.removesuffix(".").replace(",", "").split())
        told = [topic for topic in topics if words & set(TOPICS[topic])]
        assert told == [topics[drift_world.truth.topic_of_item[number]]]
        assert nouns[drift_world.truth.domain_of_item[number]] in words


def test_leaky_feature_is_the_click():
    made = world(replace(SMALL, leaky_feature=True))
    np.testing.assert_array_equal(
        made.events.hints, made.impressions.labels[made.events.impressions, 1]
    )


def test_outcomes_follow_their_impressions_and_each_other(domains_world):
    labels = domains_world.impressions.labels
    assert (labels[:, :-1] >= labels[:, 1:]).all()
    events = domains_world.events
    assert (np.diff(events.times) >= 0).all()
    counts = dict(zip(*np.unique(events.event_types, return_counts=True), strict=True))
    assert counts == {"impression": len(labels), **dict(zip(TASKS, labels.sum(0), strict=True))}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_domains": 9}, r"num_domains must be in \[1, 4\], got 9"),
        ({"num_items": 23}, r"num_items must be >= num_domains \* num_slots = 24, got 23"),
        ({"examination": (1.0, 0.0)}, r"examination must be in \(0, 1\]"),
        ({"drift": 1.5}, r"drift must be in \[0, 1\], got 1\.5"),
        ({"num_requests": 30 * DAY + 1}, "num_requests must be in"),
    ],
)
def test_impossible_worlds_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_worlds_with_nothing_to_show_are_refused():
    with pytest.raises(ValueError, match=r"cold_share = 1\.0 leaves 24 groups of items"):
        world(replace(SMALL, cold_share=1.0))


def test_unknown_names_are_refused(domains_world):
    with pytest.raises(ValueError, match="no world 'synthetic-none'; known: synthetic-tiny"):
        frozen_world("synthetic-none")
    with pytest.raises(ValueError, match="no task 'like'; there are view, click, purchase"):
        domains_world.impressions.probabilities(domains_world.truth, "like")
