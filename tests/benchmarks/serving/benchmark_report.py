"""Size of the report and the time until it is open, every chart drawn, in headless Chromium.

The evaluation is made up: 22,000 users and 12,000 items with five models and two tie orders, the
size of Amazon Beauty, or read from a workspace. Each opening is a fresh browser context that reads
the file from disk. It ends with the second frame after the last chart is drawn, when what was drawn
is on the screen. Needs chromium and playwright.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser

from pipelines.pages.file import write_page
from pipelines.pages.report import report_page
from pipelines.pages.report_data import Provenance, read_report_data
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.serving.server import CHROMIUM, chromium
from tests.pipelines.pages.synthetic_evaluation import (
    SyntheticEvaluation,
    write_synthetic_evaluation,
)

SIZE = SyntheticEvaluation(
    num_users=22_000,
    num_items=12_000,
    events_per_user=9,
    models=("popularity", "item_to_item", "two_tower", "generative", "blend"),
    orders=("given", "shuffled"),
    categories=tuple(f"Category {letter}" for letter in "ABCDEFGHIJKLMNOPQRST"),
    num_resamples=100,
)
MEGABYTE = 1e6
OPENED = """() => new Promise((done) => {
  const painted = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  const report = () => requestAnimationFrame(() => requestAnimationFrame(function wait() {
    if (painted() === undefined) return requestAnimationFrame(wait);
    const drawn = performance.getEntriesByName("page-drawn")[0].startTime;
    done([performance.now(), drawn, painted()]);
  }));
  if (document.documentElement.dataset.page === "drawn") report();
  else new MutationObserver(report).observe(document.documentElement, { attributes: true });
})"""


def made_report(folder: Path, size: SyntheticEvaluation) -> tuple[Path, float]:
    """Write the report of a made-up evaluation; return it and the seconds it took to write."""
    places = write_synthetic_evaluation(folder, size)
    begin = time.perf_counter()
    data = read_report_data(
        places,
        title="made up",
        split_kind="leave_one_out",
        excludes_history=True,
        provenance=Provenance(num_test_looks=1),
    )
    path = folder / "report.html"
    write_page(report_page(data), path)
    return path, time.perf_counter() - begin


def openings(browser: Browser, report: Path, width: int, count: int) -> list[list[float]]:
    """Open the report so often; return ms until on the screen, drawn, and first painted."""
    times_ms = []
    for _ in range(count):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        page = context.new_page()
        page.goto(report.as_uri(), wait_until="commit")
        times_ms.append(page.evaluate(OPENED))
        assert page.evaluate("document.documentElement.dataset.charts") == "drawn"
        context.close()
    return times_ms


def rows_of(times_ms: list[list[float]], where: str) -> list[Row]:
    screen, drawn, painted = (list(values) for values in zip(*times_ms, strict=True))
    rows = []
    for name, value in (
        (f"open and all charts on the screen, {where}, median", statistics.median(screen)),
        (f"open and all charts on the screen, {where}, worst", max(screen)),
    ):
        rows.append(Row(name=name, value=value, unit="ms", at_most=1_000))
    for name, values in (("charts drawn", drawn), ("first contentful paint", painted)):
        value = statistics.median(values)
        rows.append(Row(name=f"{name}, {where}, median", value=value, unit="ms"))
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--report", type=Path, help="a report.html; by default one is made up")
    parser.add_argument("--chromium", default=CHROMIUM)
    parser.add_argument("--openings", type=int, default=15, help="for each width")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, chromium(arguments.chromium) as browser:
        path, seconds = arguments.report, None
        if path is None:
            path, seconds = made_report(Path(scratch) / "workspace", SIZE)
        megabytes = path.stat().st_size / MEGABYTE
        openings(browser, path, 1280, 1)
        rows = [Row(name="size", value=megabytes, unit="MB", at_most=3)]
        rows += rows_of(openings(browser, path, 1280, arguments.openings), "1280 px")
        rows += rows_of(openings(browser, path, 390, arguments.openings), "390 px")
        if seconds is not None:
            rows.append(Row(name="write the report", value=seconds, unit="s"))
        version = browser.version
    what = (
        f"made up: {SIZE.num_users:,} users, {SIZE.num_items:,} items, {len(SIZE.models)} models, "
        f"{len(SIZE.orders)} tie orders"
        if arguments.report is None
        else str(arguments.report)
    )
    notes = (
        f"Chromium {version}, headless, {arguments.openings} openings for each width, each in a "
        f"fresh context, from file://. Report: {what}."
    )
    write_results("report", rows, notes=notes)


if __name__ == "__main__":
    main()
