"""Take the screenshots of README and guides from the demo's run: the server's page, the dashboard.

Usage, after `make demo`, with Chromium: python -m docs.generators.screenshots
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

from docs.generators.repository import DOCS, ROOT

RUN = "runs/movielens-100k"
SIZE = {"width": 1200, "height": 760}
SETTLED_MS = 3_000
"""Time for a page to draw its lists and charts."""


@contextmanager
def started(*command: str, port: int) -> Iterator[str]:
    """Start one of the package's servers and wait until it answers."""
    words = [sys.executable, "-m", "pipelines.cli.main", *command, "--port", str(port)]
    server = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


def main() -> None:
    """Write docs/pictures/page.png and docs/pictures/dashboard.png."""
    pictures = DOCS / "pictures"
    pictures.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE)
        with started("serve", RUN, "--expose-users", "--store", "none", port=8765) as address:
            page.goto(address, wait_until="networkidle")
            user = page.get_by_placeholder("Type an id")
            user.fill("42")
            user.press("Enter")
            page.wait_for_timeout(SETTLED_MS)
            page.screenshot(path=pictures / "page.png")
        with started("dashboard", "--root", RUN, port=8766) as address:
            page.goto(address, wait_until="networkidle")
            page.get_by_role("link", name="Results", exact=True).first.click()
            page.wait_for_timeout(SETTLED_MS)
            page.screenshot(path=pictures / "dashboard.png")
        browser.close()


if __name__ == "__main__":
    main()
