"""Addresses of online stores, and who opens one for reading and who for writing."""

from dataclasses import replace

import pytest

from serving.online.events import MAX_AHEAD_MS, Event, SentEvent
from serving.online.opening import import_store, is_store, open_store, open_writer, store_opener
from serving.online.store import StoreError
from serving.settings import Settings
from tests.serving.online.test_contract import event


def test_addresses_of_stores_are_told_from_paths():
    stores = ("sqlite:runs/shop/online", "redis://localhost:6379/0", "unix:///run/redis.sock")
    assert all(map(is_store, stores))
    assert not any(map(is_store, ("runs/shop/online", "items.csv", "none")))


@pytest.mark.parametrize(
    "text", ["", "sqlite:", "sqlite://host/x", "folder", "redis:6379", "mysql:x", "None"]
)
def test_an_address_of_no_store_is_refused_by_name(text):
    with pytest.raises(ValueError, match=f"{text!r} is no online store; write sqlite:FOLDER"):
        open_store(text)


def test_what_a_worker_opens_cannot_write_and_follows_the_writer(tmp_path):
    settings = Settings(store=f"sqlite:{tmp_path}")
    with pytest.raises(StoreError, match=r"events\.db"):
        store_opener(settings)()
    opened, writer = open_writer(settings)
    reader = store_opener(opened)()
    with pytest.raises(StoreError, match="cannot be written"):
        reader.add_events([event(1)])
    writing = open_store(opened.store_url)
    writing.add_events([event(1)])
    assert len(reader.visitor("ann", 9).events) == 1
    for store in (reader, writing, writer):
        store.close()


def test_a_store_that_cannot_be_written_is_off_unless_it_was_asked_for(tmp_path):
    for url in ("none", "sqlite:folder", "redis://localhost:6379/0"):
        import_store(url)
    assert open_store("none") is None
    asked = Settings(store="none")
    assert open_writer(asked) == (asked, None)
    (tmp_path / "online").touch()
    default = Settings(bundles=tmp_path / "bundles")
    assert open_writer(default) == (replace(default, store="none"), None)
    with pytest.raises(ValueError, match=f"online store {tmp_path}/online"):
        open_writer(replace(default, store=default.store_url))


def test_an_event_of_the_future_is_refused_and_a_fast_clock_is_set_back():
    sent = SentEvent(event_id="e", user_id="ann", item_id="i", event_type="click")
    assert Event.received(sent, 5_000).time_ms == 5_000
    early = sent.model_copy(update={"unix_time": 3.5})
    assert Event.received(early, 5_000).time_ms == 3_500
    fast = sent.model_copy(update={"unix_time": (5_000 + MAX_AHEAD_MS) / 1_000})
    assert Event.received(fast, 5_000).time_ms == 5_000
    late = sent.model_copy(update={"unix_time": 6.0 + MAX_AHEAD_MS / 1_000})
    with pytest.raises(ValueError, match=r"event 'e' has unix_time .* ahead of the server"):
        Event.received(late, 5_000)
