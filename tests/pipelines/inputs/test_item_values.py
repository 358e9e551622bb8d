from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

from pipelines.inputs.item_values import read_item_values


def written(folder: Path, values: list[object]) -> Path:
    rows = list(range(1, len(values) + 1))
    items = {"item_row": rows, "item_id": [f"i{row}" for row in rows], "margin": values}
    pl.DataFrame(items, strict=False).write_parquet(folder / "items.parquet")
    return folder


@pytest.mark.parametrize("values", [[3, None, 0], ["3.0", None, "0"], [3.0, None, 0.0]])
def test_missing_values_are_nan_and_row_0_has_none(tmp_path: Path, values: list[object]) -> None:
    found = read_item_values(written(tmp_path, values), "margin", 5)
    expected = torch.tensor([torch.nan, 3.0, torch.nan, 0.0, torch.nan])
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["dear", "2"], "must be numbers, got String such as 'dear'"),
        ([[1.0], [2.0]], "must be numbers, got List"),
        ([1.0, float("nan")], "must be finite numbers >= 0, got nan"),
        ([1.0, float("inf")], "must be finite numbers >= 0, got inf"),
        ([1.0, -0.5], "must be finite numbers >= 0, got -0.5"),
        ([1.0, 1.0, None], "fewer than two different values"),
        ([None, None], "fewer than two different values"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, values: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_item_values(written(tmp_path, values), "margin", 4)


def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"names .price., which the items do not have.*: margin"):
        read_item_values(written(tmp_path, [1, 2]), "price", 3)
