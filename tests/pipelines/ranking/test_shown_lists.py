"""Shown lists as queries: which are read, the history before them, labels of impressions."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from features.build import FeaturesConfig, build_features
from features.schema import FilterConfig, SourceConfig
from pipelines.presets import PRESETS
from pipelines.ranking.shown_lists import ShownLists, shown_lists
from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs
from recsys.models.item_tower import FeatureSizes, ItemCatalogue

START = 1_700_000_000
TASKS = ("next", "purchase")
ROWS = [
    # user, item, seconds, type, request, slot
    ("ann", "a", 0, "click", None, None),
    ("ann", "b", 10, "click", None, None),
    # Before the end of what retrievers were fitted on: not read.
    ("ann", "c", 5, "impression", "early", 0),
    # Seen: c, b and d; taken: c, which was bought as well.
    ("ann", "c", 100, "impression", "r1", 0),
    ("ann", "b", 100, "impression", "r1", 2),
    ("ann", "d", 100, "impression", "r1", 1),
    ("ann", "c", 103, "click", "r1", 0),
    ("ann", "c", 200, "purchase", "r1", 0),
    # Nothing taken.
    ("ann", "a", 300, "impression", "r2", 0),
    ("ann", "d", 5_000, "click", None, None),
    # Labels of validation and test.
    ("ann", "b", 6_000, "impression", "r3", 0),
    ("ann", "b", 6_001, "click", "r3", 0),
    ("ann", "a", 7_000, "click", "r4", 0),
    ("bo", "a", 0, "click", None, None),
    ("bo", "b", 1, "click", None, None),
]


def read(
    folder: Path, rows: list[tuple[object, ...]], *, most: int = 100, fitted_on: int = 2
) -> tuple[ShownLists | None, dict[int, str], Sequences]:
    names = ["user_id", "item_id", "event_time", "event_type", "request_id", "slot"]
    frame = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        pl.col("event_time") + START, pl.col("request_id").cast(pl.String)
    )
    frame.write_parquet(folder / "events.parquet")
    features = FeaturesConfig(
        events=SourceConfig(paths=(folder / "events.parquet",)),
        filters=FilterConfig(shown_types=("impression",)),
        now=datetime(2024, 6, 1, tzinfo=UTC),
    )
    build_features(features, folder / "out")
    sequences = Sequences.load(folder / "out" / "sequences" / "given")
    items = dict(pl.read_parquet(folder / "out" / "vocabularies" / "items.parquet").rows())
    inputs = ModelInputs(
        sequences=sequences,
        catalogue=ItemCatalogue.empty(len(items) + 1),
        sizes=FeatureSizes(num_item_rows=len(items) + 1),
        user_features={},
    )
    ends = np.asarray(sequences.offsets[:-1] + fitted_on)
    ends[0] = 0
    config = replace(PRESETS["shop"](), seed=0)
    training = replace(config.ranker_training, max_queries=most, like_from=4.0)
    config = replace(config, ranker_training=training)
    found = shown_lists(folder / "out", inputs, ends, TASKS, config)
    return found, items, sequences


def test_a_list_is_a_query_with_its_history_and_labels(tmp_path: Path) -> None:
    found, items, sequences = read(tmp_path, ROWS)
    assert found is not None
    assert found.num_slots == 3
    lists = [
        [items[row] for row in found.impressions.item_rows.values[begin:end].tolist()]
        for begin, end in zip(
            found.impressions.item_rows.offsets[:-1].tolist(),
            found.impressions.item_rows.offsets[1:].tolist(),
            strict=True,
        )
    ]
    # By slot; without the list before the end and the one of validation.
    assert lists == [["c", "d", "b"], ["a"]]
    assert found.impressions.slots.tolist() == [0, 1, 2, 0]
    assert found.impressions.labels.tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
    begin = int(sequences.offsets[1])
    assert (found.held_out.positions - begin).tolist() == [2, 4]
    assert [items[row] for row in found.held_out.seen.values.tolist()] == list("ab" + "abcc")


def test_without_requests_an_item_was_taken_within_half_an_hour(tmp_path: Path) -> None:
    rows = [(*row[:4], None, row[5]) for row in ROWS]
    found, items, _ = read(tmp_path, rows)
    assert found is not None
    assert [items[row] for row in found.impressions.item_rows.values.tolist()] == [
        "c",
        "d",
        "b",
        "a",
    ]
    # d was taken 4,900 seconds after it was shown.
    assert found.impressions.labels[:, 0].tolist() == [1, 0, 0, 0]


def test_a_list_of_which_validation_took_something_is_not_known(tmp_path: Path) -> None:
    rows = list(ROWS)
    rows.insert(9, ("ann", "b", 4_999, "impression", "r3", 1))
    found, items, _ = read(tmp_path, rows)
    assert found is not None
    last = [items[row] for row in found.impressions.item_rows.values.tolist()][-1]
    assert last == "b"
    assert found.impressions.labels[-1].isnan().all()
    assert not found.impressions.labels[:-1].isnan().any()


@pytest.mark.parametrize("kind", ["impression", "click"])
def test_without_lists_to_read_there_is_none(tmp_path: Path, kind: str) -> None:
    rows = [row for row in ROWS if row[3] != "impression"]
    if kind == "impression":
        rows = [row for row in ROWS if row[3] != "impression" or row[2] == 5]
    assert read(tmp_path, rows)[0] is None
