import numpy as np
import pytest

from tests.recsys.testing.world_truth import TASKS
from tests.recsys.testing.worlds import FROZEN, KnownWorld, frozen_world


@pytest.fixture(scope="module")
def domains_world() -> KnownWorld:
    return frozen_world("synthetic-domains")


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_worlds_have_their_digests(name):
    assert frozen_world(name).digest() == FROZEN[name][1]


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
