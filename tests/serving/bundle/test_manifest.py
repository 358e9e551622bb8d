import json
import os
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.bundle.load import load_bundle
from serving.bundle.manifest import MANIFEST, publish, read_manifest, verify_files
from tests.serving.synthetic_bundle import write_synthetic_bundle

BLOCK = 4096
FILES = (
    *("histories/item_rows.npy", "index/items.faiss", "index/items.faiss.json"),
    *("semantic_ids/semantic_ids.safetensors", "two_tower/config.json"),
)


class Payload:
    """Writes a marker when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def test_every_file_of_a_bundle_is_listed_with_its_digest(released):
    directory = released / "bundle-v1"
    manifest, _ = read_manifest(directory)
    verify_files(directory, manifest)
    present = {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}
    assert present == {*manifest.files, MANIFEST}
    assert manifest.dimensions.num_item_rows == 41
    assert manifest.profile == "fast"
    assert manifest.metrics == {"popularity": {"recall@10": 0.5}}


@pytest.mark.parametrize("name", FILES)
def test_truncated_file_is_refused_by_name(bundles_dir, name):
    path = bundles_dir / "bundle-v1" / name
    content = path.read_bytes()
    cuts = {0, 1, len(content) - 1, *range(BLOCK, len(content), BLOCK)}
    for cut in sorted(cuts):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=rf"{path.name} has {cut} bytes.*release the bundle"):
            load_bundle(bundles_dir / "current")
    path.write_bytes(content)
    load_bundle(bundles_dir / "current")


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_flipped_bit_is_refused_by_name(bundles_dir, name, data):
    path = bundles_dir / "bundle-v1" / name
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match=rf"{path.name} is altered: its sha256 is"):
        load_bundle(bundles_dir / "current")
    path.write_bytes(content)


def test_missing_and_unknown_files_are_refused(bundles_dir):
    directory = bundles_dir / "bundle-v1"
    extra = directory / "catalogue" / "notes.npy"
    extra.write_bytes(b"")
    with pytest.raises(ValueError, match=r"notes\.npy is not in the bundle's manifest"):
        load_bundle(directory)
    extra.unlink()
    (directory / "index" / "items.faiss.json").unlink()
    with pytest.raises(ValueError, match=r"items\.faiss\.json is missing"):
        load_bundle(directory)


OUTSIDE = (
    *("../outside.npy", "/etc/passwd", "catalogue/../../outside.npy", "catalogue//x.npy"),
    *("./catalogue/x.npy", "catalogue\\x.npy", "catalogue/x\0.npy", "catalogue/.npy"),
    *("manifest.json", "two_tower/model.pkl", "elsewhere/x.npy", "popularity/deep/x.json"),
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_manifest_cannot_name_a_file_outside_the_schema(bundles_dir, name):
    path = bundles_dir / "bundle-v1" / MANIFEST
    document = json.loads(path.read_text())
    document["files"][name] = {"sha256": "0" * 64, "size": 0}
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"[Dd]o not use this bundle"):
        load_bundle(bundles_dir / "current")


def test_pickles_in_a_forged_bundle_are_never_executed(bundles_dir, tmp_path, reseal):
    directory, marker = bundles_dir / "bundle-v1", tmp_path / "executed"
    bait = pickle.dumps(Payload(marker))

    (directory / "two_tower" / "model.pkl").write_bytes(bait)
    reseal(directory)
    with pytest.raises(ValueError, match=r"names 'two_tower/model\.pkl'"):
        load_bundle(directory)
    (directory / "two_tower" / "model.pkl").unlink()

    for name in (
        "histories/item_rows.npy",
        "popularity/popularity.safetensors",
        "index/items.faiss",
    ):
        path = directory / name
        honest = path.read_bytes()
        path.write_bytes(bait)
        reseal(directory)
        with pytest.raises(ValueError, match=path.name.partition(".")[0]):
            load_bundle(directory)
        path.write_bytes(honest)

    path = directory / "histories" / "item_rows.npy"
    np.save(path, np.array([Payload(marker)], object), allow_pickle=True)
    reseal(directory)
    with pytest.raises(ValueError, match=r"item_rows\.npy of the bundle cannot be used"):
        load_bundle(directory)
    assert not marker.exists()


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=200) | st.text('[]{}"0123456789,:', max_size=50).map(str.encode))
def test_garbage_manifest_is_refused(bundles_dir, content):
    (bundles_dir / "bundle-v1" / MANIFEST).write_bytes(content)
    with pytest.raises(ValueError, match="is not a bundle manifest of schema 3"):
        load_bundle(bundles_dir / "current")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "../v1"),
        ("profile", "slow"),
        ("kind", "model"),
        ("metrics", {"two_tower": {"recall@10": float("nan")}}),
        ("user_features", {"../age": 4}),
        ("surprise", 1),
    ],
)
def test_manifest_of_another_schema_is_refused_by_field(bundles_dir, field, value, reseal):
    reseal(bundles_dir / "bundle-v1", **{field: value})
    with pytest.raises(ValueError, match=f"schema 3 \\({field}"):
        load_bundle(bundles_dir / "current")


@pytest.mark.parametrize("version", [1, 2, 4])
def test_bundle_of_another_version_is_refused_by_its_number(bundles_dir, version, reseal):
    """Before anything else of its manifest is looked at: a version may rename files and fields."""
    directory = bundles_dir / "bundle-v1"
    reseal(directory, schema_version=version, surprise=1)
    with pytest.raises(
        ValueError,
        match=f"bundle-v1 is a bundle of schema {version}; .* reads and writes schema 3. Release",
    ):
        load_bundle(bundles_dir / "current")
    with pytest.raises(ValueError, match=f"bundle of schema {version}"):
        publish(bundles_dir, "v1")


def test_publish_refuses_what_is_not_there_or_damaged(bundles_dir):
    with pytest.raises(ValueError, match="bundle-v2 is not a bundle"):
        publish(bundles_dir, "v2")
    shutil.copytree(bundles_dir / "bundle-v1", bundles_dir / "bundle-v2")
    (bundles_dir / "bundle-v2" / "index" / "items.faiss").write_bytes(b"")
    with pytest.raises(ValueError, match="truncated or altered"):
        publish(bundles_dir, "v2")
    assert (bundles_dir / "current").readlink().name == "bundle-v1"


def test_published_files_are_read_only_and_a_bundle_can_still_be_deleted(bundles_dir):
    """The fixture's files are writable, as those of a bundle of an earlier version are."""
    directory = bundles_dir / "bundle-v1"
    modes = {path: path.stat().st_mode for path in directory.rglob("*") if path.is_file()}
    assert all(mode & 0o200 for mode in modes.values())
    publish(bundles_dir, "v1")
    for path, mode in modes.items():
        assert path.stat().st_mode == mode & ~0o222
    if os.geteuid():
        # Root may write whatever the mode says.
        with pytest.raises(PermissionError):
            (directory / MANIFEST).open("r+b")
    written = write_synthetic_bundle(bundles_dir, "v2")
    assert not any(path.stat().st_mode & 0o222 for path in written.rglob("*") if path.is_file())
    for folder in (written, directory):
        shutil.rmtree(folder)
    assert not list(bundles_dir.glob("bundle-*"))
