"""Values and types of held-out events, and which ranker is released."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.inputs.tensors import HeldOut
from pipelines.ranking.artefact import served_ranker
from pipelines.ranking.examples import read_outcomes
from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs
from recsys.models.item_tower import FeatureSizes, ItemCatalogue

NAN = float("nan")


def test_values_are_those_of_each_users_held_out_events(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    pl.DataFrame(
        {
            "user_row": [1, 1, 1, 2, 2],
            "item_row": [3, 4, 4, 4, 5],
            "sequence_index": [0, 1, 2, 0, 1],
            "value": [1.0, 2.0, 5.0, 3.0, None],
        }
    ).write_parquet(folder / "part.parquet")
    rows = np.array([3, 4, 4, 5])
    sequences = Sequences(rows, np.array([0, 0, 2, 4]), np.array([0, 1, 3]), np.array([0, 2, 4]))
    inputs = ModelInputs(
        sequences=sequences,
        catalogue=ItemCatalogue.empty(6),
        sizes=FeatureSizes(num_item_rows=6),
        user_features={},
    )
    held_out = HeldOut.of(sequences, "validation")
    assert read_outcomes(tmp_path, inputs, held_out).values.nan_to_num(-1).tolist() == [5, -1]
    assert read_outcomes(tmp_path / "none", inputs, held_out).values.isnan().all()


def test_an_event_is_known_by_its_second_and_has_its_own_type(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    seconds = [10, 20, 30, 5, 6]
    pl.DataFrame(
        {
            "user_row": [1, 1, 1, 2, 2],
            "item_row": [3, 4, 4, 4, 5],
            "event_time": [second * 1_000_000 for second in seconds],
            "event_type": ["view", "view", "purchase", "view", "refund"],
            "value": [1.0, 2.0, 5.0, 3.0, None],
        }
    ).with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC"))).write_parquet(
        folder / "part.parquet"
    )
    sequences = Sequences(
        np.array([3, 4, 4, 4, 5]),
        np.array([0, 0, 3, 5]),
        np.array([0, 1, 4]),
        np.array([0, 3, 5]),
        times=np.array(seconds),
    )
    inputs = ModelInputs(
        sequences=sequences,
        catalogue=ItemCatalogue.empty(6),
        sizes=FeatureSizes(num_item_rows=6),
        user_features={},
    )
    found = read_outcomes(tmp_path, inputs, HeldOut.of(sequences, "validation"))
    # Item 4 was viewed before it was bought: each event has its own value, the first led to both.
    assert found.values.nan_to_num(-1).tolist() == [2, 5, -1]
    assert found.type_names == ("purchase", "refund", "view")
    assert found.types.int().tolist() == [[1, 0, 1], [1, 0, 0], [0, 1, 0]]
    # What the next split holds out is not reported.
    before = replace(inputs, sequences=replace(sequences, validation_end=np.array([0, 2, 5])))
    found = read_outcomes(tmp_path, before, HeldOut.of(before.sequences, "validation"))
    assert found.types.int().tolist() == [[0, 0, 1], [0, 1, 0]]


def test_a_ranker_that_lost_or_was_never_trained_is_not_released(tmp_path: Path) -> None:
    assert served_ranker(tmp_path) is None
    (tmp_path / "ranker.json").write_text('{"served": false}')
    assert served_ranker(tmp_path) is None
    (tmp_path / "ranker.json").write_text('{"served": true}')
    assert served_ranker(tmp_path) == tmp_path / "ranker"
