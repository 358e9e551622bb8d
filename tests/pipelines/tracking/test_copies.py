"""Copies of bundles over fsspec: whole, verified, and continued after a fault."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from pipelines.tracking import copies
from pipelines.tracking.copies import CopyPlace, UnreachableError, fetch, send
from serving.bundle.load import load_bundle
from serving.bundle.manifest import read_manifest
from tests.pipelines.tracking.registries import bytes_of, write_bundles
from tests.serving.writable import writable


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with v1, v2 and v2+1, which no test changes."""
    return write_bundles(tmp_path_factory.mktemp("made") / "bundles")


@pytest.fixture(params=["folder", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder whose name a URL would quote, and a store that is no folder."""
    if request.param == "folder":
        yield str(tmp_path / "50% of a#b")
        return
    name = f"memory://copies-{uuid4().hex}"
    yield name
    fsspec.filesystem("memory").rm(name, recursive=True)


def digest_of(bundles: Path, version: str) -> str:
    return read_manifest(bundles / f"bundle-{version}")[1]


def partial(here: Path) -> list[Path]:
    return list(here.glob(".partial-fetched-*"))


def test_a_delta_comes_with_what_it_was_appended_to(bundles: Path, address: str, tmp_path: Path):
    send(bundles, "v2+1", address)
    here = tmp_path / "here"
    found = fetch(address, "v2+1", digest_of(bundles, "v2+1"), here)
    for name in ("bundle-v2", "bundle-v2+1"):
        assert bytes_of(here / name) == bytes_of(bundles / name)
    assert found.num_files == sum(
        len(read_manifest(bundles / name)[0].files) for name in ("bundle-v2", "bundle-v2+1")
    )
    assert load_bundle(here / "bundle-v2+1").catalogue.row_of("fresh") is not None
    assert fetch(address, "v2+1", digest_of(bundles, "v2+1"), here).num_files == 0
    assert partial(here) == []


def test_an_altered_copy_is_refused_whatever_was_altered(bundles: Path, tmp_path: Path):
    place, here = tmp_path / "place", tmp_path / "here"
    send(bundles, "v1", str(place))
    victim = place / "bundle-v1" / "popularity" / "popularity.safetensors"
    manifest = place / "bundle-v1" / "manifest.json"
    whole, listed, digest = victim.read_bytes(), manifest.read_bytes(), digest_of(bundles, "v1")
    for content, words in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), r"popularity\.safetensors at .* is altered"),
        (whole + b"0", f"has {len(whole) + 1} bytes"),
        (None, r"popularity\.safetensors at .* is missing"),
    ):
        victim.unlink()
        if content is not None:
            victim.write_bytes(content)
        else:
            victim.parent.joinpath("other").touch()
        with pytest.raises(ValueError, match=words):
            fetch(str(place), "v1", digest, here)
        assert not (here / "bundle-v1").exists()
        victim.touch()
    victim.write_bytes(whole)
    # It agrees with every file, but is not the one that was registered.
    manifest.write_bytes(listed + b"\n")
    with pytest.raises(ValueError, match=r"manifest.json at .* is altered"):
        fetch(str(place), "v1", digest, here)
    manifest.write_bytes(listed)
    assert fetch(str(place), "v1", digest, here).num_files > 0


class Cut(Exception):
    """A network that ends in the middle."""


def cut_after(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let a network end after some files."""
    whole, left = getattr(CopyPlace, name), [number]

    def counted(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Cut("reset by peer")
        return whole(*arguments)

    monkeypatch.setattr(CopyPlace, name, counted)


def test_a_copy_that_was_cut_off_is_continued(
    bundles: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    digest, here = digest_of(bundles, "v1"), tmp_path / "here"
    num_files = len(read_manifest(bundles / "bundle-v1")[0].files)
    with monkeypatch.context() as patch:
        cut_after(patch, "copy_in", 5)
        with pytest.raises(UnreachableError, match="reset by peer"):
            send(bundles, "v1", address)
    assert len(CopyPlace(address).sizes("bundle-v1")) == 5
    with pytest.raises(ValueError, match=r"there is no bundle-v1/manifest.json"):
        fetch(address, "v1", digest, here)
    with monkeypatch.context() as patch:
        cut_after(patch, "copy_in", num_files + 1 - 5)
        send(bundles, "v1", address)

    with monkeypatch.context() as patch:
        cut_after(patch, "copy_out", 5)
        with pytest.raises(UnreachableError, match="reset by peer"):
            fetch(address, "v1", digest, here)
    assert not (here / "bundle-v1").exists()
    (kept,) = partial(here)
    # Bytes that changed on this disk meanwhile are fetched again.
    next(path for path in kept.rglob("*/*") if path.is_file()).write_bytes(b"0")
    assert fetch(address, "v1", digest, here).num_files == num_files - 4
    assert bytes_of(here / "bundle-v1") == bytes_of(bundles / "bundle-v1")


def test_a_bundle_that_was_altered_here_is_not_sent(bundles: Path, tmp_path: Path):
    shutil.copytree(bundles / "bundle-v1", tmp_path / "own" / "bundle-v1")
    victim = next(writable(tmp_path / "own" / "bundle-v1").glob("two_tower/*.safetensors"))
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="is missing or altered"):
        send(tmp_path / "own", "v1", str(tmp_path / "place"))
    assert not (tmp_path / "place" / "bundle-v1" / "manifest.json").exists()


def test_two_bundles_of_one_name_are_not_mixed(bundles: Path, tmp_path: Path):
    place = tmp_path / "place"
    send(bundles, "v1", str(place))
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(bundles / "bundle-v2", other / "bundle-v1")
    with pytest.raises(ValueError, match="two bundles of one name"):
        send(other, "v1", str(place))
    with pytest.raises(ValueError, match="two bundles of one name"):
        fetch(str(place), "v1", digest_of(bundles, "v1"), other)


def test_a_copy_into_its_own_folder_changes_nothing(bundles: Path):
    before = bytes_of(bundles)
    send(bundles, "v2+1", str(bundles))
    assert bytes_of(bundles) == before


def test_a_place_that_cannot_be_used_is_named_with_the_remedy(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place, here, digest = tmp_path / "place", tmp_path / "here", digest_of(bundles, "v1")
    with pytest.raises(UnreachableError, match=r"cannot be opened: .*s3fs, gcsfs or adlfs"):
        fetch("nowhere://bundles", "v1", digest, here)
    send(bundles, "v1", str(place))

    def reset(*_: object) -> bytes:
        raise ConnectionResetError(104, "reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(CopyPlace, "read", reset)
        with pytest.raises(UnreachableError, match=r"cannot be reached: .*reset by peer"):
            fetch(str(place), "v1", digest, here)
    with monkeypatch.context() as patch:
        patch.setattr(copies, "MAX_MANIFEST_BYTES", 10)
        with pytest.raises(ValueError, match="has more than 10 bytes"):
            fetch(str(place), "v1", digest, here)
    with monkeypatch.context() as patch:
        patch.setattr(copies, "MARGIN_BYTES", 1 << 60)
        with pytest.raises(OSError, match=r"bundle-v1 needs .* bytes in .* are free") as full:
            fetch(str(place), "v1", digest, here)
    # This disk is full, not the place away.
    assert not isinstance(full.value, UnreachableError)
    assert not (here / "bundle-v1").exists()


def test_a_manifest_of_another_bundle_or_version_is_not_used(bundles: Path, tmp_path: Path):
    place, here = tmp_path / "place", tmp_path / "here"
    shutil.copytree(bundles / "bundle-v2", place / "bundle-v1")
    with pytest.raises(ValueError, match=r"manifest.json at .* is of v2; do not use it"):
        fetch(str(place), "v1", digest_of(bundles, "v2"), here)
    path = writable(place / "bundle-v1") / "manifest.json"
    path.write_text(path.read_text().replace('"schema_version": 3', '"schema_version": 4'))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=r"bundle of schema 4.* Nothing was fetched"):
        fetch(str(place), "v1", digest, here)
    assert not list(here.glob("bundle-*"))
