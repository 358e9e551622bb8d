"""How long readers of the dashboard wait, at a thousand runs, a million users, 100,000 runs.

The server and headless Chromium share two cores. Goals: the first page in a second, cold; every
interaction of every page in 300 ms; a run's static file within 5 MB. Data are written once into
--folder (20 minutes for all) and kept there.

    python -m tests.benchmarks.dashboard.benchmark_dashboard --folder /tmp/dashboard-data
    python -m tests.benchmarks.dashboard.benchmark_dashboard --pages runs run --users 20000
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pipelines.dashboard.workspaces.files import place_key
from tests.benchmarks.dashboard.data import write_large, write_many
from tests.benchmarks.dashboard.interactions import FIRST, Reader
from tests.benchmarks.harness import ROOT, Row, command_line, write_results
from tests.conftest import CHROMIUM_FLAGS

FIRST_MS, INTERACTION_MS, EXPORT_MB = 1000, 300, 5
NUM_CORES = 2
MEGABYTE = 1 << 20


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def command(roots: Sequence[Path], *more: str) -> list[str]:
    places = [part for root in roots for part in ("--root", str(root))]
    return [sys.executable, "-m", "pipelines.cli.main", "dashboard", *places, *more]


@contextmanager
def dashboard(roots: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """Run the command until the block ends; gives its address and process."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(NUM_CORES)}
    process = subprocess.Popen(command(roots, "--port", str(port)), cwd=ROOT, env=environment)
    address = f"http://127.0.0.1:{port}/"
    try:
        while True:
            assert process.poll() is None, "the dashboard ended"
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=CHROMIUM_FLAGS
        )
        yield browser
        browser.close()


def memory_of(process: int) -> float:
    """Resident megabytes of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def wait_until_read(address: str) -> float:
    """Seconds until all runs are read."""
    start = time.perf_counter()
    while True:
        with urllib.request.urlopen(f"{address}api/page/runs", timeout=60) as reply:
            page = json.load(reply)
        words = [page["lead"], *page["notices"]]
        if not any("runs read" in one or "being read" in one for one in words):
            return time.perf_counter() - start
        time.sleep(0.5)


def addresses(folder: Path, only: Sequence[str]) -> dict[str, str]:
    """Name each page with what it is about: two runs of a million users where it takes runs."""
    from pipelines.dashboard.pages import PAGES

    keys = [place_key(str((folder / f"large-{one}").resolve())) for one in "ab"]
    both = f"runs={keys[0]}&runs={keys[1]}"
    pairs = dict.fromkeys(("summary", "compare", "differences"), both)
    about = {**pairs, **dict.fromkeys(("run", "why", "items"), f"run={keys[1]}")}
    names = [page.name for page in PAGES if not only or page.name in only]
    return {name: f"{name}?{about[name]}" if name in about else name for name in names}


def rows_of_pages(browser: Any, address: str, pages: dict[str, str], repeats: int) -> list[Row]:
    """Visit every page."""
    rows = []
    for name, page in pages.items():
        window = browser.new_page(viewport={"width": 1440, "height": 900})
        window.goto(f"{address}#/nowhere")
        window.wait_for_selector("html[data-page=failed]")
        reader = Reader(window, address, repeats)
        found = reader.visit(page)
        for failure in reader.failures:
            print(f"{name}: {failure}", file=sys.stderr)
        for kind, taken in found.items():
            print(f"{name}: {kind} {taken:.0f} ms", flush=True)
            goal = FIRST_MS if kind == FIRST else INTERACTION_MS
            rows.append(Row(name=f"{name}: {kind}", value=taken, unit="ms", at_most=goal))
        window.close()
    return rows


def measure_pages(roots: Sequence[Path], large: Path, arguments: Namespace) -> list[Row]:
    """Measure the first page, cold, and every interaction."""
    with dashboard(roots) as (address, process), chromium() as browser:
        reader = Reader(None, address)
        # The first one reads runs and puts the browser's assets together; that is what a user sees
        # who starts the command and opens it at once.
        cold = [reader.first_page(browser) for _ in range(arguments.repeats)]
        print(f"first page {cold}", flush=True)
        rows = [
            Row(name="first page after a start", value=cold[0], unit="ms", at_most=FIRST_MS),
            Row(
                name="first page, empty browser cache",
                value=statistics.median(cold),
                unit="ms",
                at_most=FIRST_MS,
            ),
        ]
        rows.append(Row(name="all runs read", value=wait_until_read(address), unit="s"))
        pages = addresses(large, arguments.pages)
        rows += rows_of_pages(browser, address, pages, arguments.repeats)
        rows.append(Row(name="memory of the server", value=memory_of(process), unit="MB"))
    return rows


def measure_many(root: Path, count: int, repeats: int) -> list[Row]:
    """Measure the page of runs while so many are read, and afterwards."""
    case = f"{count:,} runs"
    with dashboard([root]) as (address, process), chromium() as browser:
        first = Reader(None, address).first_page(browser)
        taken = wait_until_read(address)
        memory = memory_of(process)
        rows = rows_of_pages(browser, address, {"runs": "runs"}, repeats)
        print(f"{case}: first {first:.0f} ms, read in {taken:.0f} s, {memory:.0f} MB", flush=True)
    return [
        Row(name=f"{case}: first page while they are read", value=first, unit="ms", at_most=1000),
        Row(name=f"{case}: all read", value=taken, unit="s"),
        Row(name=f"{case}: memory of the server", value=memory, unit="MB"),
        *(
            Row(
                name=f"{case}, {row.name.partition(': ')[2]}",
                value=row.value,
                unit="ms",
                at_most=FIRST_MS if row.name.endswith(FIRST) else INTERACTION_MS,
            )
            for row in rows
        ),
    ]


def measure_export(roots: Sequence[Path], run: Path, folder: Path) -> list[Row]:
    """Export one run and weigh the file."""
    file = folder / "export.html"
    file.unlink(missing_ok=True)
    words = command(roots, "--export", str(file), "--run", str(run))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"no export of {run.name}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return []
    size = file.stat().st_size / MEGABYTE
    return [Row(name=f"export of {run.name}", value=size, unit="MB", at_most=EXPORT_MB)]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/recsys-dashboard-benchmark"))
    parser.add_argument("--runs", type=int, default=1000, help="with 200 metrics each")
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--many", type=int, default=100_000, help="small runs; 0 leaves them out")
    parser.add_argument("--root", type=Path, nargs="*", default=[], help="more roots of real runs")
    parser.add_argument("--export", type=Path, nargs="*", default=[], help="more runs to export")
    parser.add_argument("--pages", nargs="*", default=[], help="only these")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the results into the tree")
    arguments = parser.parse_args()
    # The server and the browser inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])
    folder: Path = arguments.folder
    thousand = write_many(folder / f"runs-{arguments.runs}", arguments.runs)
    large = write_large(folder / f"users-{arguments.users}", arguments.users)
    roots = [thousand, large, *arguments.root]
    rows = measure_pages(roots, large, arguments)
    rows += measure_export(roots, large / "large-b", folder)
    for run in arguments.export:
        rows += measure_export(roots, run, folder)
    if arguments.many:
        many = write_many(folder / f"small-{arguments.many}", arguments.many, small=True)
        rows += measure_many(many, arguments.many, arguments.repeats)
    if arguments.write:
        notes = (
            f"{arguments.runs:,} runs of {2 * 10 * 10} metrics, two runs of {arguments.users:,} "
            "users and four models, Chromium and the server on the same two cores. Of several "
            "controls or tables of a kind on a page, the slowest counts, the first time that it "
            f"is used; pages are opened {arguments.repeats} times more, the median counts. An "
            "interaction ends when the document stays as it is: page, tables, charts in view."
        )
        write_results("dashboard", rows, notes=notes)


if __name__ == "__main__":
    main()
