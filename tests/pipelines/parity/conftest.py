"""Lists that the HTTP application served from a real store, while events arrived."""

import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from starlette.testclient import TestClient

from features.point_in_time import FEATURES
from pipelines.inputs.online_events import opened
from pipelines.parity.log import log_of_store
from pipelines.parity.recompute import check_parity
from serving.bundle.manifest import publish
from serving.settings import Settings
from tests.serving.application import create_app
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

CONFIGURATION = """
[surfaces.home]
diversity = {method = "mmr", strength = 0.2}
k = 12

[surfaces.draws]
kind = "home"
exploration = {method = "plackett_luce", temperature = 0.3}

[surfaces.fresh]
kind = "home"
not_shown_within = "1h"
k = 5

[[rules]]
name = "first"
kind = "pin"
items = ["item-7"]
slot = 2

[[rules]]
name = "less"
kind = "bury"
places = 4
where = "category = 'tens'"
surfaces = ["home"]

[[experiments]]
name = "more"
surfaces = ["home", "draws"]
arms = [
  {name = "control"},
  {name = "varied", overrides = {diversity = {strength = 0.8}}},
  {name = "bold", overrides = {exploration = {method = "epsilon", epsilon = 0.3}}},
]
"""
SIZE = SyntheticSize(
    num_items=120,
    num_users=40,
    context_features=tuple(FEATURES),
    # A click is of a type that no model knows.
    event_types=("purchase", "view"),
    history_models=True,
    ranker=True,
)
KINDS = (
    {"surface": "home"},
    {"surface": "home", "k": 20},
    {"surface": "draws", "k": 8},
    {"surface": "fresh"},
    {"surface": "home", "filter": {"categories": ["even"]}},
    {"surface": "home", "exclude": ["item-2", "item-9"], "explain": True},
    {"surface": "home", "session": ["item-4", "item-11", "nowhere"]},
    {"surface": "home", "cursor": "start", "k": 6},
    {"surface": "home", "context": {"unix_time": 1_700_600_000}},
    {"surface": "cart", "session": ["item-8", "item-20"]},
)


class Served(NamedTuple):
    """What a server left behind."""

    bundles: Path
    store: str
    config: Path
    num_lists: int

    def log(self, sample=100_000):
        with opened(self.store) as store:
            return log_of_store(store, sample)

    def parity(self, log=None, **changes):
        log = replace(log or self.log(), **changes)
        return check_parity(log, self.bundles, configurations=[self.config])


def send_lists(client, num_lists, seed=0):
    """Request lists of every kind, of known and unknown users, pages of some; post events."""
    drawn, sent = random.Random(seed), 0
    while sent < num_lists:
        kind = dict(drawn.choice(KINDS))
        if drawn.random() < 0.9:
            kind["user_id"] = f"user-{drawn.randrange(1, 60)}"
        if drawn.random() < 0.1:
            kind = {"surface": "related", "item_id": f"item-{drawn.randrange(1, 121)}"}
        reply = client.post("/v1/recommend", json=kind)
        assert reply.status_code == 200, reply.text
        sent += 1
        cursor = reply.json().get("cursor")
        if cursor is not None and sent < num_lists:
            further = client.post("/v1/recommend", json={**kind, "cursor": cursor})
            assert further.status_code == 200, further.text
            sent += 1


def send_events(client, stop, seed=1):
    """Post events of those users until they are stopped, some of them of a while ago."""
    drawn, number = random.Random(seed), 0
    while not stop.is_set():
        number += 1
        kinds = ("click", "view", "purchase", "impression")
        event = {
            "event_id": f"{seed}-{number}",
            "user_id": f"user-{drawn.randrange(1, 60)}",
            "item_id": f"item-{drawn.randrange(1, 125)}",
            "event_type": drawn.choice(kinds),
        }
        if drawn.random() < 0.3:
            event["unix_time"] = time.time() - drawn.randrange(100_000)
        assert client.post("/v1/events", json={"events": [event]}).status_code == 200
        stop.wait(0.003)


def refuse(client):
    """Let users hide or dislike an item each."""
    kinds = ("hide", "dislike")
    events = [
        {"event_id": f"no-{n}", "user_id": f"user-{n}", "item_id": f"item-{n}", "event_type": kind}
        for n, kind in enumerate(kinds * 20, start=1)
    ]
    return client.post("/v1/events", json={"events": events})


def serve(folder, num_lists, *, size=SIZE, share=0.4, store=None):
    """Serve lists from a bundle of a folder while events arrive and items are hidden."""
    bundles, config = folder / "bundles", folder / "serving.toml"
    write_synthetic_bundle(bundles, "v1", size)
    publish(bundles, "v1")
    config.write_text(CONFIGURATION)
    settings = Settings(
        bundles=bundles,
        store=store or f"sqlite:{folder / 'online'}",
        config=config,
        log_requests=False,
        allow_admin=True,
        ranker_timeout_ms=None,
        beam_timeout_ms=None,
        store_timeout_ms=5_000,
        log_features_share=share,
    )
    stop, application = threading.Event(), create_app(settings)
    with TestClient(application) as client:
        others = threading.Thread(target=send_events, args=(client, stop))
        others.start()
        try:
            send_lists(client, num_lists // 2)
            hidden = {"items": [{"item_id": "item-3", "hidden": True}]}
            assert client.post("/v1/items", json=hidden).status_code == 200
            # What is disliked moves items, and a changed order of ties with them.
            assert not size.history_models or refuse(client).status_code == 200
            send_lists(client, num_lists - num_lists // 2, seed=2)
        finally:
            stop.set()
            others.join()
    # The last records are written behind the replies.
    application.writer.close()
    return Served(bundles, settings.store, config, num_lists)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    return serve(tmp_path_factory.mktemp("served"), 200)
