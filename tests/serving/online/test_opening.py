"""Addresses of online stores, and who opens one for reading and who for writing."""

import sqlite3
import time

import pytest

from serving.online.opening import is_store, open_store, open_writer, store_opener
from serving.online.store import StoreError
from serving.settings import Settings
from tests.serving.online.test_contract import event


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlite:runs/shop/online", True),
        ("redis://localhost:6379/0", True),
        ("rediss://localhost", True),
        ("unix:///run/redis.sock", True),
        ("runs/shop/online", False),
        ("items.csv", False),
        ("none", False),
    ],
)
def test_addresses_of_stores_are_told_from_paths(text, expected):
    assert is_store(text) is expected


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


def test_a_reader_waits_for_a_locked_file_as_long_as_the_settings_say(tmp_path):
    settings, writer = open_writer(Settings(store=f"sqlite:{tmp_path}", store_timeout_ms=20))
    writer.close()
    reader = store_opener(settings)()
    # A lock of the whole file, as a restore or a foreign tool takes it.
    other = sqlite3.connect(tmp_path / "events.db", isolation_level=None)
    reader.close()
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("UPDATE state SET items_version = 3")
    began = time.monotonic()
    with pytest.raises(StoreError, match="another process is writing"):
        reader.visitor("ann", 9)
    assert time.monotonic() - began < 2
    other.execute("ROLLBACK")
    other.close()
    reader.close()
