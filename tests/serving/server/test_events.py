"""Events, hidden items and forgotten users on a running server."""

import pytest

from serving.client import Client, ServerError
from serving.online.sqlite_store import SqliteStore
from tests.features.test_ids import IDS
from tests.serving.server.running import wait_for


@pytest.fixture
def client(shared):
    with Client(shared.url, timeout=20) as client:
        yield client


def listed(reply):
    return [item.item_id for item in reply.items]


def kept(client, request_id):
    """The explanation of a list, once it is kept."""

    def found():
        try:
            return client.explain(request_id)
        except ServerError:
            return None

    return wait_for(found)


def test_a_click_changes_the_next_list_on_every_worker(client):
    first = client.recommend("clicker", k=5)
    assert first.fallback == "popularity"
    reply = client.event("clicker", listed(first)[0], "click", request_id=first.request_id, slot=1)
    assert (reply.accepted, reply.duplicates) == (1, 0)
    for _ in range(20):
        after = client.recommend("clicker", k=5)
        assert after.fallback is None
        assert listed(first)[0] not in listed(after)


def test_what_is_refused_is_gone_on_every_worker_until_it_is_undone(client):
    client.event("picky", "item-3")
    first = client.recommend("picky", k=8)
    hidden, disliked, *_ = listed(first)
    client.event("picky", hidden, "hide", request_id=first.request_id, slot=1)
    client.event("picky", disliked, "dislike")
    for _ in range(20):
        after = client.recommend("picky", k=8)
        assert not {hidden, disliked} & set(listed(after))
    assert [(one.words, one.direction) for one in after.steered] == [
        ("like disliked items", "less")
    ]
    explained = kept(client, after.request_id)
    assert [slot.item_id for slot in explained.items] == listed(after)
    assert client.explain(after.request_id, hidden).why_not.code == "hidden"
    for item_id in (hidden, disliked):
        client.event("picky", item_id, "undo")
    again = client.recommend("picky", k=8)
    assert (listed(again), again.steered) == (listed(first), None)


def test_all_events_of_a_body_are_stored_or_none(client, shared):
    good = {"event_id": "good", "user_id": "all", "item_id": "item-1", "event_type": "view"}
    for bad in ({"event_type": "glance"}, {"unix_time": 1e11}, {"slot": 0}, {"user_id": ""}):
        with pytest.raises(ServerError) as refused:
            client.events([good, {**good, "event_id": "bad", **bad}])
        assert (refused.value.status, refused.value.code) == (422, "invalid_request")
    assert client.events([good]).accepted == 1


def test_a_list_is_explained_by_what_it_was_made_from(client):
    client.event("curious", "item-3")
    reply = client.recommend("curious", k=5)
    explained = kept(client, reply.request_id)
    assert [slot.item_id for slot in explained.items] == listed(reply)
    assert [slot.score for slot in explained.items] == [item.score for item in reply.items]
    assert explained.still_served
    assert explained.num_live_events == 1
    assert all(slot.reason and slot.contributions for slot in explained.items)
    # What happens later changes nothing of what is said of it.
    client.event("curious", "item-8")
    assert client.explain(reply.request_id) == explained

    def why(item_id):
        return client.explain(reply.request_id, item_id).why_not

    assert why("item-3").code == "in_history"
    assert why("nowhere").code == "unknown_item"
    assert why(listed(reply)[1]).detail == "it was shown in slot 2"
    missing = listed(client.recommend("curious", k=40))[-1]
    assert why(missing).code in {"outranked", "no_source"}
    client.hide(missing)
    assert why(missing).code == "hidden"
    client.show(missing)


def test_dry_runs_are_not_kept(client):
    seen = client.recommend("dry", k=3)
    dry = client.recommend("dry", k=3, dry_run=True)
    kept(client, seen.request_id)
    with pytest.raises(ServerError, match="unknown_request"):
        client.explain(dry.request_id)


def test_a_forgotten_user_is_a_stranger(client, shared):
    user = "user-12"
    known = client.recommend(user, k=5)
    client.event(user, "item-3")
    kept(client, known.request_id)
    removed = client.forget(user).removed
    assert removed.events == 1
    assert removed.lists >= 1
    after = client.recommend(user, k=5)
    assert after.fallback == "popularity"
    assert "empty_history" in [what.code for what in after.degraded]
    with pytest.raises(ServerError, match="unknown_request"):
        client.explain(known.request_id)
    client.event(user, "item-3")
    assert client.recommend(user, k=5).fallback is None


def test_an_id_is_any_text_from_event_to_forgetting(client, shared):
    # A path's dots are taken off by clients and proxies, quoted or not.
    users = [one for one in IDS if one not in (".", "..")]
    client.events([{"user_id": one, "item_id": one, "event_type": "view"} for one in users])
    reader = SqliteStore(shared.log.parent / "online", readonly=True)
    stored = [(one.user_id, one.item_id) for _, one in reader.events_after(0, 100_000)]
    assert [one for one in stored if one[0] in users] == [(user, user) for user in users]
    # Each alone: none of them is another's id.
    assert [client.forget(user).removed.events for user in users] == [1] * len(users)
    assert all(reader.visitor(user, 1).forgotten_ms for user in users)
    reader.close()


def test_a_store_that_was_named_and_cannot_be_opened_ends_the_start(released, tmp_path):
    (tmp_path / "file").write_text("")
    from tests.serving.server.running import RunningServer

    server = RunningServer(released, tmp_path / "log", store=f"sqlite:{tmp_path / 'file'}")
    assert server.process.wait(timeout=60) != 0
    assert "online store" in server.log.read_text()
