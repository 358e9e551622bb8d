"""IDs of appended items: with a store beside the bundle, without one, and with another's."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.publishing import append_items
from pipelines.publishing.append_items import append
from pipelines.semantic_ids.append import (
    give_ids,
    load_bundle_quantizer,
    matching_store,
    published_ids,
)
from pipelines.semantic_ids.store import SemanticIdStore
from recsys.semantic_ids import lifecycle
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.semantic_ids import ItemSemanticIds
from tests.pipelines.publishing.test_append_items import release

ORIGIN = {"encoder": "made up", "dim": 256, "settings": {}}
ITEM_IDS = [f"item-{row}" for row in range(40, 0, -1)]
"""By id row: the made-up bundle counts them from its last item."""


@pytest.fixture
def bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published bundle that says how its content was made."""
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path / "cache"))
    return release(tmp_path, "v1").parent


@pytest.fixture
def store(bundles: Path) -> SemanticIdStore:
    """The store at the version of the bundle."""
    _, own = current(bundles)
    store = SemanticIdStore(bundles / "semantic_ids")
    store.publish(own.ids, load_bundle_quantizer(own), ITEM_IDS, ORIGIN)
    return store


def current(bundles: Path) -> tuple[Bundle, ItemSemanticIds]:
    bundle = load_bundle(bundles / "current")
    assert bundle.semantic_ids is not None
    return bundle, bundle.semantic_ids


def write_items(folder: Path, *lines: str) -> Path:
    path = folder / "new.csv"
    path.write_text("\n".join(["item_id,title", *lines]) + "\n")
    return path


def vectors(*like: int, bundles: Path) -> np.ndarray:
    return load_bundle(bundles / "current").items.content[list(like)].numpy()


def test_appended_items_have_the_ids_of_the_library_and_the_store_keeps_them(
    bundles, store, tmp_path
):
    _, before = current(bundles)
    directory, *_ = append(
        write_items(tmp_path, "a,red shoe", "b,", "c,blue shoe"), bundles / "current"
    )
    own = load_bundle(directory).semantic_ids
    assert own is not None
    texts = own.texts([41, 42, 43])
    assert texts[1] is None, "an item without text has no content to make an ID of"
    expected = lifecycle.append(
        before.ids,
        load_bundle_quantizer(before),
        load_bundle(directory).items.content[[41, 43]],  # type: ignore[union-attr]
    )
    assert own.version == expected.version
    assert texts == [expected.text(41), None, expected.text(42)]
    assert torch.equal(own.codes[:41], before.codes)

    kept = SemanticIdStore(bundles / "semantic_ids")
    assert kept.current() == own.version
    assert list(kept.item_ids) == [*ITEM_IDS, "a", "c"]
    assert kept.previous().origin == ORIGIN  # type: ignore[union-attr]

    # The next delta follows this one.
    again, *_ = append(write_items(tmp_path, "d,green hat"), bundles / "current")
    twice = load_bundle(again).semantic_ids
    assert twice is not None
    assert twice.ids.parent == own.version
    assert twice.version == SemanticIdStore(bundles / "semantic_ids").current()


def test_store_that_is_ahead_reserves_its_ids_and_gives_known_items_theirs(bundles, store):
    """Items x and y were published by a challenger that is not served."""
    bundle, own = current(bundles)
    content = vectors(3, 4, bundles=bundles)
    ahead = lifecycle.append(own.ids, load_bundle_quantizer(own), torch.from_numpy(content))
    store.publish(ahead, load_bundle_quantizer(own), [*ITEM_IDS, "x", "y"], ORIGIN)

    # New z has y's content: it must not take y's ID. x comes to the bundle now and has its own.
    new = published_ids(bundle, bundles, ["z", "x"], content[[1, 0]])
    assert new.id_rows.tolist() == [43, 41]
    assert new.codes[1].tolist() == ahead.codes[41].tolist()
    assert new.codes[0].tolist() not in ahead.codes.tolist()
    assert own.extended(new).texts([1])[0] == own.text(1)
    published = SemanticIdStore(bundles / "semantic_ids").previous()
    assert published is not None
    assert published.ids.parent == ahead.version
    assert torch.equal(published.ids.codes[:43], ahead.codes)
    assert published.ids.codes[43].tolist() == new.codes[0].tolist()


def test_a_killed_append_gives_the_same_ids_again(bundles, store):
    """Killed after the store, before the delta."""
    bundle = load_bundle(bundles / "current")
    content = vectors(3, 4, bundles=bundles)
    first = published_ids(bundle, bundles, ["a", "b"], content)
    version = SemanticIdStore(bundles / "semantic_ids").current()
    second = published_ids(bundle, bundles, ["a", "b"], content)
    assert torch.equal(first.codes, second.codes)
    assert first.id_rows.tolist() == second.id_rows.tolist()
    assert SemanticIdStore(bundles / "semantic_ids").current() == version
    assert bundle.semantic_ids is not None
    assert bundle.semantic_ids.extended(second).version == version


def test_store_of_another_bundle_is_left_alone(bundles, capsys):
    bundle, own = current(bundles)
    store = SemanticIdStore(bundles / "semantic_ids")
    store.publish(own.ids, load_bundle_quantizer(own), ITEM_IDS[::-1], ORIGIN)
    version = store.current()
    assert matching_store(bundles, bundle) is None
    assert "the next run assigns others" in " ".join(capsys.readouterr().err.split())
    new = published_ids(bundle, bundles, ["a"], vectors(3, bundles=bundles))
    assert new.id_rows.tolist() == [41]
    assert SemanticIdStore(bundles / "semantic_ids").current() == version


def test_bundle_published_meanwhile_is_not_replaced(bundles, tmp_path, monkeypatch):
    encode = append_items.encode_items

    def slow(*arguments: object) -> object:
        release(tmp_path, "v2")
        return encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(append_items, "encode_items", slow)
    with pytest.raises(ValueError, match="moved from bundle-v1 to bundle-v2; nothing was written"):
        append(write_items(tmp_path, "a,red shoe"), bundles / "current")
    assert not (bundles / "bundle-v1+1").exists()
    assert (bundles / "current").readlink().name == "bundle-v2"


def test_content_may_have_columns_behind_those_that_the_quantiser_reads(bundles):
    _, own = current(bundles)
    alone = vectors(3, 9, bundles=bundles)
    words = np.ones((2, 7), np.float32)
    nothing_but_words = np.concatenate([alone * 0, words], axis=1)
    expected = give_ids(own, ["x", "y"], alone, None)
    found = give_ids(own, ["x", "y"], np.concatenate([alone, words], axis=1), None)
    assert torch.equal(found.codes, expected.codes)
    assert not give_ids(own, ["x", "y"], nothing_but_words, None).id_rows.any()
