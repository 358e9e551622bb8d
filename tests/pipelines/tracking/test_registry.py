"""Bundles in the registry: copied to a folder, pointed at, fetched; SQLite, no server."""

import hashlib
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.publishing.from_registry import fetch
from pipelines.tracking.outbox import SyncResult, sync_outbox
from pipelines.tracking.store import look_up
from serving.bundle.copies import UnreachableError
from tests.pipelines.tracking.mlflow_server import client
from tests.pipelines.tracking.registries import Shop, bytes_of
from tests.serving.writable import writable


def visible(bundles: Path) -> list[str]:
    return sorted(path.name for path in bundles.glob("[!.]*"))


def register_as_it_is(shop: Shop, folder: Path, version: str) -> None:
    """Register a folder by MLflow's own client, as somebody with access to it can."""
    store, model = client(shop.uri), shop.config.model
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    tags = {"bundle": version, "bundle_digest": digest, "bundles": str(folder.parent)}
    made = store.create_model_version(model, f"bundle://{folder}", tags=tags)
    store.set_registered_model_alias(model, "champion", made.version)


class Payload:
    """Writes a marker where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (os.system, (f"touch {self.marker}",))


@pytest.mark.slow
def test_a_pickle_beside_a_copy_and_paths_out_of_it_are_never_read(shop: Shop, tmp_path: Path):
    shop.register("v1")
    writable(stored := shop.stored("v1"))
    marker = tmp_path / "executed"
    (stored / "popularity" / "model.pkl").write_bytes(pickle.dumps(Payload(marker)))
    fetch(shop.named(), tmp_path / "elsewhere")
    assert bytes_of(tmp_path / "elsewhere" / "bundle-v1") == bytes_of(shop.bundles / "bundle-v1")

    manifest = json.loads((stored / "manifest.json").read_text())
    entry = {"sha256": "0" * 64, "size": 3}
    for name in ("popularity/model.pkl", "MLmodel", "../escaped.json", "/etc/passwd"):
        manifest["files"] = {name: entry}
        (stored / "manifest.json").write_text(json.dumps(manifest))
        register_as_it_is(shop, stored, "v1")
        with pytest.raises(ValueError, match=r"[Dd]o not use this bundle"):
            fetch(shop.named(), tmp_path / "third")
    assert visible(tmp_path / "third") == []
    assert not marker.exists()


def test_another_format_and_a_stranger_s_model_are_refused(shop: Shop, tmp_path: Path):
    shop.register("v1")
    writable(stored := shop.stored("v1"))
    manifest = json.loads((stored / "manifest.json").read_text())
    (stored / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99}))
    register_as_it_is(shop, stored, "v1")
    with pytest.raises(ValueError, match=r"bundle-v1 is a bundle of schema 99"):
        fetch(shop.named(), tmp_path / "elsewhere")

    store = client(shop.uri)
    version = store.create_model_version(shop.config.model, stored.as_uri())
    store.set_registered_model_alias(shop.config.model, "champion", version.version)
    with pytest.raises(ValueError, match="Nothing of it is read"):
        shop.named()
    with pytest.raises(ValueError, match="has no alias 'best'"):
        look_up(shop.uri, shop.config, "best")
    assert visible(tmp_path / "elsewhere") == []


def test_without_a_place_of_copies_the_pointer_names_where_it_was_made(shop: Shop, tmp_path: Path):
    shop = replace(shop, config=replace(shop.config, bundles=None))
    shop.register("v2+1")
    assert shop.named().bundles == str(shop.bundles)
    assert fetch(shop.named(), tmp_path / "elsewhere").num_files > 0
    assert visible(tmp_path / "elsewhere") == ["bundle-v2", "bundle-v2+1"]
    assert fetch(shop.named(), tmp_path / "elsewhere").num_files == 0
    shutil.rmtree(shop.bundles)
    with pytest.raises(ValueError, match=r"no bundle-v2\+1/manifest.json at .*tracking\.bundles"):
        fetch(shop.named(), tmp_path / "third")


def test_a_bundle_that_changed_before_it_was_sent_is_set_aside(shop: Shop):
    shop.enter("v2")
    shop.enter("v1")
    victim = writable(shop.bundles / "bundle-v2") / "popularity" / "popularity.safetensors"
    victim.write_bytes(b"0")
    found = sync_outbox(shop.outbox, shop.config)
    assert (found.sent, found.refused) == (1, 1)
    assert "is missing or altered" in next(shop.outbox.path.glob("*.refused")).read_text()


def test_a_place_of_copies_that_cannot_be_opened_lets_the_run_wait(shop: Shop):
    away = replace(shop, config=replace(shop.config, bundles="nowhere://shop/bundles"))
    result = away.register("v1")
    assert (result.sent, result.waiting, result.refused) == (0, 1, 0)
    assert "nowhere://shop/bundles" in str(result.problem)
    assert sync_outbox(shop.outbox, shop.config) == SyncResult(sent=1)
    assert shop.champion() == "v1"


def test_a_store_that_is_not_there_is_unreachable(shop: Shop, tmp_path: Path):
    with pytest.raises(UnreachableError, match=r"no.db does not exist"):
        look_up(f"sqlite:///{tmp_path / 'no.db'}", shop.config, "champion")
    with pytest.raises(UnreachableError, match="no answer"):
        look_up("http://127.0.0.1:9", shop.config, "champion")
