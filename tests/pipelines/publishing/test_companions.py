"""What lies beside a bundle goes with it to other machines; with a key, only what was signed."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from pipelines.engine.errors import RefusedError
from pipelines.publishing.decisions import decision_on, read_decisions
from pipelines.publishing.from_registry import fetch_bundle, follow_registry
from pipelines.publishing.promotion import promote, record_champion, served_version
from pipelines.semantic_ids.store import SemanticIdStore
from pipelines.tracking.companions import index_of, is_companion
from pipelines.tracking.outbox import Outbox
from pipelines.tracking.tracking import sync_outbox
from recsys.layers.lora.linear import LoraAdapter, LoraConfig
from recsys.models.adapted.model import adapted_layers, twin_of
from serving.bundle.adapters import models_of, publish_adapter, write_adapter
from serving.bundle.load import load_bundle
from serving.bundle.published import served_adapters
from tests.pipelines.tracking.mlflow_server import client
from tests.pipelines.tracking.registries import Shop, bytes_of
from tests.serving.writable import writable

KEY = "0123456789abcdef-operators"


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "bundles"


def serve(shop: Shop, version: str) -> None:
    """Promote here, and send it."""
    promote(shop.bundles, version, config=shop.config, outbox=shop.outbox, force=True)
    assert sync_outbox(shop.outbox, shop.config).problem is None


def fetch(shop: Shop, bundles: Path, name: str = "champion") -> bool:
    outbox = Outbox(bundles.parent / "tracking" / "outbox")
    return fetch_bundle(name, bundles, config=shop.config, outbox=outbox)[1]


def follow(shop: Shop, bundles: Path) -> str:
    outbox = Outbox(bundles.parent / "tracking" / "outbox")
    return follow_registry(bundles, config=shop.config, outbox=outbox).version


def adapt(bundles: Path, seed: int) -> Path:
    """Serve an adapter for a domain."""
    model = twin_of(models_of(load_bundle(bundles / "current"))["two_tower"])
    torch.manual_seed(seed)
    layers = adapted_layers(model)
    adapter = LoraAdapter(model, LoraConfig(targets=layers, rank=2, max_share=1.0))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_()
    made = write_adapter(bundles, adapter, domain="a & b", base="two_tower", base_version="v1")
    publish_adapter(made)
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("_key")
def test_a_signed_decision_comes_with_its_bundle_and_with_a_delta(shop: Shop, elsewhere: Path):
    serve(shop, "v1")
    assert fetch(shop, elsewhere)
    found = decision_on(elsewhere, "v1", KEY.encode())
    assert found is not None
    assert (found.state, found.decision.outcome) == ("signed", "promoted")
    # They are no part of this machine's own chain.
    assert read_decisions(elsewhere, KEY.encode()) == ([], [])
    serve(shop, "v2+1")
    assert follow(shop, elsewhere) == "v2+1"


@pytest.mark.slow
def test_what_nobody_signed_is_not_served_where_a_key_is_set(
    shop: Shop, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    serve(shop, "v1")
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY)
    with pytest.raises(ValueError, match=r"companions.json of bundle v1 is not signed"):
        fetch(shop, elsewhere)
    assert not (elsewhere / "current").exists()
    assert not (elsewhere / "decisions").exists()
    # Nor is what has no index at all, as of an earlier version of the platform.
    store, model = client(shop.uri), shop.config.model
    for one in store.search_model_versions(f"name = '{model}'"):
        store.delete_model_version_tag(model, one.version, "companions")
    with pytest.raises(ValueError, match="came without a signed index"):
        fetch(shop, elsewhere)
    # The operators sign it by a promotion where it was made.
    serve(shop, "v1")
    assert fetch(shop, elsewhere)


@pytest.mark.slow
@pytest.mark.usefixtures("_key")
def test_an_index_that_is_not_the_operators_is_refused(
    shop: Shop, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whoever can write the registry and its files, and has no key, gets nothing served."""
    serve(shop, "v1")
    store, model = client(shop.uri), shop.config.model
    found = store.get_model_version_by_alias(model, "champion")
    run, _ = found.tags["companions"].split()
    artifacts = Path(store.get_run(run).info.artifact_uri.removeprefix("file://"))
    path = artifacts / "companions-v1" / "companions.json"
    index = json.loads(path.read_text())
    monkeypatch.setenv("RECSYS_SIGNING_KEY", "another-key-of-somebody")
    forged = json.dumps(index_of("v1", index["digest"], {}))
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY)
    for text, words in (
        (json.dumps(index), "companions.json of bundle v1 is altered"),
        (forged, "was signed with key"),
        (json.dumps({**index, "files": {}}), "was altered after it was signed"),
    ):
        path.write_text(text)
        if "signed" in words:
            digest = hashlib.sha256(text.encode()).hexdigest()
            store.set_model_version_tag(model, found.version, "companions", f"{run} {digest}")
        with pytest.raises(ValueError, match=words):
            fetch(shop, elsewhere)
    assert served_version(elsewhere) is None


@pytest.mark.slow
@pytest.mark.usefixtures("_key")
def test_a_refused_bundle_is_not_served_though_its_index_is_signed(shop: Shop, elsewhere: Path):
    record_champion(shop.outbox, shop.config.model, shop.bundles, "v1", "promote")
    (shop.bundles / "semantic_ids").mkdir()
    (shop.bundles / "semantic_ids" / "item_ids.json").write_text('["a"]\n')
    assert sync_outbox(shop.outbox, shop.config).problem is None
    with pytest.raises(RefusedError, match="there is no signed decision on it"):
        fetch(shop, elsewhere)
    assert served_version(elsewhere) is None


@pytest.mark.slow
def test_adapters_and_semantic_ids_come_along_and_go_on(shop: Shop, elsewhere: Path):
    serve(shop, "v1")
    own = load_bundle(shop.bundles / "bundle-v1").semantic_ids
    assert own is not None
    ids = [f"item-{row}" for row in range(1, own.ids.codes.shape[0])]
    SemanticIdStore(shop.bundles / "semantic_ids").publish(own.ids, own.quantizer, ids, {})
    first = adapt(shop.bundles, 1)
    serve(shop, "v1")

    assert fetch(shop, elsewhere)
    (served,) = served_adapters(elsewhere).values()
    assert bytes_of(served) == bytes_of(first)
    there, here = (SemanticIdStore(one / "semantic_ids") for one in (shop.bundles, elsewhere))
    assert here.current() == there.current() == own.ids.version
    assert list(here.item_ids) == ids

    second = adapt(shop.bundles, 2)
    serve(shop, "v2")
    assert follow(shop, elsewhere) == "v2"
    assert served_adapters(elsewhere)[second.parent.name].name == second.name
    assert (elsewhere / "adapters" / second.parent.name / first.name).is_dir()


@pytest.mark.slow
def test_a_machine_that_numbered_its_items_otherwise_keeps_its_numbers(shop: Shop, elsewhere: Path):
    (shop.bundles / "semantic_ids").mkdir()
    (shop.bundles / "semantic_ids" / "item_ids.json").write_text('["a", "b"]\n')
    serve(shop, "v1")
    own = elsewhere / "semantic_ids"
    own.mkdir(parents=True)
    for text, left in (('["b"]\n', ["b"]), ('["a"]\n', ["a", "b"])):
        (own / "item_ids.json").write_text(text)
        fetch(shop, elsewhere)
        assert SemanticIdStore(own).item_ids == left


@pytest.mark.slow
def test_an_altered_companion_is_refused(shop: Shop, elsewhere: Path):
    serve(shop, "v1")
    (path,) = (shop.stored("v1").parent / "companions-v1" / "decisions").glob("*.json")
    writable(path.parent)
    path.write_text(path.read_text() + " ")
    with pytest.raises(ValueError, match="is altered in the store"):
        fetch(shop, elsewhere)


@pytest.mark.parametrize(
    "name",
    [
        "decisions/../../x.json",
        "/etc/passwd",
        "adapters/../current",
        "adapters/domain-a/adapter-0123456789ab/x.pkl",
        "semantic_ids/versions/" + "0" * 64 + "/../../current.json",
        "bundle-v1/manifest.json",
    ],
)
def test_paths_that_leave_their_folder_are_no_companions(name: str):
    assert not is_companion(name)
