"""A dashboard in headless Chromium: what goes wrong in it, what axe finds, how it is laid out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from axe_playwright_python.sync_playwright import Axe

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.web.access import AccessRules
from pipelines.dashboard.web.app import Site, create_app

SERIOUS = {"serious", "critical"}
WIDTHS = (390, 1440, 2560)
HEIGHT = 900


@contextmanager
def served(context: Context, pages: Sequence[PageEntry], key: str | None = None) -> Iterator[str]:
    """Serve a dashboard on a free port while the block runs; gives its address."""
    site = Site(context=context, pages=pages, access=AccessRules(key=key))
    config = uvicorn.Config(
        create_app(site), port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@dataclass(kw_only=True)
class Window:
    """A browser's window on a dashboard, or on a file that it exported."""

    page: Any
    address: str
    faults: list[str] = field(default_factory=list)
    """Errors of scripts and of the console, requests to anywhere else."""

    def open(self, page: str = "", expected: str = "drawn") -> None:
        """Open a page such as ``why?run=abc`` and wait until it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}#/{page}")
        self.settled(expected)

    def follow(self, page: str) -> None:
        """Go to a page as a link does; loading the client again is most of an opening."""
        leave = "to => { document.documentElement.dataset.page = 'left'; location.hash = to; }"
        if self.page.evaluate("location.hash") != f"#/{page}":
            self.page.evaluate(leave, f"#/{page}")
            self.settled()

    def settled(self, expected: str = "drawn") -> None:
        """Wait until the page is drawn, and say where it is not."""
        state = "document.documentElement.dataset.page"
        self.until(f"['drawn', 'failed'].includes({state})")
        found = self.page.evaluate(state)
        assert found == expected, self.page.inner_text("main")

    def until(self, expression: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true; Playwright's own way evaluates strings in the page."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            self.page.wait_for_timeout(20)

    def see_all(self) -> None:
        """Scroll through the page, so that every chart is drawn."""
        undrawn = ".chart:not([data-drawn], .failed)"
        while self.page.locator(undrawn).count():
            left = self.page.locator(undrawn).count()
            self.page.locator(undrawn).first.scroll_into_view_if_needed()
            self.until(f"document.querySelectorAll('{undrawn}').length < {left}")
        failed = self.page.locator(".chart.failed").count()
        if failed:
            self.faults.append(f"{failed} charts could not be drawn")
        self.page.evaluate("scrollTo(0, 0)")

    def axe(self) -> list[str]:
        """List what axe finds serious, each with where it is."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {one['help']}: {', '.join(node['html'][:160] for node in one['nodes'])}"
            for one in found
            if one["impact"] in SERIOUS
        ]

    def overflows(self) -> bool:
        """Whether the page is wider than its window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@contextmanager
def windows(browser: Any, address: str) -> Iterator[Callable[..., Window]]:
    """Open windows on a dashboard; when the block ends nothing may have gone wrong in any."""
    contexts, opened = [], []

    def new(width: int = 1440, **options: Any) -> Window:
        context = browser.new_context(viewport={"width": width, "height": HEIGHT}, **options)
        contexts.append(context)
        page = context.new_page()
        made = Window(page=page, address=address)
        opened.append(made)
        page.on("pageerror", lambda error: made.faults.append(str(error)))
        wrong = made.faults.append
        page.on("console", lambda one: wrong(one.text) if one.type == "error" else None)
        allowed = (address, "data:", "blob:", "about:")
        page.on(
            "request",
            lambda one: None if one.url.startswith(allowed) else wrong(f"request {one.url}"),
        )
        return made

    try:
        yield new
    finally:
        for context in contexts:
            context.close()
    faults = [fault for window in opened for fault in window.faults]
    assert not faults, faults
