"""README and docs tell the truth: links resolve, tables are of the tree, commands run."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from docs.generators.repository import DOCS, GENERATED
from pipelines.presets.resolve import resolve
from pipelines.stages.list import STAGES
from serving.bundle.manifest import publish
from tests.forked.commands import RECSYS, write_program
from tests.serving.synthetic_bundle import write_synthetic_bundle

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
GUIDES = ("docs/semantic-ids.md", "docs/evaluation.md", "docs/backtest.md")
"""Pages whose commands run after the README's, in this order."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str, page: str = README) -> list[str]:
    """A page's fenced blocks of one language; plain fences have none."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [body for name, body in fence.findall(page) if name == language]


def commands(verb: str) -> list[list[str]]:
    pages = [README, *((ROOT / guide).read_text(encoding="utf-8") for guide in GUIDES)]
    lines = [line for page in pages for block in blocks("", page) for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(f"{verb} ")]


@pytest.fixture
def recsys(forking: str, tmp_path: Path) -> Path:
    """The command line of this checkout."""
    return write_program(tmp_path / "recsys", forking, *RECSYS)


def run_recsys(program: Path, arguments: list[str]) -> str:
    done = subprocess.run(
        [program, *arguments], cwd=program.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    made = {DOCS / uri for uri in GENERATED}
    paths = [Path(os.path.normpath(page.parent / target)) for target in targets]
    assert [path for path in paths if not path.exists() and path not in made] == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)\)", index))
    assert linked == {path.name for path in folder.glob("*.md")} - {"README.md"}


def test_the_table_of_rooms_names_every_room() -> None:
    table = CONTRIBUTING.split("<!-- rooms -->\n")[1].split("<!-- /rooms -->")[0]
    named = set(re.findall(r"\]\(([\w/]+)\)", table))
    rooms = {
        str(path.parent.relative_to(ROOT))
        for package in ("recsys", "pipelines", "serving")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    assert named == rooms | {"features", "serving", "dags"}


def test_every_make_verb_exists() -> None:
    verbs = set(re.findall(r"(?:^|`)make (\w+)", README, re.MULTILINE))
    defined = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "serve"} <= verbs <= defined


def test_the_stage_table_is_the_generated_one() -> None:
    table = CONTRIBUTING.split("<!-- stages -->\n")[1].split("<!-- /stages -->")[0]
    rows = [
        (
            f"[`{one.name}`](pipelines/stages/{one.name}.py)",
            *(one.description, ", ".join(one.reads) or "raw files", one.writes),
        )
        for one in STAGES
    ]
    lines = [("stage", "what", "reads", "writes"), ("---",) * 4, *rows]
    assert table == "".join(f"| {' | '.join(line)} |\n" for line in lines)


def test_the_page_of_results_is_of_the_results_there_are() -> None:
    script = "from tests.benchmarks.index import index; print(index(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    page = (ROOT / "tests" / "benchmarks" / "results" / "README.md").read_text(encoding="utf-8")
    assert page == done.stdout, "run python -m tests.benchmarks.index"


def write_shop(folder: Path) -> None:
    """A stranger's shop: 60 customers of two tastes, 30 products."""
    rng = random.Random(0)
    names = ["ann", *(f"customer-{number}" for number in range(59))]
    with (folder / "events.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "sku", "ts"])
        for number, name in enumerate(names):
            liked = [f"sku-{n}" for n in range(30) if n % 2 == number % 2]
            for day, sku in enumerate(rng.sample(liked, 10), 1):
                writer.writerow([name, sku, f"2026-01-{day:02d}T12:00:00"])
    with (folder / "items.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sku", "title", "categories"])
        for n in range(30):
            kind = ["garden", "kitchen"][n % 2]
            writer.writerow([f"sku-{n}", f"{kind.title()} tool {n}", kind])


@pytest.mark.slow
def test_the_commands_for_ones_own_data_run(recsys: Path, tmp_path: Path) -> None:
    write_shop(tmp_path)
    lines = [one for one in commands("recsys") if "--force" not in one]
    init, run, recommend, serve, *_, compare, backtest = lines
    run_recsys(recsys, init[1:])
    (tmp_path / "like-it.toml").write_text(blocks("toml")[0])
    written, shown = (resolve(tmp_path / name) for name in ("shop.toml", "like-it.toml"))
    assert (written.data.events, written.workspace) == (shown.data.events, shown.workspace)
    assert written.data.columns == shown.data.columns
    run_recsys(recsys, run[1:])
    printed = run_recsys(recsys, recommend[1:])
    assert "Garden tool" in printed
    assert {"shop:popularity", "shop:blend"} <= {*run_recsys(recsys, compare[1:]).split()}
    assert "never retrained" in run_recsys(recsys, backtest[1:])

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Its processes are its own: a server is no fork.
    started = [sys.executable, *RECSYS]
    server = subprocess.Popen([*started, *serve[1:], "--port", str(port)], cwd=tmp_path)
    try:
        wait_until_ready(port)
        for curl in commands("curl"):
            assert_answers(curl, port)
    finally:
        server.terminate()
        # It drains, then ends by the signal it was sent.
        assert server.wait(timeout=60) in (0, -signal.SIGTERM)


def wait_until_ready(port: int) -> None:
    for _ in range(6_000):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
                return
        except OSError:
            time.sleep(0.02)
    pytest.fail("the server was not ready within 120 s")


def assert_answers(curl: list[str], port: int) -> None:
    """Send what a curl line sends; items that this shop does not sell are its own here."""
    url = next(word for word in curl if word.startswith("http")).replace(":8000", f":{port}")
    body = curl[curl.index("-d") + 1].encode() if "-d" in curl else None
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        reply = json.load(answer)
    if url.endswith("/v1/events"):
        assert reply == {"accepted": 1, "duplicates": 0}
    elif "/v1/" in url:
        assert len(reply["items"]) == 5


def test_the_python_example_runs_on_a_bundle_where_the_demo_puts_its_own(tmp_path: Path) -> None:
    current = re.search(r'load\("([^"]+)"\)', blocks("python")[0])
    assert current is not None
    bundles = tmp_path / current[1] / "bundles"
    bundles.mkdir(parents=True)
    write_synthetic_bundle(bundles, "v1")
    publish(bundles, "v1")
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[0]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "POLARS_FMT_MAX_ROWS": "20"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "user_id" in done.stdout
