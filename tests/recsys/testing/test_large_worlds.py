"""Large worlds: partitions by themselves, tastes, Zipf's law, new users and items."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from tests.recsys.testing.large_worlds import (
    DAY,
    NUM_TOPICS,
    LargeWorldConfig,
    events_of_partition,
    item_numbers,
    items_of_range,
    launch_days,
    likings,
    segments_of,
)
from tests.recsys.testing.world_defects import START

WORLD = LargeWorldConfig(num_events=200_000, num_users=5_000, num_items=800, num_days=10)
DIGEST = "0393efc5e5e7f3241e6235398486ada38a1c08866ea896860e38113a00630080"


def test_a_partition_depends_on_seed_day_and_bucket_alone():
    hasher = hashlib.sha256()
    events = events_of_partition(WORLD, 3, 0)
    for column in (events.users, events.items, events.times, events.types):
        hasher.update(np.ascontiguousarray(column).tobytes())
    assert hasher.hexdigest() == DIGEST
    other = events_of_partition(replace(WORLD, seed=1), 3, 0)
    assert not np.array_equal(events.users, other.users)


def test_the_partitions_hold_every_event_once_on_its_day_and_in_its_users_bucket():
    world = replace(WORLD, num_events=2_500_000, num_days=2, crawler_events=1_001)
    assert world.num_buckets == 2
    total = 0
    for day, bucket in world.partitions:
        events = events_of_partition(world, day, bucket)
        assert len(events.users) == world.events_of(day, bucket)
        assert set((events.users % 2).tolist()) == {bucket}
        assert set(((events.times - START) // DAY).tolist()) == {day}
        assert events.items.min() >= 0
        assert events.items.max() < world.num_items
        total += len(events.users)
    assert total == 2_501_001


def test_users_and_items_come_as_days_pass_and_never_before():
    first, last = (events_of_partition(WORLD, day, 0) for day in (0, 9))
    assert first.users.max() < WORLD.users_until(0) == 3_000
    assert last.users.max() >= 3_000
    assert launch_days(WORLD, first.items).max() == 0
    assert len(set(last.items.tolist()) - set(first.items.tolist())) > 80


def test_a_segments_sessions_follow_its_liking_and_popularity_follows_zipf():
    events = events_of_partition(WORLD, 0, 0)
    segments = segments_of(WORLD, events.users)
    counts = np.zeros((WORLD.num_segments, NUM_TOPICS))
    np.add.at(counts, (segments, events.items % NUM_TOPICS), 1)
    assert (counts.argmax(1) == likings(WORLD, 0).argmax(1)).mean() > 0.9
    of_topic = np.bincount(events.items[events.items % NUM_TOPICS == 0] // NUM_TOPICS)
    # The weight of place p is 1 / (p + 8): places 0 to 7 have twice the events of 24 to 39.
    expected = sum(1 / (8 + p) for p in range(8)) / sum(1 / (8 + p) for p in range(24, 40))
    found = of_topic[:8].sum() / of_topic[24:40].sum()
    assert found == pytest.approx(expected, rel=0.35)


def test_tastes_drift():
    world = replace(WORLD, drift=0.9)
    assert (likings(world, 0).argmax(1) != likings(world, 9).argmax(1)).any()
    assert np.array_equal(likings(replace(world, drift=0.0), 9), likings(world, 0))


def test_item_ids_are_each_there_once_and_the_catalogue_tells_topic_and_launch():
    items = np.arange(WORLD.num_items)
    assert sorted(item_numbers(WORLD, items).tolist()) == items.tolist()
    part = items_of_range(WORLD, 100, 110)
    assert part.catalogue.item_ids[0] == f"item-{item_numbers(WORLD, items)[100]}"
    assert part.catalogue.categories[0][1] == "crime"
    assert part.available_from[5] == START + DAY * launch_days(WORLD, items)[105]


@pytest.mark.parametrize("wrong", [{"num_items": 5}, {"drift": 1.0}, {"num_days": 0}])
def test_what_cannot_be_made_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(WORLD, **wrong)
