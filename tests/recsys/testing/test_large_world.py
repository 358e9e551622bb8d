"""A generated world on disk: resumed, on any number of processes, refused where it cannot be."""

import hashlib
import json
import shutil
from collections import namedtuple
from pathlib import Path

import polars as pl
import pytest

from features.build import build_features
from pipelines.presets.resolve import resolve
from pipelines.stages.build_features import features_config
from tests.benchmarks.data import large_world
from tests.benchmarks.data.large_world import files_of, generate, write_file
from tests.recsys.testing.large_worlds import LargeWorldConfig

WORLD = LargeWorldConfig(num_events=20_000, num_users=800, num_items=200, num_days=4)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("world")
    generate(WORLD, out, say=lambda _: None)
    return out


def test_two_processes_that_go_on_write_the_same_bytes(made, tmp_path):
    later = list(files_of(WORLD))[2:4]
    for file in later:
        write_file(WORLD, tmp_path / "parts", file)
    (tmp_path / "parts" / "world.json").write_text((made / "world.json").read_text())
    leftover = tmp_path / "parts" / "events" / ".partial-9-x.parquet"
    leftover.write_bytes(b"cut off by a kill")
    progress = generate(WORLD, tmp_path / "parts", workers=2, say=lambda _: None)
    assert progress.events_made == 10_000
    assert progress.events_done == 20_000
    assert digests(tmp_path / "parts") == digests(made)
    assert json.loads((made / "world.json").read_text())["complete"]


def test_its_configuration_runs(made, tmp_path):
    config = resolve(made / "world.toml")
    assert len(config.data.event_paths()) == 4
    report = build_features(features_config(config), tmp_path / "features")
    assert report.rows_in == report.events + report.duplicates == 20_000
    assert report.items_without_catalogue == 0
    items = pl.read_parquet(made / "items")
    assert items.height == 200
    assert items["available_from"].dtype == pl.Datetime("us", "UTC")


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**10, 9 * 10**9, 10**9))
    with pytest.raises(OSError, match=r"0.0 GB of disk needed, 1.0 GB free .* at most 0 events"):
        generate(WORLD, tmp_path, say=lambda _: None)
    assert not (tmp_path / "world.json").exists()


def test_a_full_disk_midway_leaves_whole_files_and_the_same_call_goes_on(
    made, tmp_path, monkeypatch
):
    real, written = large_world.event_table, []

    def fails(config, day, bucket):
        if day == 2:
            raise OSError(28, "No space left on device")
        written.append(day)
        return real(config, day, bucket)

    monkeypatch.setattr(large_world, "event_table", fails)
    with pytest.raises(OSError, match="No space"):
        generate(WORLD, tmp_path, say=lambda _: None)
    assert written == [0, 1]
    assert not json.loads((tmp_path / "world.json").read_text())["complete"]
    monkeypatch.undo()
    generate(WORLD, tmp_path, say=lambda _: None)
    assert digests(tmp_path) == digests(made)


def test_a_folder_of_something_else_is_refused(made, tmp_path):
    with pytest.raises(ValueError, match="world of other num_events"):
        generate(LargeWorldConfig(num_events=5, num_users=800, num_items=200, num_days=4), made)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ValueError, match=r"not empty \(thesis.txt\)"):
        generate(WORLD, tmp_path)
