"""Preparation by partitions: the same bytes however it is divided, and what goes wrong midway."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from features.build import SCRATCH, FeaturesConfig, FilterConfig, SourceConfig, build_features
from features.parallel import in_order
from features.preparation import prepare, ranges
from features.preparation.prepare import number_of_partitions
from features.preparation.ranges import place_partition
from features.records import RecordFile
from features.schema import SplitConfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FILTERS = FilterConfig(
    min_user_events=3,
    min_item_events=5,
    max_user_events=400,
    max_bad_share=0.2,
    shown_types=("impression",),
)


def raw_events(num: int, seed: int, heavy: float = 0.0) -> pl.DataFrame:
    """Events with every optional column, bad rows, repetitions; ``heavy`` of them of one user."""
    rng = np.random.default_rng(seed)
    users = np.where(rng.random(num) < heavy, 0, rng.integers(0, 60, num))
    frame = pl.DataFrame(
        {
            "user_id": [f"u{user}" if user else "whale" for user in users.tolist()],
            "item_id": [f"i{item}" for item in rng.integers(0, 25, num)],
            "event_time": 1_700_000_000 + rng.integers(0, 2_000_000, num) // 60 * 60,
            "event_type": rng.choice(["view", "purchase", "impression"], num),
            "value": np.where(rng.random(num) < 0.02, np.nan, 1.5),
            "session_id": [None if n % 7 == 0 else f"s{n // 3}" for n in range(num)],
            "domain": rng.choice(["books", "films"], num),
            "slot": rng.integers(0, 9, num),
        }
    )
    return frame.with_columns(
        pl.when(pl.int_range(pl.len()) % 50 == 0).then(None).otherwise("user_id").alias("user_id")
    )


def configured(folder: Path, **changes: Any) -> FeaturesConfig:
    config = FeaturesConfig(
        events=files_of(folder),
        filters=FILTERS,
        history_event_types=True,
        splits=SplitConfig(kind="global_time"),
        now=NOW,
    )
    return replace(config, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 4 files of events."""
    out = tmp_path_factory.mktemp("raw")
    for number in range(4):
        raw_events(1_500, number).write_parquet(out / f"{number}.parquet")
    return out


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build in one partition."""
    out = tmp_path_factory.mktemp("one") / "out"
    report = build_features(configured(folder, file_groups=1), out)
    assert report.filtered["shown, no part of histories"] > 1_000
    assert sum(report.quarantined.values()) > 150
    return digests(out)


def files_of(folder: Path) -> SourceConfig:
    return SourceConfig(paths=tuple(sorted(folder.glob("*.parquet"))))


@pytest.mark.parametrize("partitions", [2, 9])
def test_any_number_of_partitions_gives_the_same_bytes_and_sweeps_what_was_left(
    folder: Path, expected: dict[str, str], tmp_path: Path, partitions: int
) -> None:
    left = tmp_path / SCRATCH / "partition-00000"
    left.mkdir(parents=True)
    (left / "records").write_bytes(b"half, of a killed build")
    build_features(configured(folder, file_groups=partitions), tmp_path)
    assert digests(tmp_path) == expected


def test_events_collected_online_are_checked_against_all_partitions(
    folder: Path, tmp_path: Path
) -> None:
    pl.DataFrame({"item_id": ["i1", "new"]}).write_csv(tmp_path / "items.csv")
    is_spam = pl.int_range(pl.len()) % 9 == 0
    raw_events(300, 9).with_columns(
        pl.when(is_spam).then(pl.lit("spam")).otherwise("item_id").alias("item_id")
    ).write_parquet(tmp_path / "online.parquet")
    config = configured(
        folder,
        online_events=SourceConfig(paths=(tmp_path / "online.parquet",)),
        items=SourceConfig(paths=(tmp_path / "items.csv",)),
    )
    for number in (1, 4):
        report = build_features(replace(config, file_groups=number), tmp_path / str(number))
    assert digests(tmp_path / "1") == digests(tmp_path / "4")
    spam = "item_id of an online event is in neither the catalogue nor the event files"
    assert report.quarantined[spam] == 33


def test_a_partition_that_is_gone_midway_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(function: Callable, tasks: Iterable) -> Iterator:
        if getattr(function, "func", None) is place_partition:
            (tmp_path / SCRATCH / "partition-00002" / "records").unlink()
        return in_order(function, tasks)

    monkeypatch.setattr(ranges, "in_order", losing)
    with pytest.raises(ValueError, match=r"partition-00002/records is missing: .* run the stage"):
        build_features(configured(folder, file_groups=4), tmp_path)
    assert not (tmp_path / SCRATCH).exists()
    assert not (tmp_path / "report.json").exists()


def test_a_full_disk_midway_leaves_no_artefact_and_the_next_build_is_whole(
    folder: Path, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, writes = RecordFile.write, []

    def fails(file: RecordFile, start: int, records: np.ndarray) -> None:
        writes.append(start)
        if len(writes) > 6:
            raise OSError(28, "No space left on device")
        real(file, start, records)

    monkeypatch.setattr(RecordFile, "write", fails)
    with pytest.raises(OSError, match="No space left"):
        build_features(configured(folder, file_groups=4), tmp_path)
    assert list(tmp_path.glob("report.json")) == list(tmp_path.glob(".scratch*")) == []
    monkeypatch.undo()
    build_features(configured(folder, file_groups=4), tmp_path / "next")
    assert digests(tmp_path / "next") == expected


def test_the_number_of_partitions_follows_size_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.csv").write_bytes(b"x" * 1_000)
    source = SourceConfig(paths=(tmp_path / "events.csv",))
    assert number_of_partitions(source, memory=1) == 1
    monkeypatch.setattr(prepare, "SMALL_BYTES", 100)
    monkeypatch.setattr(prepare, "num_cores", lambda: 2)
    assert number_of_partitions(source, memory=8_000) == 1
    # 2 threads at a time, of 1,000 * 4 / 4 bytes of ids each: half of 4,000 bytes of memory.
    assert number_of_partitions(source, memory=4_000) == 4


def dropped_table(found: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in found.items() if not name.startswith("events/")}


@pytest.mark.parametrize("cap", [None, 50])
def test_one_user_with_most_of_the_events_is_one_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap: int | None
) -> None:
    for number in range(3):
        raw_events(2_000, number, heavy=0.8).write_parquet(tmp_path / f"{number}.parquet")
    filters = replace(FILTERS, max_user_events=cap)
    config = configured(tmp_path, filters=filters)
    build_features(replace(config, file_groups=1), tmp_path / "whole")
    monkeypatch.setattr("features.preparation.ranges.RANGE_EVENTS", 100)
    build_features(replace(config, file_groups=3), tmp_path / "parts")
    whole, parts = digests(tmp_path / "whole"), digests(tmp_path / "parts")
    tables = [pl.read_parquet(tmp_path / name / "events") for name in ("whole", "parts")]
    assert tables[0].equals(tables[1])
    # The table has a file for each range.
    assert dropped_table(whole) == dropped_table(parts)
