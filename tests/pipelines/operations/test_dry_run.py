"""Rows of raw files, which estimates of time are scaled by."""

import gzip
from pathlib import Path

import pytest

from features.schema import SourceConfig
from pipelines.operations.dry_run import count_rows

ROWS = 3_000
CSV = "user_id,item_id\n" + "".join(f"u{row},i{row % 7}\n" for row in range(ROWS))
LINES = "".join(f'{{"user_id": "u{row}", "item_id": "i"}}\n' for row in range(ROWS))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("events.csv", CSV.encode()),
        ("events.csv.gz", gzip.compress(CSV.encode())),
        ("events.tsv", CSV.replace(",", "\t").encode()),
        ("unended.csv", CSV.rstrip().encode()),
        ("events.jsonl", LINES.encode()),
        ("events.jsonl.gz", gzip.compress(LINES.encode())),
        ("quoted.csv", CSV.replace("u5,", '"u\n5",').encode()),
    ],
)
def test_rows_are_counted_as_a_run_reads_them(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert count_rows(tmp_path / name, SourceConfig(paths=(tmp_path / name,))) == ROWS
