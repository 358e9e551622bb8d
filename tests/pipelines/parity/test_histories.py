"""The path of a request agrees with a slow truth on histories, times and features."""

import numpy as np
import pytest

from features.point_in_time import FEATURES, UserState
from serving.bundle.load import load_bundle
from serving.online.store import RecentEvent, Visitor
from serving.query import hydrate
from serving.schemas import Request
from serving.surfaces import HOME
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

DAY = 86_400


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    size = SyntheticSize(
        num_users=30, context_features=tuple(FEATURES), event_types=("cart", "view")
    )
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("batch"), "v1", size))


def cases(bundle, clock, seed=0, number=200):
    """Requests with what the store knows: events before and after the bundle's, ties, doubles."""
    drawn = np.random.default_rng(seed)
    users = bundle.users
    for place in range(number):
        user = f"user-{drawn.integers(1, 40)}"
        row = users.row_of(user) or 0
        own = users.events(row).times
        times = [int(clock - drawn.integers(0, 3 * DAY)) for _ in range(drawn.integers(0, 6))]
        events = [(f"item-{drawn.integers(1, 45)}", second) for second in times]
        if own is not None and len(own):
            known = users.history(row)
            at = int(drawn.integers(len(own)))
            # One that the bundle knows too, one of its second, and one before all others.
            events.append((bundle.catalogue.item_ids[int(known[at])], int(own[at])))
            events.append(("item-1", int(own[at])))
            events.append(("item-2", int(own[0]) - 5))
        events = sorted(events, key=lambda pair: pair[1])
        request = {"k": 20}
        if drawn.random() < 0.9:
            request["user_id"] = user
        if drawn.random() < 0.3:
            request["session"] = [f"item-{drawn.integers(1, 45)}" for _ in range(3)]
        if drawn.random() < 0.3:
            given = int(drawn.choice(own)) if own is not None and len(own) else clock
            request["context"] = {"unix_time": given + int(drawn.integers(0, 2))}
            events = [pair for pair in events if pair[1] < request["context"]["unix_time"]]
        document = {"request": request, "unix_ms": 1_000 * clock + place}
        if drawn.random() < 0.1 and "user_id" in request:
            document["forgotten_ms"] = 1_000 * int(clock - drawn.integers(0, 10 * DAY))
            since = document["forgotten_ms"]
            events = [pair for pair in events if 1_000 * pair[1] > since]
        if "user_id" not in request:
            events = []
        live = [
            RecentEvent(item, str(drawn.choice(["cart", "view", "click"])), 1_000 * second + 7)
            for item, second in events
        ]
        yield document, live


def slow_truth(bundle, document, live):
    """Moment, history with times and types and features of a request, event by event."""
    request, users = document["request"], bundle.users
    row_of, session = bundle.catalogue.row_of, request.get("session") or ()
    clock, newest = document["unix_ms"] // 1_000, users.newest_time
    now = clock if 0 <= clock - newest <= 30 * DAY else newest + 1
    given = request.get("context", {}).get("unix_time")
    moment, late = (now, now - clock) if given is None else (given, 0)
    row, forgotten = users.row_of(request.get("user_id", "")) or 0, document.get("forgotten_ms")
    known = [
        (item, time, kind)
        for item, time, kind in zip(*(part.tolist() for part in users.events(row)), strict=True)
        if time < moment and (forgotten is None or 1_000 * time >= forgotten)
    ]
    last = max((time for _, time, _ in known), default=0)
    events = [(time, 0, item, kind) for item, time, kind in known]
    pairs = {pair[:2] for pair in known}
    for event in live:
        item, time = row_of(event.item_id), event.time_ms // 1_000
        if item is None or event.item_id in session or (item, time) in pairs:
            continue
        moved = max(time + late, last) if late else time
        kind = {"cart": 1, "view": 2}.get(event.event_type, 0)
        events.append((min(moved, moment - 1), 1, item, kind))
    sent = [row_of(item) for item in session]
    events += [(moment - 1, 2, item, 0) for item in sent if item is not None]
    events.sort(key=lambda event: event[:2])
    state = UserState()
    for time, *_ in events:
        state.update(time)
    features = {
        f"context.{name}": FEATURES[name].value(state, moment) for name in bundle.context_features
    }
    owner = row if forgotten is None else 0
    features |= {"user": owner} | {
        f"user.{name}": int(values[owner]) for name, values in users.features.items()
    }
    times, _, items, types = (
        (list(part) for part in zip(*events, strict=True)) if events else [[]] * 4
    )
    return moment, items, times, types, features


@pytest.mark.parametrize("later", [60, 20 * DAY, 900 * DAY])
def test_a_request_reads_what_a_slow_truth_reads_of_fresh_and_old_bundles(bundle, later):
    clock, total, hours = bundle.users.newest_time + later, 0, set()
    for document, live in cases(bundle, clock):
        moment, items, times, types, features = slow_truth(bundle, document, live)
        visitor = Visitor(live, document.get("forgotten_ms"))
        query = hydrate(Request.model_validate(document["request"]), bundle, HOME, visitor, clock)
        assert query.moment == moment
        assert query.history.tolist() == items
        assert query.times.tolist() == times
        assert query.types.tolist() == types
        assert query.categorical == features
        total += len(items)
        hours.add(features["context.hour_of_day"])
    assert total > 1_000
    assert len(hours) > 1
