"""Processor seconds and memory from a bundle on disk to its first answer, whole and by deltas.

Made-up bundles with a two-tower, item-to-item weights, 64-wide content and 20 events of each user.
Each is loaded in a process of its own on one thread, then its first and its twelfth delta over it.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.users import Users
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Request
from tests.benchmarks.harness import Row, command_line, write_results
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

T = TypeVar("T")
EVENTS_PER_USER, NUM_DELTAS, ITEMS_OF_A_DELTA = 20, 12, 10
GOALS = {200_000: 2.0, 1_000_000: 20.0}
"""Seconds from a start, or a swap, to the first answer."""


def made_up_users(num_users: int, num_items: int) -> Users:
    """Draw histories with a few frequent items; the tests' own are drawn one by one."""
    share = np.random.default_rng(0).random(num_users * EVENTS_PER_USER)
    rows = (1 + num_items * share**3).astype(np.int64).clip(1, num_items)
    return Users.from_lists(
        user_ids=[f"user-{row}" for row in range(1, num_users + 1)],
        features={"age": np.arange(num_users + 1) % 4},
        item_rows=rows,
        offsets=np.cumsum([0, 0, *[EVENTS_PER_USER] * num_users]),
        times=1_600_000_000 + np.arange(len(rows)),
    )


def make(folder: Path, num_items: int) -> None:
    """Write the bundle ``v1`` with half as many users as items."""
    size = SyntheticSize(num_items=num_items, embedding_dim=64, content_dim=64, semantic_ids=False)
    with tempfile.TemporaryDirectory() as scratch:
        parts = synthetic_parts(Path(scratch), size)
        users = made_up_users(num_items // 2, num_items)
        write_bundle(folder, replace(parts, users=users), version="v1")


def append(folder: Path, number: int, bundle: Bundle) -> Path:
    """Write the delta of a number, after those before it."""
    rng = np.random.default_rng(number)
    names = [f"new-{number}-{place}" for place in range(ITEMS_OF_A_DELTA)]
    assert bundle.retriever is not None
    content, vectors = (
        rng.normal(size=(len(names), width)).astype(np.float32)
        for width in (bundle.items.content.shape[1], bundle.retriever.index.dim)
    )
    items = [NewItem(item_id=name, display_text=name, categories=["even"]) for name in names]
    parent = "v1" if number == 1 else f"v1+{number - 1}"
    return write_delta(folder, parent, items, content=content, item_vectors=vectors)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Run something; return what it made and its processor seconds."""
    begun = time.process_time()
    made = work()
    return made, time.process_time() - begun


def answered(path: Path, loaded: Bundle | None = None) -> Bundle:
    """Load a bundle and answer one request."""
    recommender = Recommender.load(path, loaded=loaded)
    recommender.answer(Request(user_id="user-1", k=10))
    return recommender.bundle


def measure(folder: Path) -> dict[str, float]:
    """Measure in this process, which has loaded nothing."""
    torch.set_num_threads(1)
    _, loading = timed(lambda: load_bundle(folder / "bundle-v1"))
    bundle, whole = timed(lambda: answered(folder / "bundle-v1"))
    seconds = {"load": loading, "whole": whole}
    for number in range(1, NUM_DELTAS + 1):
        path = append(folder, number, bundle)
        if number in (1, NUM_DELTAS):
            _, seconds[f"delta {number}"] = timed(lambda path=path: answered(path, bundle))
    seconds["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return seconds


def rows_of(num_items: int, found: dict[str, float]) -> list[Row]:
    case, goal = f"{num_items:,} items", GOALS.get(num_items)
    names = {"load": "load", "whole": "load and answer, files hashed before"}
    names |= {f"delta {n}": f"load delta {n} and answer" for n in (1, NUM_DELTAS)}
    rows = [
        Row(name=f"{case}: {label}", value=found[name], unit="s", at_most=goal)
        for name, label in names.items()
    ]
    return [*rows, Row(name=f"{case}: peak memory, all of it", value=found["memory"], unit="MiB")]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=list(GOALS))
    parser.add_argument("--measure", type=Path, help="only measure a folder that was made")
    options = parser.parse_args()
    if options.measure:
        sys.stdout.write(json.dumps(measure(options.measure)))
        return
    rows = []
    for num_items in options.items:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "bundles"
            make(folder, num_items)
            command = [sys.executable, "-m", __spec__.name, "--measure", str(folder)]
            child = subprocess.run(command, capture_output=True, text=True, check=True)
            rows += rows_of(num_items, json.loads(child.stdout))
            shutil.rmtree(folder)
    notes = (
        "Processor seconds of one thread, files in the page cache. A bundle is hashed the first "
        "time that a process loads it. Deltas have 10 new items each and hold those before them; "
        "they are loaded over the bundle that is in memory."
    )
    write_results("bundle_load", rows, notes=notes)


if __name__ == "__main__":
    main()
