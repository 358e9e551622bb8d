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
from recsys.semantic_ids.codes import NO_CODE, SemanticIds
from serving.bundle.delta import NewItem
from serving.bundle.load import load_bundle
from serving.bundle.semantic_ids import NewIds
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.recsys.testing.tensors import rounding
from tests.serving.bundle.deltas import append_like
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts, with_model, without
from tests.serving.writable import writable

pytestmark = pytest.mark.numerics

# Histories of a dozen events through layers of some 16 and 32, then cosines.
CLOSE = rounding(12 + 2 * (16 + 32) + 16)
SIZE = SyntheticSize(history_models=True)


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


def test_parts_that_do_not_fit_are_refused_and_leave_nothing(parts, tmp_path):
    sizes = ({"num_items": 50}, {"content_dim": 3}, {"seed": 1})
    for number in range(len(sizes)):
        (tmp_path / str(number)).mkdir()
    other, narrow, again = (
        synthetic_parts(tmp_path / str(number), replace(SIZE, **size))
        for number, size in enumerate(sizes)
    )
    full = parts.models["blend_full"]
    alone = without(parts, "blend_full")

    def of(others, name):
        return with_model(parts, name, others.models[name])

    mixtures = {
        "sequence/config.json .* num_item_rows 51, the bundle has 41": of(other, "sequence"),
        "sequence/config.json .* content_dim 3, the bundle has 4": of(narrow, "sequence"),
        "generative/config.json .* num_item_rows 51": of(other, "generative"),
        "content_similarity of the bundle .* whitening is of embeddings of width 3": of(
            narrow, "content_similarity"
        ),
        "generates semantic IDs and the bundle has none": replace(parts, semantic_ids=None),
        r"blend_fast weighs the sources \['generative'\], profile fast": with_model(
            alone, "blend_fast", full
        ),
        r"blend_full weighs the sources \['sequence'\]": without(parts, "sequence", "blend_fast"),
        r"blend_fast weighs the sources \['content_similarity'\]": without(
            alone, "content_similarity"
        ),
    }
    for message, changed in mixtures.items():
        with pytest.raises(ValueError, match=f"(?s){message}"):
            write_bundle(tmp_path / "bundles", changed, version="v1")
        assert list((tmp_path / "bundles").iterdir()) == []
    config = json.loads((again.models["generative"] / "config.json").read_text())
    model, ids = config["inputs"]["semantic_ids"], SemanticIds.load(parts.semantic_ids).version
    assert model != ids
    with pytest.raises(ValueError, match=f"{model}.*{ids}"):
        write_bundle(tmp_path / "bundles", of(again, "generative"), version="v1")


@pytest.mark.parametrize("folder", ["two_tower", "sequence", "generative"])
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
    names = ("fresh-1", "fresh-2")
    items = [NewItem(item_id=one, display_text="Fresh", categories=["odd"]) for one in names]
    ids = NewIds(codes, np.array([own.ids.num_item_rows, 0]))
    append_like(folder, "full-1", items, [6, 6], ids)
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
    allowed = np.zeros(43, np.bool_)
    allowed[[6, 41, 42]] = True
    source = Recommender(after, ServingOptions(profile="full")).retrieval.sources["generative"]
    found = source.one(request_query(after, ["item-10"]), ItemMask(allowed), 3)
    assert set(found.item_rows.tolist()) == {6, 41}


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
