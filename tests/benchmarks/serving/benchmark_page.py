"""First paint of the try-it page and the time from a click to the new list, in headless Chromium.

Each first paint is a fresh browser context (empty cache); each click adds the item at a place of
the list and waits until the new list is on the screen (two frames after it is in the document).
Server and browser share this machine's cores. Needs chromium and playwright.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser

from serving.bundle.manifest import publish
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.serving.server import CHROMIUM, chromium, serving
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
# When the second frame after the change begins, what changed has been painted.
CLICK = """(place) => new Promise((done) => {
  const list = document.getElementById("list");
  const started = performance.now();
  new MutationObserver((changes, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - started)));
  }).observe(list, { childList: true });
  list.querySelectorAll(".title")[place].click();
})"""

DEMO_SIZE = SyntheticSize(
    num_items=1682,
    num_users=943,
    events_per_user=106,
    embedding_dim=128,
    content_dim=384,
    history_models=True,
)


def first_paints(browser: Browser, address: str, count: int) -> tuple[list[float], list[float]]:
    """Return ms from navigation to first contentful paint, and to the first whole list."""
    paints, lists = [], []
    for _ in range(count):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#list .item")
        while not (paint := page.evaluate(PAINT)):
            page.wait_for_timeout(10)
        paints.append(paint)
        ends = "performance.getEntriesByName('list').map(one => one.startTime + one.duration)[0]"
        lists.append(page.evaluate(ends))
        context.close()
    return paints, lists


def clicks(browser: Browser, address: str, users: int, per_user: int) -> list[float]:
    """Return ms from a click to the new list on the screen."""
    times_ms = []
    for _ in range(users):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#list .item")
        page.click("#surprise")
        page.wait_for_selector("#history .event")
        for place in range(per_user):
            page.wait_for_timeout(300)
            times_ms.append(page.evaluate(CLICK, place % 5))
        context.close()
    return times_ms


def row(name: str, values: list[float], share: float, bound: float | None) -> Row:
    value = float(np.quantile(values, share))
    return Row(name=name, value=value, unit="ms", at_most=bound)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, help="by default a made-up one of the demo's size")
    parser.add_argument("--chromium", default=CHROMIUM)
    parser.add_argument("--paints", type=int, default=20)
    parser.add_argument("--users", type=int, default=5)
    parser.add_argument("--clicks", type=int, default=12, help="for each user")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, chromium(arguments.chromium) as browser:
        bundles = arguments.bundles
        if bundles is None:
            bundles = Path(scratch)
            write_synthetic_bundle(bundles, "v1", DEMO_SIZE)
            publish(bundles, "v1")
        with serving(bundles, OMP_NUM_THREADS="1") as served:
            port = served.port
            address = f"http://127.0.0.1:{port}/"
            first_paints(browser, address, 1)
            paints, lists = first_paints(browser, address, arguments.paints)
            times_ms = clicks(browser, address, arguments.users, arguments.clicks)
        version = browser.version
    rows = [
        row("first contentful paint, median", paints, 0.5, 300),
        row("first contentful paint, worst", paints, 1.0, 300),
        row("first list, median", lists, 0.5, None),
        row("click to new list on the screen, median", times_ms, 0.5, 150),
        row("click to new list on the screen, 95%", times_ms, 0.95, 150),
        row("click to new list on the screen, worst", times_ms, 1.0, 150),
    ]
    what = "made up, of the demo's size" if arguments.bundles is None else "movielens-100k"
    notes = (
        f"Chromium {version}, headless, 1280 x 900. Bundle: {what}. {len(paints)} first paints, "
        f"each in a fresh context; {len(times_ms)} clicks by {arguments.users} users."
    )
    write_results("page", rows, notes=notes)


if __name__ == "__main__":
    main()
