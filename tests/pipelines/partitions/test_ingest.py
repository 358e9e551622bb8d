"""Partitions of events: each counts once, whatever order, state or version they arrive in."""

import errno
import re
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from features.build import build_features
from features.forget_list import ForgetList, UserKeys
from features.schema import FeaturesConfig, FilterConfig, SourceConfig
from pipelines.config.run import DataConfig, RunConfig
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.forgotten import add_to_list
from pipelines.engine.workspace import DailyState
from pipelines.partitions import ingest as module
from pipelines.partitions.ingest import ingest
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.partitions.source import PartitionSource, read_key
from pipelines.presets.resolve import with_dataset
from recsys.data.durable import locked
from tests.fake_disk import fake_disk

SECONDS = 86_400
FIRST = 1_767_225_600
"""2026-01-01, Unix seconds."""


def write_day(folder: Path, day: int, *, events: int = 20, seed: int = 0) -> Path:
    """Write a day's events, all within that day."""
    rng = np.random.default_rng([seed, day])
    times = np.sort(FIRST + day * SECONDS + rng.integers(0, SECONDS, events))
    frame = pl.DataFrame(
        {
            "user_id": [f"u{one}" for one in rng.integers(0, 9, events)],
            "item_id": [f"i{one}" for one in rng.integers(0, 30, events)],
            "event_time": times,
            "value": rng.integers(1, 6, events),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"2026-01-{day + 1:02d}.csv"
    frame.write_csv(path)
    return path


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    data = DataConfig(partitions=str(tmp_path / "events"))
    filters = FilterConfig(max_bad_share=0.2)
    return RunConfig(workspace=tmp_path / "run", data=data, filters=filters)


def manifest_of(config: RunConfig) -> PartitionsManifest:
    found = PartitionsManifest.read(config.workspace)
    assert found is not None
    return found


def rows_of(config: RunConfig) -> pl.DataFrame:
    """All events that count, as a run reads them."""
    paths = with_dataset(config).data.event_paths()
    return pl.concat([pl.read_parquet(path) for path in paths])


def test_days_are_read_once_and_new_ones_later(config, tmp_path):
    paths = [write_day(tmp_path / "events", day) for day in range(3)]
    assert ingest(config, until="2026-01-02").new == ["2026-01-01", "2026-01-02"]
    first = ingest(config)
    assert (first.new, first.unchanged, first.rows) == (["2026-01-03"], 2, 20)
    # Files that were written again with the same content change nothing.
    before = manifest_of(config).digests()
    paths[1].write_bytes(paths[1].read_bytes())
    second = ingest(config)
    assert (second.new, second.unchanged, second.changed) == ([], 3, False)
    assert manifest_of(config).digests() == before
    write_day(tmp_path / "events", 3)
    paths[0].unlink()
    third = ingest(config)
    assert third.new == ["2026-01-04"]
    assert rows_of(config).height == 80
    assert rows_of(config).schema["event_time"] == pl.Datetime("us", "UTC")
    with locked(DailyState(config.workspace).partitions_lock), pytest.raises(WorkspaceBusyError):
        ingest(config)


def test_a_corrected_day_replaces_its_events(config, tmp_path):
    for day in range(3):
        write_day(tmp_path / "events", day)
    ingest(config)
    write_day(tmp_path / "events", 1, events=33, seed=1)
    report = ingest(config)
    assert report.corrected == ["2026-01-02"]
    assert manifest_of(config).partitions["2026-01-02"].revision == 2
    assert rows_of(config).height == 20 + 33 + 20
    # The version before goes when the next call sweeps, with what a killed call left.
    (DailyState(config.workspace).days / ".partial-2026-01-02~1").mkdir()
    ingest(config)
    kept = {path.name for path in (DailyState(config.workspace).days).iterdir()}
    assert kept == {"2026-01-01~1", "2026-01-02~2", "2026-01-03~1"}


def test_days_that_were_read_are_there_after_a_power_cut(config, tmp_path):
    write_day(tmp_path / "events", 0)
    ingest(config)
    write_day(tmp_path / "events", 0, events=33, seed=1)
    write_day(tmp_path / "events", 1)
    with fake_disk(config.workspace) as disk:
        ingest(config)
        before = rows_of(config)
        disk.cut_power()
    assert rows_of(config).equals(before)
    assert before.height == 33 + 20
    assert not ingest(config).changed


def test_late_and_missing_days_are_named(config, tmp_path):
    for day in (0, 1, 6):
        write_day(tmp_path / "events", day)
    report = ingest(config)
    # Later ones may come yet: they are less than three days before the newest.
    assert report.missing == ["2026-01-03"]
    assert manifest_of(config).missing == [f"2026-01-0{day}" for day in (3, 4, 5, 6)]
    write_day(tmp_path / "events", 4)
    later = ingest(config)
    assert later.late == ["2026-01-05"]
    write_day(tmp_path / "events", 2)
    latest = ingest(config)
    assert latest.late == ["2026-01-03"]
    assert any("came late" in note for note in latest.notes())
    assert rows_of(config).height == 100


def test_a_corrupt_day_is_set_aside_and_read_when_it_is_whole(config, tmp_path):
    folder = tmp_path / "events"
    for day in range(3):
        path = write_day(folder, day)
        pl.read_csv(path).write_parquet(path.with_suffix(".parquet"))
        path.unlink()
    whole = (folder / "2026-01-02.parquet").read_bytes()
    (folder / "2026-01-02.parquet").write_bytes(whole[: len(whole) // 2])
    report = ingest(config)
    assert report.new == ["2026-01-01", "2026-01-03"]
    assert "2026-01-02.parquet" in report.set_aside["2026-01-02"]
    assert str(config.workspace) not in report.set_aside["2026-01-02"]
    # It is said at each call, and not read for as long as it is the same.
    assert "2026-01-02" in ingest(config).set_aside
    (folder / "2026-01-02.parquet").write_bytes(whole)
    healed = ingest(config)
    assert healed.new == healed.late == ["2026-01-02"]
    assert manifest_of(config).set_aside == {}


def test_versions_that_cannot_be_used_leave_the_one_before(config, tmp_path):
    path = write_day(tmp_path / "events", 0)
    write_day(tmp_path / "events", 1)
    ingest(config)
    for content, words in (
        (b"", "empty"),
        (re.sub(rb"(?m)^u\d+", b"", path.read_bytes()), "max_bad_share"),
    ):
        path.write_bytes(content)
        assert words in ingest(config).set_aside["2026-01-01"]
        assert rows_of(config).height == 40


def test_changed_columns_are_said_before_rows_are_read_and_can_be_accepted(config, tmp_path):
    frame = pl.read_csv(write_day(tmp_path, 0))
    folder = tmp_path / "events"
    folder.mkdir()
    frame.write_parquet(folder / "2026-01-01.parquet")
    ingest(config)
    for changed, words in (
        (frame.rename({"user_id": "customer"}), "user_id"),
        (frame.with_columns(pl.col("value").cast(pl.String)), "value was Int64 and is String"),
        (frame.drop("value"), "column value is missing"),
    ):
        changed.write_parquet(folder / "2026-01-02.parquet")
        assert words in ingest(config).schema_changes["2026-01-02"]
        assert rows_of(config).height == 20
    within = pl.col("event_time") + SECONDS
    frame.drop("value").with_columns(within).write_parquet(folder / "2026-01-02.parquet")
    assert ingest(config, accepted=["2026-01-02"]).new == ["2026-01-02"]


def test_rows_that_cannot_be_used_are_kept_with_their_reasons(config, tmp_path):
    path = write_day(tmp_path / "events", 0)
    with path.open("a") as file:
        file.write(
            f",i1,{FIRST},3\nu1,i1,soon,3\nu1,i1,{FIRST + 3 * SECONDS},3\nu\0,i1,{FIRST},1\n"
        )
    report = ingest(config)
    assert (report.rows, report.quarantined) == (20, 4)
    found = manifest_of(config).partitions["2026-01-01"].quarantined
    assert found == {
        "user_id is missing": 1,
        "event_time is unreadable": 1,
        "event_time is after its partition": 1,
        "user_id holds a NUL character": 1,
    }
    parts = (DailyState(config.workspace).days / "2026-01-01~1" / "quarantine").glob("*.parquet")
    assert sum(pl.read_parquet(part).height for part in parts) == 4


def test_partitions_build_the_features_that_one_file_builds(config, tmp_path):
    paths = [write_day(tmp_path / "events", day) for day in (0, 1, 2, 3)]
    paths[2].rename(tmp_path / "later.csv")
    ingest(config)
    (tmp_path / "later.csv").rename(paths[2])
    ingest(config)
    settings = FeaturesConfig(
        events=SourceConfig(paths=with_dataset(config).data.event_paths()), context_features=()
    )
    whole = replace(settings, events=SourceConfig(paths=tuple(paths)))
    build_features(settings, tmp_path / "by_day")
    build_features(whole, tmp_path / "whole")
    for name in ("item_rows.npy", "offsets.npy", "times.npy"):
        one, other = (
            np.load(folder / "sequences" / "given" / name)
            for folder in (tmp_path / "by_day", tmp_path / "whole")
        )
        assert np.array_equal(one, other)


def test_a_day_to_come_waits_until_the_clock_is_right(config, tmp_path, monkeypatch):
    write_day(tmp_path / "events", 5)

    class SetBack(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime(2025, 1, 1, tzinfo=tz)

    with monkeypatch.context() as patched:
        patched.setattr(module, "datetime", SetBack)
        report = ingest(config)
    assert "by this machine's clock (2025-01-01" in report.set_aside["2026-01-06"]
    assert manifest_of(config).partitions == {}
    # The files are as they were.
    assert ingest(config).new == ["2026-01-06"]


def test_a_full_disk_is_no_fault_of_the_file(config, tmp_path, monkeypatch):
    write_day(tmp_path / "events", 0)

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionSource, "fetch", full)
        with pytest.raises(OSError, match="No space left"):
            ingest(config)
    assert ingest(config).new == ["2026-01-01"]


def test_hours_of_a_day_and_globs_and_object_stores(tmp_path):
    import fsspec

    store = fsspec.filesystem("memory")
    for hour in (7, 8):
        text = f"user_id,item_id,event_time\nu1,i{hour},{FIRST + 3600 * hour + 5}\n"
        store.pipe(f"/shop/events/dt=2026-01-01/hour={hour:02d}/part-0.csv", text.encode())
    store.pipe("/shop/events/_SUCCESS", b"")
    data = DataConfig(partitions="memory://shop/events/")
    config = RunConfig(workspace=tmp_path / "run", data=data)
    assert ingest(config).new == ["2026-01-01"]
    assert rows_of(config).height == 2
    glob = replace(data, partitions="memory://shop/events/dt=*/hour=08/*.csv")
    assert ingest(replace(config, data=glob)).corrected == ["2026-01-01"]
    assert rows_of(config).height == 1


def test_places_and_manifests_that_cannot_be_read_are_explained(config, tmp_path):
    path = write_day(tmp_path / "events", 0)
    ingest(config)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "monday.csv").write_bytes(path.read_bytes())
    places = {
        str(tmp_path / "nowhere"): "there is no folder",
        "s4://bucket/events": "is no address that can be read",
        str(tmp_path / "odd"): "monday.csv has no date in its path",
    }
    for place, words in places.items():
        with pytest.raises(ValueError, match=words):
            ingest(replace(config, data=DataConfig(partitions=place)))
    manifest = DailyState(config.workspace).partitions_manifest
    text = manifest.read_text()
    for damaged in (text[:-40], text.replace('"2026-01-01": {', '"2026-01-01T05": {')):
        manifest.write_text(damaged)
        with pytest.raises(ValueError, match=r"partitions.json cannot be read .*; delete"):
            ingest(config)


def test_keys_are_read_from_paths():
    for path in (
        "/2026-11-22.csv",
        "/date=2026-11-22/part-0.parquet",
        "/2026/11/22/13.jsonl",
        "/dt=2026-11-22/hour=05/p.parquet",
        "/events-20261122.csv.gz",
        "/2026112213.csv",
        "/2026-11-22/00012-abc.parquet",
        "/2026-13-45/2026-11-22.csv",
    ):
        assert read_key(path, "events") == "2026-11-22", path


def test_forgotten_users_are_taken_out_of_partitions_that_were_read(config):
    source = Path(str(config.data.partitions))
    for day in range(3):
        write_day(source, day)
    # Rows of u3 that cannot be used are kept as well, until then.
    bad = source / "2026-01-02.csv"
    bad.write_text(bad.read_text() + "u3,,1767312000,1\n")
    ingest(config)
    before = manifest_of(config)

    def users(key: str) -> list[str]:
        revision = manifest_of(config).partitions[key].revision
        folder = DailyState(config.workspace).partition(key, revision)
        tables = [pl.read_parquet(path)["user_id"] for path in folder.glob("events-*.parquet")]
        return pl.concat(tables).to_list()

    keys = list(before.partitions)
    theirs = {key: users(key).count("u3") for key in keys}
    assert sum(theirs.values()) > 0
    # Forgotten in the night after the second day.
    moment = 1_000 * (FIRST + 2 * SECONDS)
    add_to_list(
        DailyState(config.workspace).forgotten,
        ForgetList.of(["u3"], moment, UserKeys((b"k" * 16,))),
    )
    report = ingest(config)
    assert report.forgotten == theirs[keys[0]] + theirs[keys[1]] + 1
    assert report.changed
    assert [users(key).count("u3") for key in keys] == [0, 0, theirs[keys[2]]]
    assert not list((DailyState(config.workspace).days).glob("2026-01-02~*/quarantine/*.parquet"))
    after = manifest_of(config).partitions
    assert [after[key].rows for key in keys] == [
        before.partitions[key].rows - (theirs[key] if key != keys[2] else 0) for key in keys
    ]
    # Nothing is done twice, and what arrives later is held against the list too.
    assert not ingest(config).changed
    write_day(source, 1, seed=5)
    ingest(config)
    assert users(keys[1]).count("u3") == 0
