"""Bundles with a sequence and a generative model, content similarity and learned blends."""

import json
import math
import shutil
from copy import copy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import ItemMask
from recsys.models.generative.model import GenerativeModel
from recsys.models.sequence.model import SequenceModel
from recsys.semantic_ids.codes import NO_CODE, SemanticIds
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle
from serving.bundle.manifest import read_manifest
from serving.bundle.semantic_ids import NewIds
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.recsys.testing.tensors import rounding
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts, write_synthetic_bundle
from tests.serving.writable import writable

pytestmark = pytest.mark.numerics

# Histories of a dozen events through layers of some 16 and 32, then cosines.
CLOSE = rounding(12 + 2 * (16 + 32) + 16)
SIZE = SyntheticSize(history_models=True)
NEW_PARTS = ("content_similarity", "sequence", "generative", "blend_fast", "blend_full")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return synthetic_parts(tmp_path_factory.mktemp("parts"), SIZE)


@pytest.fixture(scope="module")
def made(parts, tmp_path_factory):
    """Bundles folder with ``full-1``; shared, so not to be changed."""
    folder = tmp_path_factory.mktemp("bundles")
    write_bundle(folder, parts, version="full-1")
    return folder


@pytest.fixture
def bundles_dir(made, tmp_path):
    """A copy that a test may damage."""
    return writable(shutil.copytree(made, tmp_path / "bundles"))


def test_parts_come_back_as_they_were_fitted(made, parts):
    bundle = load_bundle(made / "bundle-full-1")
    assert bundle.manifest.profile == "full"
    assert set(NEW_PARTS) < set(bundle.manifest.models)
    items = bundle.items
    queries = JaggedBatch({"history": Jagged.from_lists([[3, 5, 8], [40]])})
    sequence = SequenceModel.load(parts.sequence, items)
    assert torch.equal(bundle.sequence.score(queries), sequence.score(queries))
    codes, version = bundle.semantic_ids.codes, bundle.semantic_ids.version
    generative = GenerativeModel.load(parts.generative, items, codes, semantic_ids=version)
    own = bundle.generative.model.context(queries)
    assert all(
        torch.equal(one, other) for one, other in zip(own, generative.context(queries), strict=True)
    )
    assert bundle.generative.trie.num_items == 40
    rows = bundle.generative.trie.item_rows(bundle.generative.trie.walk(codes[1:]))
    assert rows.tolist() == list(range(1, 41))
    for profile, path in parts.blends.items():
        written = (path / "learned_blend.safetensors").read_bytes()
        copied = made / "bundle-full-1" / f"blend_{profile}" / "learned_blend.safetensors"
        assert copied.read_bytes() == written


def test_content_lies_in_a_bundle_once(made, parts):
    bundle = load_bundle(made / "bundle-full-1")
    path = made / "bundle-full-1/content_similarity/content_similarity.safetensors"
    assert path.stat().st_size < bundle.items.content.nbytes
    queries = JaggedBatch({"history": Jagged.from_lists([[3, 5, 8]])})
    saved = type(bundle.content_similarity).load(parts.content_similarity)
    torch.testing.assert_close(bundle.content_similarity.score(queries), saved.score(queries))


def test_another_user_may_read_every_file_of_a_bundle(made):
    files = [path for path in (made / "bundle-full-1").rglob("*") if path.is_file()]
    assert [path.name for path in files if not path.stat().st_mode & 0o004] == []


def test_bundle_without_them_is_as_before(released):
    """Byte for byte: no new part, and no new field in the manifest."""
    manifest, _ = read_manifest(released / "bundle-v1")
    assert manifest.models == ["popularity", "item_to_item", "two_tower"]
    assert manifest.profile == "fast"
    fields = json.loads((released / "bundle-v1/manifest.json").read_text())
    assert set(fields) == {
        "schema_version",
        "kind",
        "version",
        "parent",
        "profile",
        "dimensions",
        "vocabularies",
        "user_features",
        "context_features",
        "properties",
        "models",
        "metrics",
        "verdicts",
        "config_digest",
        "content",
        "semantic_ids",
        "exclude_history",
        "files",
    }
    bundle = load_bundle(released / "bundle-v1")
    assert bundle.sequence is bundle.generative is bundle.content_similarity is None
    assert bundle.blends == {}


def test_parts_that_do_not_fit_are_refused_and_leave_nothing(parts, tmp_path):
    other = synthetic_parts_of(tmp_path, replace(SIZE, num_items=50))
    narrow = synthetic_parts_of(tmp_path, replace(SIZE, content_dim=3))
    again = synthetic_parts_of(tmp_path, replace(SIZE, seed=1))
    mixtures = {
        "sequence/config.json .* num_item_rows 51, the bundle has 41": {"sequence": other.sequence},
        "sequence/config.json .* content_dim 3, the bundle has 4": {"sequence": narrow.sequence},
        "generative/config.json .* num_item_rows 51": {"generative": other.generative},
        "content_similarity of the bundle .* whitening is of embeddings of width 3": {
            "content_similarity": narrow.content_similarity
        },
        "generates semantic IDs and the bundle has none": {"semantic_ids": None},
        r"blend_fast weighs the sources \['generative'\], profile fast": {
            "blends": {"fast": parts.blends["full"]}
        },
        r"blend_full weighs the sources \['sequence'\]": {"sequence": None},
        r"blend_fast weighs the sources \['content_similarity'\]": {"content_similarity": None},
    }
    for message, change in mixtures.items():
        fixed = {"blends": {"full": parts.blends["full"]}} if "blend_full" in message else {}
        with pytest.raises(ValueError, match=f"(?s){message}"):
            write_bundle(tmp_path / "bundles", replace(parts, **fixed, **change), version="v1")
        assert list((tmp_path / "bundles").iterdir()) == []
    model, ids = version_of_model(again), version_of_ids(parts)
    assert model != ids
    with pytest.raises(ValueError, match=f"{model}.*{ids}"):
        write_bundle(
            tmp_path / "bundles", replace(parts, generative=again.generative), version="v1"
        )


def synthetic_parts_of(tmp_path, size):
    folder = tmp_path / f"parts-{size.num_items}-{size.content_dim}-{size.seed}"
    folder.mkdir()
    return synthetic_parts(folder, size)


def version_of_model(parts):
    return json.loads((parts.generative / "config.json").read_text())["inputs"]["semantic_ids"]


def version_of_ids(parts):
    return SemanticIds.load(parts.semantic_ids).version


@pytest.mark.parametrize("folder", NEW_PARTS)
def test_altered_part_is_refused_by_its_digest(bundles_dir, folder):
    path = next((bundles_dir / "bundle-full-1" / folder).glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{folder}/.*is altered"):
        load_bundle(bundles_dir / "bundle-full-1")


@pytest.mark.parametrize("folder", ["sequence", "generative"])
def test_model_with_nan_is_refused(bundles_dir, reseal, folder):
    from safetensors.torch import load_file, save_file

    path = bundles_dir / "bundle-full-1" / folder / f"{folder}.safetensors"
    state = load_file(path)
    name = next(name for name in state if name.endswith("embedding_bags.item.weight"))
    state[name][3] = torch.nan
    save_file(state, path)
    reseal(bundles_dir / "bundle-full-1")
    with pytest.raises(ValueError, match=f"{folder} of the bundle cannot be used: its item vect"):
        load_bundle(bundles_dir / "bundle-full-1")


# ---- items that a delta appends


@pytest.fixture(scope="module")
def grown(made, tmp_path_factory):
    """Two twins: fresh-1 has the content and categories of item 6 and an ID beside it."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("grown") / "bundles")
    bundle = load_bundle(folder / "bundle-full-1")
    own = bundle.semantic_ids
    taken = {tuple(codes) for codes in own.codes[1:].tolist()}
    first, sizes = int(own.codes[6, 0]), own.ids.level_sizes
    behind = product(*(range(size) for size in sizes[1:]))
    free = next((first, *codes) for codes in behind if (first, *codes) not in taken)
    codes = torch.tensor([free, [NO_CODE] * len(sizes)], dtype=torch.int32)
    content = bundle.items.content[[6, 6]].numpy()
    vectors = bundle.retriever.index.vectors(torch.tensor([6, 6])).numpy()
    write_delta(
        folder,
        "full-1",
        [
            NewItem(item_id="fresh-1", display_text="Fresh", categories=["odd"]),
            NewItem(item_id="fresh-2", display_text="Fresh without an ID", categories=["odd"]),
        ],
        content=content,
        item_vectors=vectors,
        semantic_ids=NewIds(codes, np.array([own.ids.num_item_rows, 0])),
    )
    return load_bundle(folder / "bundle-full-1"), load_bundle(folder / "bundle-full-1+1")


def lists(bundle, name, session, k=40, profile="full"):
    """One source's list of a session."""
    recommender = Recommender(bundle, ServingOptions(profile=profile))
    query = request_query(bundle, session)
    mask = ItemMask.all(bundle.num_item_rows)
    return recommender.retrieval.sources[name].one(query, mask, k)


def request_query(bundle, session):
    from serving.query import hydrate
    from serving.surfaces import HOME

    return hydrate(Request(session=session), bundle, HOME)


@pytest.mark.parametrize("name", ["sequence", "content_similarity", "generative"])
def test_old_items_keep_their_scores_when_others_are_appended(grown, name):
    before, after = grown
    session = ["item-3", "item-6", "item-10"]
    old, new = lists(before, name, session), lists(after, name, session, k=42)
    scores = dict(zip(new.item_rows.tolist(), new.scores.tolist(), strict=True))
    for row, score in zip(old.item_rows.tolist(), old.scores.tolist(), strict=True):
        if row > 0 and name != "generative":
            assert scores[row] == pytest.approx(score, abs=CLOSE)
    assert 41 in scores
    assert (42 in scores) == (name != "generative")


def test_appended_item_is_placed_by_its_content(grown):
    """With the content of item 6 and no id of its own it is what an unmet item 6 would be."""
    _, after = grown
    found = lists(after, "content_similarity", ["item-6"], k=3)
    assert {6, 41, 42} == set(found.item_rows.tolist())
    vectors = after.sequence.all_item_vectors()
    items = JaggedBatch(
        {"item": Jagged.from_lists([[0]]), "item.categories": Jagged.from_lists([[2]])}
    )
    with torch.no_grad():
        expected = after.sequence.item_vectors(items, after.items.content[[6]])
    torch.testing.assert_close(vectors[41], expected[0])
    torch.testing.assert_close(vectors[42], expected[0])


def test_appended_item_is_generated_behind_its_prefix(grown):
    """The grown trie leads to it; what the model finds probable was trained before it was there."""
    before, after = grown
    assert before.generative.trie.num_items == 40
    assert after.generative.trie.num_items == 41
    assert after.generative.trie.version == after.semantic_ids.version
    allowed = np.zeros(43, np.bool_)
    allowed[[6, 41, 42]] = True
    source = Recommender(after, ServingOptions(profile="full")).retrieval.sources["generative"]
    found = source.one(request_query(after, ["item-10"]), ItemMask(allowed), 3)
    assert set(found.item_rows.tolist()) == {6, 41}


@pytest.mark.parametrize("profile", ["fast", "full"])
def test_appended_items_are_in_learned_lists(grown, profile):
    _, after = grown
    recommender = Recommender(after, ServingOptions(profile=profile))
    items = recommender.answer(Request(session=["item-6"], k=41, explain=True)).items
    listed = {item.item_id: item for item in items}
    assert len(listed) == 41
    for item_id in ("fresh-1", "fresh-2"):
        assert {"sequence", "content_similarity"} <= listed[item_id].contributions.keys()
    assert ("generative" in listed["fresh-1"].contributions) == (profile == "full")
    reported = {item.reason for item in items if item.source == "content_similarity"}
    assert reported <= {
        "is about the same as the history, and is new",
        "is about the same as the history",
    }


def test_a_blend_serves_appended_items_as_high_as_it_gives_them_odds(grown):
    _, after = grown
    scores = {}
    for odds in (1.0, 1e9):
        blend = copy(after.blends["fast"])
        blend.config = replace(blend.config, new_item_odds=odds)
        recommender = Recommender(replace(after, blends={"fast": blend}))
        items = recommender.answer(Request(session=["item-6"], k=41)).items
        scores[odds] = {item.item_id: item.score for item in items}
    events = after.item_counts.tolist()
    new = {after.catalogue.item_ids[row] for row in range(1, 43) if events[row] == 0}
    assert {"fresh-1", "fresh-2"} <= new
    # In order of score.
    assert set(list(scores[1e9])[: len(new)]) == new != set(list(scores[1.0])[: len(new)])
    for item_id in scores[1.0]:
        more = math.log(1e9) if item_id in new else 0
        assert scores[1e9][item_id] == pytest.approx(scores[1.0][item_id] + more, abs=1e-4)


def test_bundle_of_an_older_kind_still_takes_deltas(tmp_path):
    write_synthetic_bundle(tmp_path, "v1", SyntheticSize(semantic_ids=False))
    write_delta(
        tmp_path,
        "v1",
        [NewItem(item_id="fresh", display_text="Fresh")],
        content=np.zeros((1, 4), np.float32),
        item_vectors=np.ones((1, 8), np.float32),
    )
    assert load_bundle(tmp_path / "bundle-v1+1").num_item_rows == 42
