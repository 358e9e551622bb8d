"""Which columns are times, and how they are written."""

import polars as pl
import pytest

from pipelines.datasets.column_guesses import guess_time


@pytest.mark.parametrize(
    "values", [["blue", "red"], [1, 999], ["12.50", "3.99"], ["a1b2c3d4e5f6"], ["x 2024-01-31"]]
)
def test_texts_that_hold_no_date_are_no_times(values: list[object]) -> None:
    assert guess_time(pl.Series(values)) is None


@pytest.mark.parametrize(
    ("values", "time_format"),
    [
        (["1.2.2024", "28.2.2024"], "%d.%m.%Y"),
        (["20240131", "20240228"], "%Y%m%d"),
        ([" 2024-01-31 10:00", "2024-02-28 11:00"], None),
        (["12/31/2024 1:05 PM"], "%m/%d/%Y %I:%M %p"),
    ],
)
def test_dates_of_six_digits_or_more_are_read(values: list[str], time_format: str | None) -> None:
    found = guess_time(pl.Series(values))
    assert found is not None
    assert found.time_format == time_format
