"""A workspace with two versions of semantic IDs whose every number is known.

item        1     2     3     4     5     6     7     8
before      0-0   0-1   0-2   1-0   1-1   2-0   none  none
after       0-0   0-1   1-2   1-0   1-1   0-3   none  3-0
category    d     d     d     c     d     c     none  c
events      9     1     1     1     1     1     0     0
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from pipelines.dashboard.context import Context
from pipelines.engine.artifacts import to_json
from pipelines.semantic_ids.store import SemanticIdStore
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.kmeans import Centres
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from tests.pipelines.dashboard.documents import dashboard
from tests.pipelines.dashboard.synthetic_runs import write_run

TITLES = (
    "<script>document.title = 'x'</script>",
    "\u05e9\u05dc\u05d5\u05dd \u202eabc",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
)
CATEGORIES = ("d", "d", "d", "c", "d", "c", None, "c")
EVENTS = (9, 1, 1, 1, 1, 1, 0, 0)
BEFORE = {1: (0, 0), 2: (0, 1), 3: (0, 2), 4: (1, 0), 5: (1, 1), 6: (2, 0)}
AFTER = BEFORE | {3: (1, 2), 6: (0, 3), 8: (3, 0)}
SIZES = (4, 4)
SETTINGS = {"method": "rq_kmeans", "source": "content", "resolution": "nearest_free"}


def quantizer() -> ResidualKMeans:
    """Make one of two levels of four codes: first by whole numbers, then by tenths."""
    levels = [torch.arange(4.0)[:, None], torch.arange(4.0)[:, None] / 10]
    return ResidualKMeans([Centres(vectors, torch.zeros(4)) for vectors in levels])


def ids_of(codes: dict[int, tuple[int, int]], parent: str | None = None) -> SemanticIds:
    """Lay codes out by item row."""
    return SemanticIds.of_items(
        torch.tensor(list(codes.values())),
        level_sizes=SIZES,
        quantizer_digest=quantizer().digest,
        item_rows=torch.tensor(list(codes)),
        num_item_rows=9,
        parent=parent,
    )


def write_features(folder: Path) -> None:
    """Write items, categories and events."""
    for name in ("item_categories", "vocabularies", "sequences/given"):
        (folder / name).mkdir(parents=True)
    frame = {"item_row": range(1, 9), "item_id": [f"i{row}" for row in range(1, 9)]}
    pl.DataFrame(frame | {"display_text": TITLES}).write_parquet(folder / "items.parquet")
    names = ["c", "d"]
    pl.DataFrame({"row": [1, 2], "id": names}).write_parquet(
        folder / "vocabularies" / "categories.parquet"
    )
    values = [names.index(one) + 1 for one in CATEGORIES if one]
    counts = [0, *(int(one is not None) for one in CATEGORIES)]
    np.save(folder / "item_categories" / "values.npy", np.array(values))
    np.save(folder / "item_categories" / "offsets.npy", np.cumsum([0, *counts]))
    np.save(folder / "sequences" / "given" / "item_rows.npy", np.repeat(range(1, 9), EVENTS))


def write_ids(workspace: Path) -> None:
    """Publish both versions; the later one is the workspace's."""
    before = ids_of(BEFORE)
    after = ids_of(AFTER, before.version)
    store = SemanticIdStore(workspace / "bundles" / "semantic_ids")
    item_ids = [f"i{row}" for row in range(1, 9)]
    for ids in (before, after):
        store.publish(ids, quantizer(), item_ids, {"settings": SETTINGS})
    stage = workspace / "build_semantic_ids"
    stage.mkdir(exist_ok=True)
    after.save(stage)
    quantizer().save(stage / "quantizer")
    np.save(stage / "id_rows.npy", np.array([0, 1, 2, 3, 4, 5, 6, 0, 8]))
    report = {
        "method": "rq_kmeans",
        "how": "aligned",
        "version": after.version,
        "parent": before.version,
        "origin": {"settings": SETTINGS},
        "num_without_content": 1,
    }
    (stage / "semantic_ids_report.json").write_text(to_json(report))


@pytest.fixture
def ids_workspace(tmp_path: Path) -> Path:
    """The workspace of the table above."""
    workspace = write_run(tmp_path / "run", stages=("build_features", "build_semantic_ids"))
    write_features(workspace / "build_features")
    write_ids(workspace)
    return workspace


@pytest.fixture
def ids_context(ids_workspace: Path) -> Context:
    """A dashboard of it."""
    return dashboard(ids_workspace.parent)
