"""A server for the try-it page, and what a test reads from the page."""

import json
import os
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from tests.serving.server.running import running
from tests.serving.synthetic_bundle import SyntheticSize

SIZE = SyntheticSize(num_items=60, num_users=30)
HOSTILE = [
    '<img src=x onerror="window.broken=1">',
    '"><script>window.broken=1</script>',
    "</li></ol><h1>out</h1>",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 family \U0001f600",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed",
    "W" * 300,
    'it\'s $(a) `shell` "quoted" \\ & more',
]
CATEGORY = "it's <b>odd</b>"


@contextmanager
def serving(bundles: Path, **settings: str):
    """Address of a patient server: a machine that runs other tests is slow to load a page."""
    settings = {"expose_users": "true", "queue_ms": "20000", **settings}
    with running(bundles, os.devnull, **settings) as server:
        yield server.url, server.process


def pass_by_key(route, key):
    """Refuse as a server with keys does."""
    if route.request.headers.get("authorization") == f"Bearer {key}":
        route.continue_()
    else:
        error = {"error": {"code": "key_missing", "message": "send your key"}}
        route.fulfill(status=401, json=error)


def ask(address, path, body=None):
    request = urllib.request.Request(
        address + path,
        data=None if body is None else body.encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def listed(page):
    return page.eval_on_selector_all("#list .item", "rows => rows.map(row => row.dataset.id)")


def moves(page):
    return page.eval_on_selector_all(
        "#list .move", "all => all.map(one => one.firstChild ? one.firstChild.textContent : '')"
    )


def until(page, condition):
    """Wait for a condition; the page's policy forbids the way Playwright has of waiting for one."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never came true: {condition}")


@contextmanager
def new_list(page):
    """Wait until the list is another one, drawn whole."""
    before = page.evaluate("performance.getEntriesByName('list').length")
    yield
    until(page, f"performance.getEntriesByName('list').length > {before}")


@contextmanager
def new_topics(page, number):
    """Wait until this number of topics is shown, and the list that follows them."""
    with new_list(page):
        yield
    until(page, f"document.querySelectorAll('#topics .remove').length === {number}")


def choose_user(page, user):
    with new_list(page):
        page.fill("#user", user)
        page.press("#user", "Enter")


def choose_title(page, field, text):
    """Choose the first suggestion for a title."""
    page.fill(field, text)
    page.wait_for_selector(f"{field}-choices [role=option]")
    page.click(f"{field}-choices [role=option] >> nth=0")
