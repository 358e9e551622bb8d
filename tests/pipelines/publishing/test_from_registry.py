"""The alias in MLflow is obeyed, with a key only by signed pointers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipelines.cli.main import app
from pipelines.config.operation import TrackingConfig
from pipelines.engine.decisions import history
from pipelines.publishing import from_registry
from pipelines.publishing.promotion import rollback, served_version
from pipelines.tracking.outbox import POINTER, sync_outbox
from serving.bundle.manifest import publish
from serving.recommend import Recommender
from tests.pipelines.tracking.mlflow_server import NOWHERE, client
from tests.pipelines.tracking.registries import bytes_of, shop_of

KEY = "0123456789abcdef-operators"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "bundles"


@pytest.mark.slow
def test_an_alias_moved_in_mlflow_is_served_and_a_rollback_moves_it_back(shop):
    shop.serve("v1")
    shop.serve("v2")
    assert shop.pull() == ("v2", False, "as the registry says")

    shop.move_alias("v1")
    shutil.rmtree(shop.bundles / "bundle-v1")
    found = shop.pull()
    assert (found.version, found.moved) == ("v1", True)
    assert "files fetched and verified" in found.words
    assert served_version(shop.bundles) == "v1"
    assert history(shop.bundles)[-1].outcome == "taken from the registry"
    assert shop.pull().moved is False

    shop.outbox.enter_change(shop.config, shop.bundles, rollback(shop.bundles))
    assert sync_outbox(shop.outbox, shop.config).problem is None
    assert (served_version(shop.bundles), shop.champion()) == ("v2", "v2")
    assert shop.pull().moved is False


@pytest.mark.slow
def test_what_is_newer_here_stays_until_the_alias_moves(shop, monkeypatch):
    shop.serve("v1")
    shop.promote("v2")
    found = shop.pull()
    assert (found.version, found.moved) == ("v2", False)
    assert "the registry has not got that yet" in found.words
    sync_outbox(shop.outbox, shop.config)
    assert (shop.champion(), shop.pull().words) == ("v2", "as the registry says")

    publish(shop.bundles, "v1")
    found = shop.pull()
    assert (found.version, found.moved) == ("v1", False)
    assert "the alias still names v2" in found.words
    assert f"`recsys release promote {shop.bundles} v1`" in found.words

    shop.serve("v2+1")
    shop.move_alias("v2")
    whole = from_registry.fetch

    def meanwhile(*arguments: object) -> object:
        shop.promote("v1")
        return whole(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(from_registry, "fetch", meanwhile)
        found = shop.pull()
    assert (found.version, found.moved) == ("v1", False)
    assert "while v2 was fetched" in found.words


@pytest.mark.slow
def test_with_a_key_only_a_pointer_that_the_operators_signed_is_served(
    shop, elsewhere, monkeypatch
):
    """A person who can write the registry and its files, and has no key, gets nothing served."""
    shop.serve("v1")
    unsigned = shop.named().pointer
    monkeypatch.setenv("RECSYS_SIGNING_KEY", "another-key-of-somebody")
    shop.serve("v2")
    forged = shop.named().pointer
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY)
    shop.serve("v1")
    other = shop.named().pointer
    shop.serve("v2")
    store, model = client(shop.uri), shop.config.model
    found = store.get_model_version_by_alias(model, "champion")
    own = json.loads(found.tags[POINTER])
    for text, words in (
        ("", "is not signed"),
        (unsigned, "pointer to bundle v2 is not signed"),
        (forged, "was signed with key"),
        (json.dumps({**own, "digest": "0" * 64}), "was altered after it was signed"),
        (other, "is of another bundle"),
    ):
        store.set_model_version_tag(model, found.version, POINTER, text)
        with pytest.raises(ValueError, match=words):
            shop.pull(elsewhere)
        assert served_version(elsewhere) is None
    # The operators sign it by a promotion where it was made.
    shop.serve("v2+1")
    assert shop.pull(elsewhere).version == "v2+1"


def recsys(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_another_machine_follows_the_alias_knowing_the_server_alone(
    made, elsewhere, mlflow_address, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # A busy machine may need longer than the command grants a registry.
    monkeypatch.setitem(TrackingConfig.__init__.__kwdefaults__, "request_seconds", 60)

    def pull(address: str) -> Result:
        return recsys(
            *("registry", "pull", elsewhere, "--registry", address, "--model", "elsewhere")
        )

    assert pull(NOWHERE).exit_code == 2, "nothing is served and no server answers"
    shop = shop_of(tmp_path, made, mlflow_address, "elsewhere-shop")
    shop = replace(shop, config=replace(shop.config, model="elsewhere"))
    assert shop.register("v1").problem is None
    found = pull(mlflow_address)
    assert found.exit_code == 0, found.output
    assert "champion is v1: moved in the registry" in found.output
    assert bytes_of(elsewhere / "bundle-v1") == bytes_of(shop.bundles / "bundle-v1")

    shop.register("v2+1")
    assert "champion is v2+1: moved in the registry" in pull(mlflow_address).output
    assert "champion is v2+1: as the registry says" in pull(mlflow_address).output

    # The registry is gone; what is served goes on.
    gone = pull(NOWHERE)
    assert gone.exit_code == 0
    assert f"champion is v2+1: the registry cannot be reached: no answer from {NOWHERE}" in (
        " ".join(gone.output.split())
    )
    assert Recommender.load(elsewhere / "current").bundle.manifest.version == "v2+1"
