import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelines.publishing.promotion import champions, note_release
from pipelines.publishing.write_release import list_releases, write_release
from serving.bundle.load import load_bundle
from serving.bundle.manifest import Verdict
from serving.bundle.write import BundleParts
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts


@pytest.fixture
def parts(tmp_path: Path) -> BundleParts:
    (tmp_path / "parts").mkdir()
    return synthetic_parts(tmp_path / "parts", SyntheticSize())


def released(folder: Path, parts: BundleParts, **changes: Any) -> str:
    fields: dict[str, Any] = {"name": "abc", "metrics": {}, "config_digest": "1"}
    fields["judge"] = lambda _directory: []
    folder.mkdir(exist_ok=True)
    return write_release(folder, parts, **{**fields, **changes}).version


def test_what_holds_the_same_keeps_its_name_and_has_no_second_copy(parts, tmp_path):
    folder = tmp_path / "bundles"
    assert released(folder, parts) == "abc"
    note_release(folder, "abc", promoted=True)
    written = (folder / "bundle-abc/manifest.json").stat()
    other = [Verdict(name="index recall", value=1.0, bound=0.9, passed=True)]
    assert released(folder, parts, judge=lambda _directory: other) == "abc"
    assert (folder / "bundle-abc/manifest.json").stat() == written
    assert sorted(path.name for path in folder.glob("bundle-*")) == ["bundle-abc"]


def test_what_differs_gets_the_next_free_name(parts, tmp_path):
    folder = tmp_path / "bundles"
    for version in ("abc", "abc-2", "abc-3"):
        assert released(folder, parts, config_digest=version) == version
        note_release(folder, version, promoted=True)
    assert released(folder, parts, name="ab") == "ab"
    assert champions(folder) == list_releases(folder, "abc") == ["abc", "abc-2", "abc-3"]
    shutil.rmtree(folder / "bundle-abc-2")
    assert released(folder, parts, config_digest="4") == "abc-4"
    for path in folder.glob("bundle-*"):
        load_bundle(path)


def test_a_disk_that_fails_leaves_the_served_one_and_no_part_of_the_next(
    parts, tmp_path, monkeypatch
):
    """FAULTS 9 and 10: whichever flush of a release fails."""
    folder, fsync = tmp_path / "bundles", os.fsync
    released(folder, parts)
    note_release(folder, "abc", promoted=True)
    kept = sorted(path.name for path in folder.iterdir())
    for failing, code in ((0, errno.EIO), (1, errno.ENOSPC), (5, errno.EIO)):
        calls = iter(range(1_000))

        def fail(descriptor, calls=calls, failing=failing, code=code):
            if next(calls) == failing:
                raise OSError(code, os.strerror(code))
            fsync(descriptor)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail)
            with pytest.raises(OSError, match=re.escape(os.strerror(code))):
                released(folder, parts, config_digest="2")
        assert sorted(path.name for path in folder.iterdir()) == kept
        assert load_bundle((folder / "current").resolve()).version == "abc"
    assert released(folder, parts, config_digest="2") == "abc-2"


def test_a_damaged_one_is_left_alone_and_not_taken_for_the_same(parts, tmp_path):
    folder = tmp_path / "bundles"
    released(folder, parts)
    path = folder / "bundle-abc/index/items.faiss"
    path.chmod(0o644)
    path.write_bytes(b"")
    assert released(folder, parts) == "abc-2"
    assert path.read_bytes() == b""
    load_bundle(folder / "bundle-abc-2")


def test_a_refused_one_is_kept_apart_to_look_at(parts, tmp_path):
    folder = tmp_path / "bundles"
    failed = Verdict(name="size", value=2.0, bound=1.0, passed=False)
    for name in ("abc", "def"):
        assert released(folder, parts, name=name, judge=lambda _directory: [failed]) == name
    assert [path.name for path in folder.rglob("bundle-*")] == ["bundle-def"]
    assert load_bundle(folder / "refused/bundle-def").manifest.verdicts == [failed]
