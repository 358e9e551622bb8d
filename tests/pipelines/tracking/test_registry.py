"""Bundles uploaded into MLflow's store and fetched from it: SQLite and files, no server."""

import hashlib
import json
import os
import pickle
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipelines.publishing.promotion import record_champion
from pipelines.tracking.registry import RegistryUnreachableError, fetch, look_up
from pipelines.tracking.store.connection import stored_name
from pipelines.tracking.tracking import sync_outbox
from serving.bundle.load import load_bundle
from serving.bundle.manifest import read_manifest
from tests.pipelines.tracking.mlflow_server import client
from tests.pipelines.tracking.registries import Shop, bytes_of, child
from tests.serving.synthetic_bundle import write_synthetic_bundle
from tests.serving.writable import writable


def visible(bundles: Path) -> list[str]:
    return sorted(path.name for path in bundles.glob("[!.]*"))


def test_a_bundle_s_files_are_the_run_s_artefacts_and_are_sent_once(shop: Shop):
    assert shop.register("v1").problem is None
    stored = shop.stored("v1")
    assert bytes_of(stored) == bytes_of(shop.bundles / "bundle-v1")
    store = client(shop.uri)
    found = store.get_model_version_by_alias(shop.config.model, "champion")
    assert found.source.startswith(store.get_run(found.run_id).info.artifact_uri)
    assert found.tags["bundle_digest"] == read_manifest(shop.bundles / "bundle-v1")[1]

    before = {path: path.stat().st_ino for path in stored.rglob("*")}
    assert shop.register("v1").problem is None
    assert {path: path.stat().st_ino for path in stored.rglob("*")} == before
    assert len(store.search_model_versions(f"name = '{shop.config.model}'")) == 1


@pytest.mark.slow
def test_another_machine_fetches_by_version_and_by_alias(shop: Shop, tmp_path: Path):
    shop.register("v1")
    shop.register("v2+1")
    empty = tmp_path / "elsewhere"

    fetched = fetch(shop.uri, shop.config, "champion", empty)

    assert fetched.bundle.version == "v2+1"
    assert visible(empty) == ["bundle-v2", "bundle-v2+1"]
    for name in visible(empty):
        assert bytes_of(empty / name) == bytes_of(shop.bundles / name)
    assert load_bundle(empty / "bundle-v2+1").catalogue.row_of("fresh") is not None
    assert fetch(shop.uri, shop.config, "v1", empty).bundle.version == "v1"
    assert fetch(shop.uri, shop.config, "v1", empty).num_files == 0
    with pytest.raises(ValueError, match=r"'v9' is neither .* there are: v2\+1, v2, v1"):
        fetch(shop.uri, shop.config, "v9", empty)


def test_an_altered_file_or_manifest_is_refused(shop: Shop, tmp_path: Path):
    shop.register("v1")
    writable(stored := shop.stored("v1"))
    victim, manifest = stored / "popularity" / "popularity.safetensors", stored / "manifest.json"
    whole, listed = victim.read_bytes(), manifest.read_bytes()

    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"popularity/popularity.safetensors .* has sha256"):
        fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere")
    victim.write_bytes(whole + b"0")
    with pytest.raises(ValueError, match=f"has {len(whole) + 1} bytes"):
        fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere")
    victim.unlink()
    with pytest.raises(ValueError, match=r"popularity/popularity.safetensors is missing"):
        fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere")
    assert visible(tmp_path / "elsewhere") == []
    victim.write_bytes(whole)
    shutil.rmtree(tmp_path / "elsewhere")

    # It agrees with every file, but is not the registered one.
    manifest.write_bytes(listed + b"\n")
    with pytest.raises(ValueError, match=r"is altered: the manifest .* the registry says"):
        fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere")
    manifest.write_bytes(listed)
    assert fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere").num_files > 0


class Payload:
    """Writes a marker where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (os.system, (f"touch {self.marker}",))


def register_as_it_is(shop: Shop, folder: Path, version: str) -> None:
    """Register a folder by MLflow's own client, as somebody with access to it can."""
    store, model = client(shop.uri), shop.config.model
    found = store.get_model_version_by_alias(model, "champion")
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    tags = {"bundle": version, "bundle_digest": digest}
    store.create_model_version(model, folder.as_uri(), found.run_id, tags=tags)


@pytest.mark.slow
def test_a_pickle_and_an_mlmodel_in_the_store_are_never_read(shop: Shop, tmp_path: Path):
    shop.register("v1")
    writable(stored := shop.stored("v1"))
    marker = tmp_path / "executed"
    (stored / "MLmodel").write_text(
        "flavors:\n  python_function:\n    loader_module: mlflow.sklearn\n    data: model.pkl\n"
    )
    (stored / "model.pkl").write_bytes(pickle.dumps(Payload(marker)))
    (stored / "popularity" / "model.pkl").write_bytes(pickle.dumps(Payload(marker)))
    fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere")
    assert bytes_of(tmp_path / "elsewhere" / "bundle-v1") == bytes_of(shop.bundles / "bundle-v1")

    manifest = json.loads((stored / "manifest.json").read_text())
    entry = {"sha256": "0" * 64, "size": 3}
    for name in ("popularity/model.pkl", "MLmodel", "../escaped.json", "/etc/passwd"):
        manifest["files"] = {name: entry}
        (stored / "manifest.json").write_text(json.dumps(manifest))
        register_as_it_is(shop, stored, "v1")
        with pytest.raises(ValueError, match=r"[Dd]o not use this bundle"):
            fetch(shop.uri, shop.config, "v1", tmp_path / "third")
    assert visible(tmp_path / "third") == []
    assert not marker.exists()


def test_another_format_and_a_stranger_s_model_are_refused(shop: Shop, tmp_path: Path):
    shop.register("v1")
    writable(stored := shop.stored("v1"))
    manifest = json.loads((stored / "manifest.json").read_text())
    (stored / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99}))
    register_as_it_is(shop, stored, "v1")
    with pytest.raises(ValueError, match=r"the registry's bundle v1 .* is a bundle of schema 99"):
        fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere")

    store = client(shop.uri)
    version = store.create_model_version(shop.config.model, stored.as_uri())
    store.set_registered_model_alias(shop.config.model, "champion", version.version)
    with pytest.raises(ValueError, match="Nothing of it is read"):
        fetch(shop.uri, shop.config, "champion", tmp_path / "elsewhere")
    assert visible(tmp_path / "elsewhere") == []


@pytest.mark.slow
def test_a_bundle_that_was_registered_without_its_files_says_where_they_are(
    shop: Shop, tmp_path: Path
):
    off = replace(shop.config, upload_bundles=False)
    record_champion(shop.outbox, off.model, shop.bundles, "v1", "promote")
    assert sync_outbox(shop.outbox, off).problem is None
    assert shop.stored("v1") == shop.bundles / "bundle-v1"
    # On this machine they can be read all the same.
    assert fetch(shop.uri, off, "v1", tmp_path / "elsewhere").num_files > 0
    store = client(shop.uri)
    tags = {"bundle": "v3", "bundle_digest": "1" * 64}
    store.create_model_version(off.model, "bundle:///gone/bundle-v3", tags=tags)
    with pytest.raises(ValueError, match=r"without its files .* bundle:///gone/bundle-v3 on"):
        fetch(shop.uri, off, "v3", tmp_path / "elsewhere")
    # Registered with its files as soon as it is promoted with uploads.
    shop.register("v1")
    assert client(shop.uri).get_model_version_by_alias(off.model, "champion").version == 3


def test_a_bundle_that_changed_or_went_before_it_was_sent_is_kept_aside(shop: Shop):
    record_champion(shop.outbox, shop.config.model, shop.bundles, "v1", "promote")
    record_champion(shop.outbox, shop.config.model, shop.bundles, "v2", "promote")
    shutil.rmtree(shop.bundles / "bundle-v1")
    victim = writable(shop.bundles / "bundle-v2") / "popularity" / "popularity.safetensors"
    victim.write_bytes(b"0")
    result = sync_outbox(shop.outbox, shop.config)
    assert (result.waiting, result.refused, result.problem) == (0, 4, None)
    refused = (shop.outbox.path / "refused.jsonl").read_text()
    assert "is missing or altered" in refused
    assert "bundle v2 is not in the registry" in refused


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def test_an_upload_that_was_killed_goes_on_and_sends_no_file_twice(shop: Shop, tmp_path: Path):
    record_champion(shop.outbox, shop.config.model, shop.bundles, "v1", "promote")
    arguments = (str(shop.outbox.path), json.dumps(asdict(shop.config)))
    assert child("uploads", 5, KILL, *arguments).returncode == -signal.SIGKILL
    with pytest.raises(ValueError, match="there are: none"):
        fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere")
    (run,) = client(shop.uri).search_runs(
        [client(shop.uri).get_experiment_by_name(shop.config.experiment).experiment_id]
    )
    stored = Path(run.info.artifact_uri.removeprefix("file://")) / "bundle-v1"
    begun = {path: path.stat().st_ino for path in stored.rglob("*") if path.is_file()}
    assert len(begun) == 5
    assert not (stored / "manifest.json").exists()

    assert sync_outbox(shop.outbox, shop.config).problem is None

    assert {path: path.stat().st_ino for path in begun} == begun
    assert bytes_of(shop.stored("v1")) == bytes_of(shop.bundles / "bundle-v1")


def test_a_fetch_that_was_killed_shows_nothing_and_goes_on(shop: Shop, tmp_path: Path):
    shop.register("v1")
    empty = tmp_path / "elsewhere"
    request = {"what": "fetch", "name": "v1", "bundles": str(empty), "uri": shop.uri}
    words = json.dumps({**request, "config": asdict(shop.config)})
    assert child("downloads", 5, KILL, words).returncode == -signal.SIGKILL
    assert visible(empty) == []
    (partial,) = empty.glob(".partial-fetched-*")
    kept = [path for path in partial.rglob("*") if path.is_file() and path.parent != partial]
    assert len(kept) == 5
    # Bytes that changed on this disk meanwhile are fetched anew.
    kept[0].write_bytes(b"0")

    num_files = len(read_manifest(shop.bundles / "bundle-v1")[0].files)
    assert fetch(shop.uri, shop.config, "v1", empty).num_files == num_files - 4
    assert bytes_of(empty / "bundle-v1") == bytes_of(shop.bundles / "bundle-v1")
    assert list(empty.glob(".partial-fetched-*")) == []


@pytest.mark.slow
def test_files_of_superseded_bundles_go_and_come_back_with_a_promotion(shop: Shop, tmp_path: Path):
    for version in ("v3", "v4"):
        write_synthetic_bundle(shop.bundles, version)
    shop = replace(shop, config=replace(shop.config, keep_bundles=1))
    store = client(shop.uri)

    def with_files() -> list[str]:
        return [one for one in ("v1", "v2", "v2+1", "v3", "v4") if shop.has_files(one)]

    shop.register("v1")
    store.set_registered_model_alias(shop.config.model, "challenger", "1")
    shop.register("v2+1")
    assert with_files() == ["v1", "v2", "v2+1"]
    shop.register("v3")
    assert with_files() == ["v1", "v2", "v2+1", "v3"], "v2 is what the newest delta stands on"
    store.delete_registered_model_alias(shop.config.model, "challenger")
    shop.register("v4")
    assert with_files() == ["v2", "v2+1", "v4"]
    with pytest.raises(ValueError, match="its files were removed"):
        fetch(shop.uri, shop.config, "v1", tmp_path / "elsewhere")

    shop.register("v1")
    assert with_files() == ["v1", "v2", "v2+1"]
    assert fetch(shop.uri, shop.config, "champion", tmp_path / "elsewhere").bundle.version == "v1"


def test_time_that_runs_out_keeps_what_was_sent(shop: Shop):
    record_champion(shop.outbox, shop.config.model, shop.bundles, "v1", "promote")
    end = "raise part.OutOfTime('5 of 20 files of bundle-v1 are uploaded')"
    arguments = (str(shop.outbox.path), json.dumps(asdict(shop.config)))
    done = child("uploads", 5, end, *arguments)
    reply = json.loads(done.stdout.splitlines()[-1])
    assert reply["problem"].startswith(
        "not done in 120 s (5 of 20 files of bundle-v1 are uploaded); `recsys sync --seconds"
    )
    assert reply["waiting"] == 4


def test_two_bundles_of_one_name_are_not_mixed(shop: Shop, tmp_path: Path):
    shop.register("v1")
    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.copytree(shop.bundles / "bundle-v2", other / "bundle-v1")
    with pytest.raises(ValueError, match="two bundles of one name"):
        fetch(shop.uri, shop.config, "v1", other)


def test_a_store_that_is_not_there_is_unreachable(shop: Shop, tmp_path: Path):
    with pytest.raises(RegistryUnreachableError, match=r"no.db does not exist"):
        look_up(f"sqlite:///{tmp_path / 'no.db'}", shop.config, "champion", None)
    with pytest.raises(RegistryUnreachableError, match="no answer"):
        fetch("http://127.0.0.1:9", shop.config, "champion", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("two_tower/model.safetensors", "two_tower/model.safetensors"),
        ("properties/discount %.values.npy", "properties/d1.npy"),
        ("adapters/domain-a%20b/x.json", "d1.json"),
        ("properties/caf\u00e9?.values.npy", "properties/d1.npy"),
    ],
)
def test_names_that_a_url_would_quote_are_stored_by_digest(name: str, stored: str):
    assert stored_name(name, "d1") == stored
