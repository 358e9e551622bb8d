"""How long the page of semantic IDs takes at a million items.

    python -m tests.benchmarks.dashboard.semantic_ids_page [NUM_ITEMS]

Writes a made workspace to a temporary folder: 3 levels of 256 codes, 2,000 categories, two million
events, two published versions of which the later moved a tenth of the items.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query
from pipelines.dashboard.semantic_ids import build, members, suggest_items
from pipelines.dashboard.workspaces.stores import Places, Stores
from pipelines.engine.artifacts import to_json
from pipelines.pages.document import Window
from pipelines.pages.encoding import encoded
from pipelines.semantic_ids.store import SemanticIdStore
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.kmeans import Centres
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from tests.pipelines.dashboard.synthetic_runs import write_run

SIZES = (256, 256, 256)
NUM_CATEGORIES = 2000
WORDS = (
    "red",
    "blue",
    "small",
    "large",
    "garden",
    "travel",
    "chair",
    "lamp",
    "\u05e9\u05dc\u05d5\u05dd",
)


def write_workspace(workspace: Path, num_items: int) -> None:
    """Write what the page reads."""
    rng = np.random.default_rng(0)
    write_run(workspace, stages=("build_features", "build_semantic_ids"))
    features = workspace / "build_features"
    for name in ("item_categories", "vocabularies", "sequences/given"):
        (features / name).mkdir(parents=True)
    rows = np.arange(1, num_items + 1)
    drawn = rng.integers(0, len(WORDS), (num_items, 4))
    titles = [f"{' '.join(WORDS[word] for word in own)} {row}" for row, own in enumerate(drawn)]
    item_ids = [f"B{row:09d}" for row in rows]
    pl.DataFrame({"item_row": rows, "item_id": item_ids, "display_text": titles}).write_parquet(
        features / "items.parquet"
    )
    names = [f"category {number}" for number in range(NUM_CATEGORIES)]
    pl.DataFrame({"row": range(1, NUM_CATEGORIES + 1), "id": names}).write_parquet(
        features / "vocabularies" / "categories.parquet"
    )
    values = rng.integers(1, NUM_CATEGORIES + 1, 2 * num_items)
    np.save(features / "item_categories" / "values.npy", values)
    np.save(features / "item_categories" / "offsets.npy", np.r_[0, 2 * np.arange(num_items + 1)])
    events = 1 + (num_items * rng.random(2_000_000) ** 3).astype(np.int64)
    np.save(features / "sequences" / "given" / "item_rows.npy", events)
    quantizer = ResidualKMeans([Centres(torch.randn(size, 8), torch.zeros(size)) for size in SIZES])
    keys = rng.choice(int(np.prod(SIZES)), 2 * num_items, replace=False)
    moved = rng.random(num_items) < 0.1
    first, second = keys[:num_items], np.where(moved, keys[num_items:], keys[:num_items])
    store = SemanticIdStore(workspace / "bundles" / "semantic_ids")
    parent = None
    for own in (first, second):
        codes = np.stack([own // 65536, own // 256 % 256, own % 256], 1)
        ids = SemanticIds.of_items(
            torch.from_numpy(codes),
            level_sizes=SIZES,
            quantizer_digest=quantizer.digest,
            parent=parent,
        )
        store.publish(ids, quantizer, item_ids, {})
        parent = ids.version
    stage = workspace / "build_semantic_ids"
    ids.save(stage)
    np.save(stage / "id_rows.npy", np.arange(num_items + 1))
    (stage / "semantic_ids_report.json").write_text(to_json({"version": ids.version}))


def timed(name: str, make: Callable[[], object]) -> None:
    """Print how long something takes, once."""
    began = time.perf_counter()
    make()
    print(f"{name:<44} {1000 * (time.perf_counter() - began):8.0f} ms")


def main(num_items: int) -> None:
    """Measure the page cold and warm."""
    with tempfile.TemporaryDirectory() as folder:
        write_workspace(Path(folder) / "run", num_items)
        context = Context(stores=Stores(Places(roots=[Path(folder)]), watch=True))
        # Import what the first page needs.
        build(Context(stores=Stores(Places(roots=[]))), Query.of())
        prefix, item = Query.of(prefix="12-4"), Query.of(item="B000000050")
        timed("first reading", lambda: build(context, Query.of()))
        for name, query in (("whole catalogue", Query.of()), ("prefix", prefix), ("item", item)):
            timed(f"page, {name}, first", lambda query=query: build(context, query))  # type: ignore[misc]
            timed(f"page, {name}, next", lambda query=query: build(context, query))  # type: ignore[misc]
        controls = {one.name: one for one in build(context, Query.of()).controls}
        before = Query.of(previous=controls["previous"].options[1].value)
        timed("compared with the version before, first", lambda: build(context, before))
        timed("compared with the version before, next", lambda: build(context, before))
        timed("search, first", lambda: suggest_items(context, Query.of(), "garden lamp"))
        timed("search, next", lambda: suggest_items(context, Query.of(), "blue chair 12"))
        deep = Query.of(prefix="12")
        timed("items of a first code", lambda: members(context, deep, Window()))
        by_title = Window(order_by=1)
        timed("the same by title", lambda: members(context, deep, by_title))
        print(f"{len(encoded(build(context, Query.of()))) / 1000:.0f} kB of JSON")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
