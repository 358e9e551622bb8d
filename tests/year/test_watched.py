"""Five months of the synthetic shop: few false alarms, and drift of each kind on its first day."""

from __future__ import annotations

import pytest

from tests.year.watched import Watched
from tests.year.world import KINDS, Drift, World, WorldConfig

CONFIG = WorldConfig(seed=7, days=150, users=1_200, items=300, events=1_600)
NUM_MONTHS = 5
OWN_SIGNALS = {
    "event_mix": {"event_types"},
    "category": {"popularity"},
    "popularity": {"popularity"},
    "ctr": {"click_rate"},
    "stops": {"events"},
}


@pytest.fixture(scope="module")
def months() -> tuple[Watched, int]:
    """Watch without drift; with the number of days on which an alarm was raised."""
    watched = Watched()
    alarms = [watched.see(day) for day in World(CONFIG).days()]
    return watched, sum(map(bool, alarms))


@pytest.mark.slow
def test_at_most_one_false_alarm_a_month(months):
    assert months[1] <= NUM_MONTHS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_drift_is_found_on_its_first_day(months, kind):
    drift = Drift(kind=kind, day=CONFIG.days, size=0.5)
    assert OWN_SIGNALS[kind] & set(months[0].with_drift(CONFIG, [drift]))
