"""The alias in MLflow is obeyed; SQLite and files, no server."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.publishing.from_registry import Followed, fetch_bundle, follow_registry
from pipelines.publishing.promotion import (
    note_champion,
    note_release,
    rollback,
    served_version,
)
from pipelines.tracking.decisions import history, read_challenger
from pipelines.tracking.entries import enter_change
from pipelines.tracking.tracking import open_outbox, sync_outbox
from serving.bundle.copies import UnreachableError
from serving.bundle.manifest import publish, read_manifest
from tests.pipelines.tracking.mlflow_server import client
from tests.pipelines.tracking.registries import Shop, bytes_of, shop_of
from tests.serving.writable import writable


def follow(shop: Shop) -> Followed:
    return follow_registry(shop.bundles, config=shop.config, outbox=shop.outbox)


def make_champion(shop: Shop, version: str) -> None:
    """Promote here, and send it."""
    shop.promote(version)
    assert sync_outbox(shop.outbox, shop.config).problem is None


@pytest.mark.slow
def test_an_alias_moved_in_mlflow_is_served_and_a_rollback_moves_it_back(shop: Shop):
    make_champion(shop, "v1")
    make_champion(shop, "v2")
    assert follow(shop) == Followed(version="v2", moved=False, words="as the registry says")

    shop.move_alias("v1")
    shutil.rmtree(shop.bundles / "bundle-v1")
    found = follow(shop)
    assert (found.version, found.moved) == ("v1", True)
    assert "files fetched and verified" in found.words
    assert served_version(shop.bundles) == "v1"
    assert history(shop.bundles)[-1].action == "registry"
    assert follow(shop).moved is False

    enter_change(shop.outbox, shop.config, shop.bundles, rollback(shop.bundles))
    assert sync_outbox(shop.outbox, shop.config).problem is None
    assert (served_version(shop.bundles), shop.champion()) == ("v2", "v2")
    assert follow(shop).moved is False


def test_a_promotion_that_waits_to_be_sent_is_newer_than_the_alias(shop: Shop):
    make_champion(shop, "v1")
    shop.promote("v2")

    found = follow(shop)

    assert (found.version, found.moved) == ("v2", False)
    assert "v2 was made champion here (promote, " in found.words
    assert "the registry has not got that yet" in found.words
    assert served_version(shop.bundles) == "v2"
    sync_outbox(shop.outbox, shop.config)
    assert (shop.champion(), follow(shop).words) == ("v2", "as the registry says")


@pytest.mark.slow
def test_a_link_moved_by_hand_stays_until_the_alias_moves(shop: Shop):
    note_champion(shop.bundles, "v1", "release")
    make_champion(shop, "v2+1")
    publish(shop.bundles, "v1")
    found = follow(shop)
    assert (found.version, found.moved) == ("v1", False)
    assert "the alias still names v2+1" in found.words
    assert f"`recsys release promote {shop.bundles} v1`" in found.words
    shop.move_alias("v2")
    assert follow(shop).version == "v2"


@pytest.mark.slow
def test_what_the_registry_never_got_stays_where_nothing_was_sent_from_here(
    shop: Shop, tmp_path: Path, made: Path
):
    """As after an upgrade, or where tracking was off for a while."""
    make_champion(shop, "v1")
    other = shop_of(tmp_path, made, shop.uri, "other")
    other = replace(other, config=replace(other.config, model=shop.config.model))
    note_champion(other.bundles, "v2", "release")
    found = follow(other)
    assert (found.version, found.moved) == ("v2", False)
    assert "the registry never got it" in found.words

    # A bundle that the registry knows, on a machine that set no alias: the alias counts.
    make_champion(shop, "v2")
    shop.move_alias("v1")
    assert follow(other).version == "v1"


@pytest.mark.slow
def test_a_tampered_bundle_is_refused_and_the_old_one_goes_on(shop: Shop, tmp_path: Path):
    make_champion(shop, "v1")
    bundles, outbox = tmp_path / "elsewhere" / "bundles", open_outbox(tmp_path / "elsewhere")
    fetched, served = fetch_bundle("champion", bundles, config=shop.config, outbox=outbox)
    assert (fetched.version, served) == ("v1", True)
    whole = bytes_of(bundles / "bundle-v1")

    make_champion(shop, "v2")
    victim = next(writable(shop.stored("v2")).glob("two_tower/*.safetensors"))
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"two_tower/.* is altered"):
            follow_registry(bundles, config=shop.config, outbox=outbox)
        assert served_version(bundles) == "v1"
        assert not (bundles / "bundle-v2").exists()
    assert bytes_of(bundles / "bundle-v1") == whole

    victim.write_bytes(content)
    assert follow_registry(bundles, config=shop.config, outbox=outbox).version == "v2"


@pytest.mark.slow
def test_a_bundle_published_while_another_was_fetched_stays(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    from pipelines.publishing import from_registry

    make_champion(shop, "v1")
    make_champion(shop, "v2")
    shop.move_alias("v1")
    whole = from_registry.fetch

    def meanwhile(*arguments: object) -> object:
        shop.promote("v2+1")
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(from_registry, "fetch", meanwhile)
    found = follow(shop)
    assert (found.version, found.moved) == ("v2+1", False)
    assert served_version(shop.bundles) == "v2+1"


def test_a_registry_that_is_gone_changes_nothing(shop: Shop):
    note_champion(shop.bundles, "v1", "release")
    config = replace(shop.config, uri="http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match=r"no answer .* http://127.0.0.1:9"):
        follow_registry(shop.bundles, config=config, outbox=shop.outbox)
    assert served_version(shop.bundles) == "v1"


@pytest.mark.slow
def test_a_challenger_that_becomes_champion_in_mlflow_is_one_no_more(shop: Shop):
    make_champion(shop, "v1")
    note_release(shop.bundles, "v2", promoted=False)
    run = shop.outbox.new_file("release")
    digest = read_manifest(shop.bundles / "bundle-v2")[1]
    tags = {"bundles": str(shop.bundles)}
    run.register(shop.config.model, version="v2", digest=digest, tags=tags)
    run.alias(shop.config.model, "challenger", "v2", action="release")
    run.end("FINISHED")
    sync_outbox(shop.outbox, shop.config)
    assert (shop.champion(), read_challenger(shop.bundles)) == ("v1", "v2")

    shop.move_alias("v2")
    assert follow(shop).words == "moved in the registry, all files were here"

    assert (served_version(shop.bundles), read_challenger(shop.bundles)) == ("v2", None)
    sync_outbox(shop.outbox, shop.config)
    aliases = client(shop.uri).get_registered_model(shop.config.model).aliases
    assert list(aliases) == ["champion"]
