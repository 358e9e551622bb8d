"""The batch definitions and the path of a request agree on histories, times and features."""

from dataclasses import replace

import numpy as np
import pytest

from features.point_in_time import FEATURES
from pipelines.parity.batch import batch_features
from serving.bundle.load import load_bundle
from serving.online.store import RecentEvent, Visitor
from serving.query import hydrate
from serving.schemas import Request
from serving.surfaces import HOME
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

DAY = 86_400


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    size = SyntheticSize(num_users=30, context_features=tuple(FEATURES))
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("batch"), "v1", size))


def cases(bundle, clock, seed=0, number=200):
    """Requests with what the store knows: events before and after the bundle's, ties, doubles."""
    drawn = np.random.default_rng(seed)
    users = bundle.users
    for place in range(number):
        user = f"user-{drawn.integers(1, 40)}"
        row = users.row_of(user) or 0
        own = users.history_times(row)
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
        live = [RecentEvent(item, "click", 1_000 * second + 7) for item, second in events]
        yield document, live


def agree(bundle, clock, *, least_events):
    found = list(cases(bundle, clock))
    documents, lives = [document for document, _ in found], [live for _, live in found]
    by_batch = batch_features(bundle, documents, lives)
    total = 0
    for document, live, batch in zip(documents, lives, by_batch, strict=True):
        request = Request.model_validate(document["request"])
        visitor = Visitor(live, document.get("forgotten_ms"))
        query = hydrate(request, bundle, HOME, visitor, clock)
        assert query.moment == batch.moment
        assert query.categorical == batch.features
        assert query.history.tolist() == list(batch.item_rows)
        if query.times is not None:
            assert query.times.tolist() == list(batch.times)
        total += len(query.history)
    assert total > least_events
    return by_batch


@pytest.mark.parametrize("later", [60, 20 * DAY, 900 * DAY])
def test_both_agree_whether_the_bundle_is_fresh_or_years_old(bundle, later):
    clock = bundle.users.newest_time + later
    found = agree(bundle, clock, least_events=1_000)
    hours = {batch.features["context.hour_of_day"] for batch in found}
    assert len(hours) > 1
    assert any(batch.moment != clock for batch in found)


def test_both_agree_where_events_have_an_order_and_no_times(bundle):
    users = replace(bundle.users, times=None)
    ordered = replace(bundle, users=users, context_features={"user_num_events": 11})
    agree(ordered, 1_700_000_000, least_events=1_000)


def test_no_requests_are_no_error(bundle):
    assert batch_features(bundle, [], []) == []
