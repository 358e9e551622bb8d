"""What a reader does on a page of the dashboard, timed inside the browser.

An interaction ends with the last change of the document before it stays as it is, frame included:
the page, its tables and the charts in view are there then.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

QUIET_MS = 350
"""A document that did not change for so long is done."""
MOST_MS = 30_000
FIRST = "opened for the first time"
"""Kind of interaction that reads what the page needs."""
TIMED = """async ([kind, selector, value, quiet, most]) => {
  const root = document.documentElement;
  let last = performance.now();
  const frame = () => requestAnimationFrame(() => { last = performance.now(); });
  const seen = new MutationObserver(frame);
  seen.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  const one = selector ? document.querySelector(selector) : null;
  const fire = (name) => one.dispatchEvent(new Event(name, { bubbles: true }));
  const start = performance.now();
  if (kind === "go") location.hash = value;
  else if (kind === "click") one.click();
  else if (kind === "set") { one.value = value; fire("change"); }
  else if (kind === "type") { one.focus(); one.value = value; fire("input"); }
  const going = () => !["drawn", "failed"].includes(root.dataset.page)
    || performance.now() - Math.max(last, start) < quiet;
  while (going() && performance.now() - start < most) await new Promise((go) => setTimeout(go, 10));
  seen.disconnect();
  return [last - start, root.dataset.page];
}"""
CONTROLS = """() => [...document.querySelectorAll(".controls .field")].map((field) => {
  const kind = [...field.classList].find((name) => name !== "field");
  const one = field.querySelector("select, input");
  if (!one || one.disabled) return null;
  const options = [...(one.options ?? [])].filter((o) => !o.disabled).map((o) => o.value);
  const boxes = [...field.querySelectorAll("input[type=checkbox]:not(:disabled)")];
  return { kind, id: one.id, value: one.value, options, boxes: boxes.map((box) => box.id) };
}).filter(Boolean)"""
TABLES = """() => [...document.querySelectorAll("main table[aria-labelledby]")].map((table) => {
  const box = table.closest(".dt-container");
  return {
    id: table.getAttribute("aria-labelledby"),
    heads: table.querySelectorAll("thead th").length,
    search: box?.querySelector("input[type=search]")?.id ?? "",
    next: Boolean(box?.querySelector(".dt-paging-button.next:not(.disabled)")),
  };
})"""
LINKS = """() => [...document.querySelectorAll("main .tree a, main .list a")].slice(0, 1)
  .map((link) => link.getAttribute("href"))"""


def chosen(selector: str) -> str:
    """Write a selector of an id that may hold any character."""
    return f'[id="{selector}"]'


@dataclass
class Reader:
    """A reader with a browser's page; keeps the slowest time of each kind of interaction."""

    page: Any
    address: str
    repeats: int = 3
    failures: list[str] = field(default_factory=list)
    """What could not be done, and what the page said."""

    def act(self, kind: str, selector: str = "", value: str = "") -> float:
        """Do one thing; return its milliseconds."""
        time, state = self.page.evaluate(TIMED, [kind, selector, value, QUIET_MS, MOST_MS])
        if state != "drawn":
            said = " ".join(self.page.inner_text("main").split())
            self.failures.append(f"{kind} {selector} {value}: {said[:300]}")
        return float(time)

    def repeated(self, do: Callable[[], float], undo: Callable[[], object]) -> float:
        """Median time of something that is undone each time."""
        found = []
        for _ in range(self.repeats):
            found.append(do())
            undo()
        return statistics.median(found)

    def first_page(self, browser: Any) -> float:
        """Open the dashboard with an empty cache; return the milliseconds until it is drawn."""
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.add_init_script(
            "new MutationObserver(() => { const root = document.documentElement;"
            "if (root?.dataset.page === 'drawn') window.drawnAt ??= performance.now(); })"
            ".observe(document, { subtree: true, childList: true, attributes: true });"
        )
        page.goto(self.address)
        page.wait_for_selector("html[data-page=drawn]", timeout=MOST_MS)
        found = float(page.evaluate("window.drawnAt"))
        context.close()
        return found

    def visit(self, page: str) -> dict[str, float]:
        """Open a page from another one and do everything that it offers, each alone."""
        found = {FIRST: self.act("go", "", f"#/{page}")}
        self._leave()
        found["opened"] = self.repeated(lambda: self.act("go", "", f"#/{page}"), self._leave)
        self.act("go", "", f"#/{page}")
        for name, act in self._offers().items():
            kind = name.partition(" ")[0]
            # What was shown before is kept, so the first time is what a reader waits for.
            found[kind] = max(found.get(kind, 0.0), act())
            self.act("go", "", f"#/{page}")
        return found

    def _leave(self) -> None:
        self.page.evaluate("location.hash = '#/nowhere'")
        self.page.wait_for_selector("html[data-page=failed]", timeout=MOST_MS)

    def _offers(self) -> Mapping[str, Callable[[], float]]:
        """List what can be done on the page that is shown, by kind and place."""
        found: dict[str, Callable[[], float]] = {}
        for control in self.page.evaluate(CONTROLS):
            found |= self._of_control(control)
        for place, table in enumerate(self.page.evaluate(TABLES)):
            found |= self._of_table(table, place)
        for href in self.page.evaluate(LINKS):
            found["link"] = lambda href=href: self.act("go", "", href)
        return found

    def _of_control(self, control: Mapping[str, Any]) -> dict[str, Callable[[], float]]:
        place = chosen(control["id"])
        others = [one for one in control["options"] if one != control["value"]]
        if control["kind"] == "select" and others:
            return {f"select {place}": lambda: self.act("set", place, others[-1])}
        if control["kind"] == "number":
            value = str(float(control["value"] or 1) + 1).removesuffix(".0")
            return {f"number {place}": lambda: self.act("set", place, value)}
        if control["kind"] == "toggle":
            return {f"toggle {place}": lambda: self.act("click", place)}
        if control["kind"] == "several" and control["boxes"]:
            box = chosen(control["boxes"][-1])
            return {f"several {place}": lambda: self.act("click", box)}
        if control["kind"] in ("search", "several"):
            return {f"suggest {place}": lambda: self.act("type", place, "e")}
        return {}

    def _of_table(self, table: Mapping[str, Any], place: int) -> dict[str, Callable[[], float]]:
        here = f'table[aria-labelledby="{table["id"]}"]'
        head = f"{here} thead th:nth-child({min(2, table['heads'])})"
        found = {f"sort {place}": lambda: self.act("click", f"{head} .dt-column-order, {head}")}
        if table["search"]:
            search = chosen(table["search"])
            found[f"find {place}"] = lambda: self.act("type", search, "1")
        if table["next"]:
            following = f".dt-container:has({here}) .dt-paging-button.next"
            found[f"turn {place}"] = lambda: self.act("click", following)
        return found
