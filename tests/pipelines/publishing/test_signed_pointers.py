"""With a key, only bundles that the operators registered and decided on are served elsewhere."""

import json
from pathlib import Path

import pytest

from pipelines.engine.errors import RefusedError
from pipelines.publishing.from_registry import fetch_bundle, follow_registry
from pipelines.publishing.promotion import served_version
from pipelines.tracking.decisions import decision_on, read_decisions
from pipelines.tracking.entries import POINTER, registry_entry
from pipelines.tracking.tracking import open_outbox, sync_outbox
from tests.pipelines.tracking.mlflow_server import client
from tests.pipelines.tracking.registries import Shop
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
    shop.promote(version, force=True)
    assert sync_outbox(shop.outbox, shop.config).problem is None


def fetch(shop: Shop, bundles: Path, name: str = "champion") -> bool:
    outbox = open_outbox(bundles.parent)
    return fetch_bundle(name, bundles, config=shop.config, outbox=outbox)[1]


@pytest.mark.slow
@pytest.mark.usefixtures("_key")
def test_a_signed_decision_comes_with_its_bundle_and_with_a_delta(shop: Shop, elsewhere: Path):
    serve(shop, "v1")
    assert fetch(shop, elsewhere)
    found = decision_on(elsewhere, "v1", KEY.encode())
    assert found is not None
    assert (found.state, found.decision.outcome) == ("signed", "taken from the registry")
    own, faults = read_decisions(elsewhere, KEY.encode())
    assert [one.decision.outcome for one in own] == ["fetched", "taken from the registry"]
    assert not faults
    serve(shop, "v2+1")
    outbox = open_outbox(elsewhere.parent)
    assert follow_registry(elsewhere, config=shop.config, outbox=outbox).version == "v2+1"


@pytest.mark.slow
def test_a_bundle_that_was_not_signed_is_not_served_if_a_key_is_set(
    shop: Shop, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    serve(shop, "v1")
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY)
    with pytest.raises(ValueError, match=r"pointer to bundle v1 is not signed"):
        fetch(shop, elsewhere)
    assert not elsewhere.exists()
    # Nor is one without a pointer, as of an earlier version of the platform.
    store, model = client(shop.uri), shop.config.model
    for one in store.search_model_versions(f"name = '{model}'"):
        store.delete_model_version_tag(model, one.version, POINTER)
    with pytest.raises(ValueError, match="is not signed"):
        fetch(shop, elsewhere)
    # The operators sign it by a promotion where it was made.
    serve(shop, "v1")
    assert fetch(shop, elsewhere)


@pytest.mark.slow
@pytest.mark.usefixtures("_key")
def test_a_pointer_that_is_not_the_operators_is_refused(
    shop: Shop, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    """A person who can write the registry and its files, and has no key, gets nothing served."""
    serve(shop, "v1")
    serve(shop, "v2")
    store, model = client(shop.uri), shop.config.model
    found = store.get_model_version_by_alias(model, "champion")
    own = json.loads(found.tags[POINTER])
    monkeypatch.setenv("RECSYS_SIGNING_KEY", "another-key-of-somebody")
    forged = registry_entry(shop.bundles, "v2", own["digest"], [])["tags"][POINTER]
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY)
    other = shop.named("v1").pointer
    for text, words in (
        (forged, "was signed with key"),
        (json.dumps({**own, "decision": None}), "was altered after it was signed"),
        (other, "is of another bundle"),
    ):
        store.set_model_version_tag(model, found.version, POINTER, text)
        with pytest.raises(ValueError, match=words):
            fetch(shop, elsewhere)
    assert served_version(elsewhere) is None


@pytest.mark.slow
@pytest.mark.usefixtures("_key")
def test_a_bundle_without_a_decision_is_not_served_though_its_pointer_is_signed(
    shop: Shop, elsewhere: Path
):
    shop.enter("v1")
    assert sync_outbox(shop.outbox, shop.config).problem is None
    with pytest.raises(RefusedError, match="there is no signed decision on it"):
        fetch(shop, elsewhere)
    assert served_version(elsewhere) is None


@pytest.mark.slow
def test_an_altered_decision_is_refused(shop: Shop, elsewhere: Path):
    serve(shop, "v1")
    (path,) = (shop.stored("v1").parent / "decisions").glob("*.json")
    writable(path.parent)
    path.write_text(path.read_text() + " ")
    with pytest.raises(ValueError, match="is altered; copy it again"):
        fetch(shop, elsewhere)
