"""Bundles in the registry: copied to a folder, pointed at, fetched; SQLite, no server."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.publishing.from_registry import fetch
from pipelines.tracking.copies import UnreachableError
from pipelines.tracking.outbox import SyncResult, sync_outbox
from pipelines.tracking.store import look_up
from tests.pipelines.tracking.mlflow_server import client
from tests.serving.writable import writable


def visible(bundles: Path) -> list[str]:
    return sorted(path.name for path in bundles.glob("[!.]*"))


def test_a_stranger_s_model_is_refused(shop, tmp_path):
    shop.register("v1")
    stored = shop.stored("v1")
    store = client(shop.uri)
    version = store.create_model_version(shop.config.model, stored.as_uri())
    store.set_registered_model_alias(shop.config.model, "champion", version.version)
    with pytest.raises(ValueError, match="Nothing of it is read"):
        shop.named()
    with pytest.raises(ValueError, match="has no alias 'best'"):
        look_up(shop.uri, shop.config, "best")
    assert visible(tmp_path / "elsewhere") == []


def test_without_a_place_of_copies_the_pointer_names_where_it_was_made(shop, tmp_path):
    shop = replace(shop, config=replace(shop.config, bundles=None))
    shop.register("v2+1")
    assert shop.named().bundles == str(shop.bundles)
    assert fetch(shop.named(), tmp_path / "elsewhere").num_files > 0
    assert visible(tmp_path / "elsewhere") == ["bundle-v2", "bundle-v2+1"]
    assert fetch(shop.named(), tmp_path / "elsewhere").num_files == 0
    shutil.rmtree(shop.bundles)
    with pytest.raises(ValueError, match=r"no bundle-v2\+1/manifest.json at .*tracking\.bundles"):
        fetch(shop.named(), tmp_path / "third")


def test_a_bundle_that_changed_before_it_was_sent_is_set_aside(shop):
    shop.enter("v2")
    shop.enter("v1")
    victim = writable(shop.bundles / "bundle-v2") / "popularity" / "popularity.safetensors"
    victim.write_bytes(b"0")
    found = sync_outbox(shop.outbox, shop.config)
    assert (found.sent, found.refused) == (1, 1)
    assert "is missing or altered" in next(shop.outbox.path.glob("*.refused")).read_text()


def test_a_place_of_copies_that_cannot_be_opened_lets_the_run_wait(shop):
    away = replace(shop, config=replace(shop.config, bundles="nowhere://shop/bundles"))
    result = away.register("v1")
    assert (result.sent, result.waiting, result.refused) == (0, 1, 0)
    assert "nowhere://shop/bundles" in str(result.problem)
    assert sync_outbox(shop.outbox, shop.config) == SyncResult(sent=1)
    assert shop.champion() == "v1"


def test_a_store_that_is_not_there_is_unreachable(shop, tmp_path):
    with pytest.raises(UnreachableError, match=r"no.db does not exist"):
        look_up(f"sqlite:///{tmp_path / 'no.db'}", shop.config, "champion")
    with pytest.raises(UnreachableError, match="no answer"):
        look_up("http://127.0.0.1:9", shop.config, "champion")
