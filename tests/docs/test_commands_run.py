"""Every ``recsys`` line of the pages is run, in a shop of its own, or named with what runs it."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.config.toml import merge, read_toml, to_toml
from pipelines.inputs import online_events
from tests.docs.pages import ROOT, blocks, commands

RECSYS = [sys.executable, "-m", "pipelines.cli.main"]
ELSEWHERE = {
    "recsys demo": "make demo",
    "recsys release adapt": "tests/pipelines/adapters; needs domains",
    "recsys data init postgresql": "tests/pipelines/inputs/test_databases.py",
    "recsys items sync runs/shop postgresql": "tests/pipelines/publishing/test_sync_items.py",
    "recsys events consume": "tests/pipelines/inputs/test_kafka_events.py",
    "recsys registry pull": "tests/pipelines/tracking; needs a registry",
    "recsys serve /srv/bundles": "goes with registry pull",
    "recsys monitor": "tests/year; needs ingested days",
    "recsys registry send": "tests/pipelines/tracking; needs a registry",
    "recsys run shop.toml --engine": "tests/pipelines/engine",
    "recsys run --preset movielens_100k": "tests/integration/test_demo.py",
    "recsys compare runs/shop --models blend,successors": "tests/integration/models",
    "recsys backtest": "tests/test_readme.py",
    "python -m": "tests of its own, peers or a GPU",
}
"""By the beginning of a line, what runs it."""
SERVED = {
    "recsys serve runs/shop": "tests/test_readme.py",
    "recsys serve runs/movielens-100k": "the same shop as runs/shop here",
    "recsys serve runs/shop --serving-config serving.toml": "docs/control.md's line without a shop",
}
"""Whole lines that start a server like that of another line, each by what starts it."""
SMALLER = {"tune": "tune --trials 3"}
"""Words of a line that stand for less work here, in lines that would take long."""
TRAINS_LESS = {
    "content": {"encoder": "hash"},
    "two_tower_training": {"enabled": True, "max_epochs": 2.0},
    "sequence_training": {"enabled": False},
    "search": {"meaning_words": 200},
}
"""Settings of the shop in which the lines run: models that train for seconds."""
ITEMS = ["1", "50", "181", "242", "302", *(f"sku-{number}" for number in range(35))]
"""Those that pages name, and others."""
EXPERIMENT_TIMES = re.compile(r"^(from|until) = .*Z\n", re.MULTILINE)
EXPLORATION = 'exploration = {method = "epsilon", epsilon = 0.1}'
LAST = ("release append", "release rollback", "release promote", "data forget")
"""What changes the shop comes after what reads it."""


def lines() -> Iterator[tuple[str, list[str]]]:
    """Give each line that runs here once, with its place."""
    seen: set[str] = set()
    for block in blocks():
        if block.language not in ("", "sh", "bash") or block.text.startswith("raw events"):
            continue
        for words in commands(block):
            line = " ".join([words[0].rpartition("/")[2], *words[1:]])
            known = line in {*seen, *SERVED} or any(map(line.startswith, ELSEWHERE))
            if line.startswith(("recsys ", "python ")) and not known:
                seen.add(line)
                yield str(block), words[1:]


def write_shop(folder: Path) -> None:
    """62 customers of two tastes, 40 products with prices, and a few purchases."""
    rng = random.Random(0)
    names = ["ann", "42", "4711", *(f"customer-{number}" for number in range(59))]
    with (folder / "events.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "sku", "ts", "event"])
        for number, name in enumerate(names):
            for day, item in enumerate(rng.sample(ITEMS[number % 2 :: 2], 12), 10):
                kind = "purchase" if day % 4 == 0 else "view"
                writer.writerow([name, item, f"2026-10-{day}T12:00:00", kind])
    for name, items in (
        ("items.csv", ITEMS),
        ("stock.csv", ITEMS),
        ("new-items.csv", ["new-1", "new-2"]),
    ):
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sku", "title", "categories", "price", "in_stock", "release_year"])
            for number, item in enumerate(items):
                kind = ["Comedy", "Horror"][number % 2]
                row = [f"{kind} {number}", kind, 5 + number, number % 3 > 0, 1980 + number]
                writer.writerow([item, *row])


class Shop:
    """A folder in which a stranger follows the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_shop(folder)
        # Its experiment is a winter's; here it runs, and lists explore as the page on them says.
        served = (ROOT / "deploy" / "serving.toml").read_text(encoding="utf-8")
        explored = served.replace("[surfaces.home]\n", f"[surfaces.home]\n{EXPLORATION}\n")
        (folder / "serving.toml").write_text(EXPERIMENT_TIMES.sub("", explored))
        (folder / "key.txt").write_text("0123456789abcdef0123456789abcdef")

    def run(self, place: str, words: list[str]) -> None:
        words = [self.known(word) for word in self.smaller(words)]
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 0, f"{place}: recsys {' '.join(words)}: {found.output[-800:]}"
        if words[:2] == ["data", "init"]:
            path = self.folder / "shop.toml"
            path.write_text(to_toml(merge(read_toml(path), TRAINS_LESS)))

    def smaller(self, words: list[str]) -> list[str]:
        if words[:1] == ["tune"] or words[:2] == ["data", "generate"]:
            return " ".join(SMALLER.get(word, word) for word in words).split()
        return words

    def known(self, word: str) -> str:
        """Name the release that there is in place of a page's."""
        bundles = self.folder / "runs" / "shop" / "bundles"
        release = (bundles / "current").resolve().name
        named = {
            "3f2a9c01b7de": release.removeprefix("bundle-"),
            "runs/shop/bundles/bundle-1a2b": f"runs/shop/bundles/{release}",
            "/srv/runs": str(self.folder),
        }
        return named.get(word, word)

    def serve(self, words: list[str]) -> None:
        """Start what a line starts, ask it for lists, and buy from them."""
        words = [*(self.known(word) for word in words), "--port", str(port := free_port())]
        with started(self.folder, words):
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/readyz" if words[0] == "serve" else address)
            for number in range(40 if "serving.toml" in words else 0):
                user = f"customer-{number}"
                listed = posted(f"{address}/v1/recommend", {"user_id": user, "k": 5})
                event = {
                    "event_id": f"{port}-{number}",
                    "user_id": user,
                    "item_id": listed["items"][number % 3]["item_id"],
                    "event_type": ["purchase", "click"][number % 2],
                    "request_id": listed["request_id"],
                }
                reply = posted(f"{address}/v1/events", {"events": [event]})
                assert reply["accepted"] == 1


def posted(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def started(folder: Path, words: list[str]) -> Iterator[None]:
    environment = {**os.environ, "BROWSER": "true", "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen([*RECSYS, *words], cwd=folder, env=environment)
    try:
        yield
    finally:
        server.terminate()
        assert server.wait(timeout=60) in (0, -signal.SIGTERM)


def wait_for(url: str) -> None:
    """Wait until a server replies; one with a key says that it needs it."""
    for _ in range(6_000):
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return
        except OSError:
            pass
        time.sleep(0.02)
    pytest.fail(f"{url} was not there within two minutes")


def is_server(words: list[str]) -> bool:
    return words[0] in ("serve", "dashboard")


def in_order(found: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """First what makes the shop, then the server, then what reads both, then what changes them."""

    def place(line: tuple[str, list[str]]) -> int:
        words = " ".join(line[1])
        if words.startswith(("data init", "run shop.toml --budget")):
            return 0
        if words.startswith("serve --serving-config"):
            return 1
        if words.startswith(("data export", "score")):
            return 2
        return 4 if words.startswith(LAST) else 3

    return sorted(found, key=place)


def test_every_line_runs_or_is_named_with_what_runs_it() -> None:
    assert len(list(lines())) > 40
    written = " ".join(block.text for block in blocks()).replace("'", "").replace('"', "")
    for begin in ELSEWHERE:
        assert begin.split(" -")[0] in written


@pytest.mark.slow
def test_the_lines_of_the_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    # No other server is still writing its lists of the last minute.
    monkeypatch.setattr(online_events, "SETTLED_MS", 0)
    (tmp_path / "runs" / "shop").mkdir(parents=True)
    # The demo's pages are followed in the same shop.
    (tmp_path / "runs" / "movielens-100k").symlink_to("shop")
    for place, words in in_order(list(lines())):
        if is_server(words):
            shop.serve(words)
        else:
            shop.run(place, words)
