"""A new item on a running server: found by its content, both ways."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World, two_tastes

if importlib.util.find_spec("sentence_transformers") is None:
    pytest.skip("needs the MiniLM encoder", allow_module_level=True)
MINILM = ("--set", "content.encoder=minilm+words", "--set", "blend.enabled=false", "--quiet")
"""Learned weights serve, whether or not one source is better on 60 users."""
NEW = "tulips-and-compost"
ROW = f'{NEW},Tulips in the orchard,"About compost, soil and seeds for your tulips.",books|garden\n'


@pytest.fixture(scope="module")
def tastes() -> World:
    """Even items and users are about gardens, odd ones about space."""
    return two_tastes(num_users=60, num_items=40)


@pytest.fixture(scope="module")
def config(
    tmp_path_factory: pytest.TempPathFactory, tastes: World, write_world: Callable[..., Path]
) -> Path:
    return write_world(tmp_path_factory.mktemp("tastes"), tastes)


@pytest.fixture(scope="module")
def workspace(config: Path, recsys: Recsys) -> Path:
    workspace = config.parent / "run"
    result = recsys("run", config, "--set", f"workspace={workspace}", *MINILM)
    assert result.exit_code == 0, result.output
    return workspace


@pytest.fixture(scope="module")
def address(workspace: Path) -> Iterator[str]:
    """A server in a process of its own, which nobody tells of anything."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pipelines.cli.main", "serve", str(workspace)]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while asked(address, "/readyz") is None:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield address
    finally:
        process.terminate()
        process.wait()


def asked(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        address + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


@pytest.fixture(scope="module")
def appended(address: str, workspace: Path, recsys: Recsys) -> Any:
    """The first reply that knows the new item."""
    path = workspace.parent / "new.csv"
    path.write_text("item_id,title,description,categories\n" + ROW)
    before = asked(address, "/readyz")
    assert asked(address, f"/v1/similar/{NEW}") is None
    result = recsys("release", "append", workspace, path)
    assert result.exit_code == 0, result.output
    published = time.monotonic()
    while (reply := asked(address, f"/v1/similar/{NEW}?k=10")) is None:
        assert time.monotonic() - published < 60, asked(address, "/readyz")
        time.sleep(0.02)
    after = asked(address, "/readyz")
    assert after["bundle"] == f"{before['bundle']}+1"
    assert after["semantic_ids"] != before["semantic_ids"]
    assert reply["served_by"]["semantic_ids"] == after["semantic_ids"]
    return reply


def ids_of(reply: Any) -> list[str]:
    return [item["item_id"] for item in reply["items"]]


def is_garden(item_id: str) -> bool:
    return item_id == NEW or int(item_id.removeprefix("item-")) % 2 == 0


def test_neighbours_of_the_new_item_are_of_its_kind(appended: Any) -> None:
    assert all(map(is_garden, ids_of(appended)))
    assert {item["source"] for item in appended["items"]} <= {"two_tower", "content_similarity"}


def test_the_new_item_is_in_its_neighbours_lists(address: str, appended: Any) -> None:
    for neighbour in ids_of(appended)[:3]:
        assert NEW in ids_of(asked(address, f"/v1/similar/{neighbour}?k=20"))


def test_visitors_and_users_of_its_kind_get_it(address: str, appended: Any, tastes: World) -> None:
    def place(**who: Any) -> int:
        return ids_of(asked(address, "/v1/recommend", {**who, "k": 41})).index(NEW)

    like = ids_of(appended)[:3]
    # Among the 20 of its kind, before all others: learned weights give a new item no advance.
    assert place(session=like) < 20 <= place(session=["item-1", "item-3", "item-5"])
    gardeners = [place(user_id=user) for user in tastes.users[0:20:2]]
    stargazers = [place(user_id=user) for user in tastes.users[1:20:2]]
    assert max(gardeners) < min(stargazers)


def test_title_search_and_details_know_it(address: str, appended: Any) -> None:
    found = asked(address, "/v1/search?q=" + quote("tulips in the orch"))["items"]
    assert ids_of({"items": found})[0] == NEW
    listed = [
        item
        for item in asked(address, "/v1/recommend", {"session": ids_of(appended), "k": 41})["items"]
        if item["item_id"] == NEW
    ]
    assert [item["semantic_id"] for item in listed] == [found[0]["semantic_id"]]
    assert found[0]["semantic_id"]
