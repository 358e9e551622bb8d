"""Record what the product does, and compare two records: the proof of a change that alters nothing.

    python -m tests.oracle record FOLDER            before the change, from its own checkout
    python -m tests.oracle record OTHER             after it
    python -m tests.oracle compare FOLDER OTHER [--except TEXT ...]

Runs are on one thread. A record has a file a subject: digests of all artefacts of each run, the
replies of the released bundles to requests drawn by a seed, pages of the dashboard, resolved
configurations, the command line, and the HTTP API's document. Equal means equal values; scores may
differ by 1e-6. ``--except`` names what may differ: a difference that contains the text passes, and
is counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RUNS = ("demo", "shop", "sessions", "news")
"""The preset of the demo, and examples."""
NUM_REQUESTS = 10_000
TOLERANCE = 1e-6
VERSION_FOLDER = re.compile(r"/released/[0-9a-f]{12}(?=/)")
"""A bundle's version names digests of code, so it differs between commits."""
NOW_MS = 1_900_000_000_000
COMMANDS: tuple[tuple[str, ...], ...] = (
    (),
    ("--version",),
    ("no-such-command",),
    ("run", "no-such-file.toml"),
    ("run", "--set", "no.such_key=1"),
    ("recommend", "no-such-bundle", "--user", "ann"),
    ("status", "no-such-workspace"),
)
"""Lines whose exit code and output are kept; ``--help`` of each command is added."""
LESS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def run(name: str, workspace: Path) -> None:
    """Run the demo's preset or an example in a workspace, on one thread, to a released bundle."""
    line = [
        "-c",
        "import pathlib, sys; from examples.run import run; "
        "run(sys.argv[1], pathlib.Path(sys.argv[2]))",
        name,
        str(workspace),
    ]
    if name == "demo":
        line = ["-m", "pipelines.cli.main", "run", str(workspace)]
        line += ["--preset", "movielens_100k", "--quiet"]
    environment = {**os.environ, **LESS, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *line], cwd=ROOT, env=environment, check=True)


def requests(bundle: Any, num_requests: int) -> Iterator[dict[str, Any]]:
    """Draw requests: known and unknown users, sessions, related items, exclusions, searches."""
    import numpy as np

    draw = np.random.default_rng(0)
    tables = (bundle.users.user_ids, bundle.catalogue.item_ids, bundle.catalogue.display_texts)
    # Row 0 is padding.
    users, items, texts = ([table[row] for row in range(1, len(table))] for table in tables)
    words = [text for text in texts if text]

    def some(count: int) -> list[str]:
        return [str(items[int(place)]) for place in draw.integers(0, len(items), count)]

    for number in range(num_requests):
        asked: dict[str, Any] = {"k": int(draw.choice([1, 5, 20, 100]))}
        kind = number % 8
        if kind in (0, 1, 2, 3) and len(users):
            asked["user_id"] = str(users[int(draw.integers(0, len(users)))])
        if kind in (2, 4):
            asked["session"] = some(int(draw.integers(1, 8)))
        if kind == 3:
            asked["exclude"] = some(10)
        if kind == 5:
            asked |= {"surface": "related", "item_id": some(1)[0]}
        if kind == 6 and words:
            asked |= {"surface": "search", "query": str(draw.choice(words))[:20]}
        if kind == 7:
            asked |= {"user_id": f"stranger-{number}", "diversity": float(draw.choice([0.0, 0.5]))}
        yield asked


def replies(workspace: Path, num_requests: int) -> list[dict[str, Any]]:
    """Answer the requests in this process: items, scores, sources and notes of each list."""
    from serving.recommend import Recommender
    from serving.schemas import Request

    recommender = Recommender.load(workspace / "bundles" / "current")
    found = []
    for asked in requests(recommender.bundle, num_requests):
        request = {**asked, "context": {"unix_time": NOW_MS // 1_000}}
        try:
            reply = recommender.answer(Request.model_validate(request), now_ms=NOW_MS)
        except ValueError as error:
            found.append({"asked": asked, "error": type(error).__name__})
            continue
        found.append(
            {
                "asked": asked,
                "items": [one.item_id for one in reply.items],
                "scores": [float(one.score) for one in reply.items],
                "sources": [one.source for one in reply.items],
                "degraded": sorted(str(one) for one in reply.degraded),
            }
        )
    return found


def pages(workspace: Path) -> dict[str, Any]:
    """Keys and titles of all blocks of the dashboard's pages about one run."""
    from pipelines.dashboard.context import Context
    from pipelines.dashboard.pages import PAGES
    from pipelines.dashboard.query import NotFoundError, Query
    from pipelines.dashboard.workspaces.stores import Places, Stores

    stores = Stores(Places(roots=[workspace.parent]))
    context = Context(stores=stores)
    (run,) = (one for one in stores.runs() if one.path.resolve() == workspace.resolve())

    def blocks(parts: Any) -> Iterator[str]:
        for part in parts:
            yield f"{part.kind}: {getattr(part, 'key', '')} {getattr(part, 'title', '')}".strip()
            yield from blocks(getattr(part, "blocks", ()))

    shown: dict[str, list[str]] = {"left out": []}
    for entry in PAGES:
        try:
            page = entry.build(context, Query.of(run=run.key))
        except NotFoundError:
            shown["left out"].append(entry.title)
        else:
            shown[entry.name] = [page.title, *blocks(page.blocks)]
    return shown


def command_line() -> dict[str, Any]:
    """Exit code and output of every command's help and of some mistakes."""
    from typer.main import get_command

    from docs.generators.command_line import commands
    from pipelines.cli.main import app

    lines = [*COMMANDS, *((*name.split()[1:], "--help") for name, _ in commands(get_command(app)))]
    environment = {**os.environ, **LESS, "PYTHONPATH": str(ROOT)}
    found = {}
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli.main", *line],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        found[" ".join(line)] = {"code": done.returncode, "output": done.stdout + done.stderr}
    return found


def configurations() -> dict[str, Any]:
    """Resolve every preset and example."""
    from pipelines.config.toml import without_none
    from pipelines.engine.artifacts import plain
    from pipelines.presets import PRESETS
    from pipelines.presets.resolve import resolve

    found: dict[str, Any] = {name: plain(make()) for name, make in PRESETS.items()}
    for path in sorted((ROOT / "examples").glob("*.toml")):
        found[path.name] = plain(resolve(path))
    text = json.dumps(without_none(found), default=str)
    loaded: dict[str, Any] = json.loads(text.replace(str(ROOT), "."))
    return loaded


def record(folder: Path, names: tuple[str, ...], num_requests: int) -> None:
    """Write a record; a run whose workspace is there already is only resumed."""
    from serving.web.descriptions import document
    from tests.benchmarks import artefact_digests

    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"openapi": document(), "configuration": configurations()}
    found["command line"] = command_line()
    for name in names:
        workspace = folder.absolute() / "runs" / name
        run(name, workspace)
        recorded = artefact_digests.record(workspace)
        found[f"artefacts of {name}"] = artefact_digests.renamed(recorded, {})
        found[f"replies of {name}"] = replies(workspace, num_requests)
        found[f"pages of {name}"] = pages(workspace)
    for subject, content in found.items():
        path = folder / f"{subject.replace(' ', '-')}.json"
        path.write_text(json.dumps(content, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{subject}: {sum(1 for _ in leaves(content)):,} values")


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """List a document's values, each by its path."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, f"{place}/{key}")
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from leaves(below, f"{place}/{number}")
    else:
        yield VERSION_FOLDER.sub("/released/VERSION", place), value


def equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, numbers up to the tolerance of scores."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(one == other)


def differences(before: Any, after: Any) -> Iterator[str]:
    """Name each value that one record lacks or that differs."""
    one, other = dict(leaves(before)), dict(leaves(after))
    yield from (f"gone: {place}" for place in one.keys() - other.keys())
    yield from (f"added: {place}" for place in other.keys() - one.keys())
    for place in one.keys() & other.keys():
        if not equal(one[place], other[place]):
            yield f"differs: {place}: {one[place]!r} and {other[place]!r}"


def compare(first: Path, second: Path, excepted: list[str]) -> int:
    """Print what differs by subject and return 1 if anything does that is not excepted."""
    failed = 0
    for path in sorted(first.glob("*.json")):
        other = second / path.name
        if not other.exists():
            print(f"{path.stem}: not in {second}")
            failed = 1
            continue
        found = sorted(differences(json.loads(path.read_text()), json.loads(other.read_text())))
        found = [f"{path.stem}: {line}" for line in found]
        left = [line for line in found if not any(text in line for text in excepted)]
        print(f"{path.stem}: {len(left)} differ, {len(found) - len(left)} of the named exceptions")
        print(*(f"  {line[:200]}" for line in left[:20]), sep="\n", end="\n" if left else "")
        failed |= bool(left)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--runs", nargs="*", default=RUNS, choices=RUNS)
    recording.add_argument("--requests", type=int, default=NUM_REQUESTS)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    comparing.add_argument("--except", dest="excepted", nargs="*", default=[])
    options = parser.parse_args()
    if options.verb == "compare":
        return compare(options.first, options.second, options.excepted)
    os.environ.update(LESS)
    record(options.folder, tuple(options.runs), options.requests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
