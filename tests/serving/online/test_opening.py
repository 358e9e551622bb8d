"""Addresses of online stores, and who opens one for reading and who for writing."""

import pytest

from serving.online.opening import is_store, open_store, open_writer, store_opener
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
