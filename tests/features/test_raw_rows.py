"""Rows of a person in raw files: found, and taken out with nothing else changed."""

import gzip
from pathlib import Path

import pytest

from features.people import count_rows, write_without
from features.schema import SourceConfig

CSV = 'when;who;what\r\n1;ann;"a ""b""\nc;ann"\n2;bo;x\r\n\n3;"ann";y\n4;annie;z\n5;bo;ann'
KEPT = "when;who;what\r\n2;bo;x\r\n\n4;annie;z\n5;bo;ann"


def without(path: Path, source: SourceConfig, *user_ids: str) -> Path:
    target = path.with_name(f"kept-{path.name}")
    write_without(path, source, user_ids, target)
    return target


def source_of(path: Path, **more: object) -> SourceConfig:
    return SourceConfig(paths=(path,), columns={"user_id": "who", "item_id": "what"}, **more)


@pytest.mark.parametrize("name", ["events.csv", "events.csv.gz"])
def test_lines_of_others_stay_to_the_byte(tmp_path: Path, name: str) -> None:
    path, opened = tmp_path / name, gzip.open if name.endswith("gz") else open
    with opened(path, "wb") as file:
        file.write(CSV.encode())
    source = source_of(path, separator=";")
    assert count_rows(path, source, ["ann"]) == 2
    with opened(without(path, source, "ann"), "rb") as file:
        assert file.read().decode() == KEPT
    assert count_rows(path, source, ["nobody"]) == 0
