"""A delta over a loaded bundle: what does not grow is shared, lists are those of a full load."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.model import GenerativeModel
from recsys.models.ranker.model import Ranker
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.retrieval.blend.history_features import HistoryFeatures
from recsys.semantic_ids.codes import NO_CODE
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle
from serving.bundle.manifest import read_chain
from serving.bundle.semantic_ids import NewIds
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

SIZE = SyntheticSize(history_models=True, ranker=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """``v1`` with every kind of model, and three deltas that follow each other."""
    folder = tmp_path_factory.mktemp("bundles")
    write_synthetic_bundle(folder, "v1", SIZE)
    append(folder, "v1", "a", "b")
    append(folder, "v1+1", "c", ids=False)
    append(folder, "v1+2", "d", "e", "f")
    return folder


def append(folder, parent, *names, ids=True):
    """Append items with content, vectors and semantic IDs of their own."""
    bundle = load_bundle(folder / f"bundle-{parent}")
    rng = np.random.default_rng(len(bundle.catalogue.item_ids))
    items = [NewItem(item_id=name, display_text=name.upper(), categories=[name]) for name in names]
    own = bundle.semantic_ids
    codes = torch.tensor(free_codes(own, len(names)), dtype=torch.int32)
    id_rows = own.ids.num_item_rows + np.arange(len(names))
    return write_delta(
        folder,
        parent,
        items,
        content=rng.normal(size=(len(names), SIZE.content_dim)).astype(np.float32),
        item_vectors=rng.normal(size=(len(names), SIZE.embedding_dim)).astype(np.float32),
        semantic_ids=NewIds(codes, id_rows) if ids else None,
    )


def free_codes(ids, count):
    """IDs that no item has."""
    taken = {tuple(one) for one in ids.ids.codes.tolist()}
    every = np.ndindex(*ids.ids.level_sizes)
    return [code for code in every if code not in taken][:count]


def answers(bundle, profile):
    recommender = Recommender(bundle, ServingOptions(profile=profile, beam_timeout_ms=None))
    requests = [
        Request(user_id="user-1", k=45, explain=True),
        Request(session=["item-3", "d", "a"], k=45),
        Request(surface="related", item_id="a", k=45),
        Request(user_id="user-2", filter={"categories": ["e", "c"]}),
    ]
    return [recommender.answer(request).items for request in requests]


def test_a_delta_holds_all_items_since_the_release(made):
    for number, items in (("1", "ab"), ("2", "abc"), ("3", "abcdef")):
        chain = read_chain(made / f"bundle-v1+{number}")
        assert [link.manifest.version for link in chain] == ["v1", f"v1+{number}"]
        bundle = load_bundle(made / f"bundle-v1+{number}")
        assert list(bundle.catalogue.item_ids)[41:] == list(items)
        assert list(bundle.catalogue.category_names)[4:] == list(items)
        assert bundle.num_item_rows == 41 + len(items) == bundle.retriever.index.num_item_rows
    codes = bundle.semantic_ids.codes[41:, 0]
    assert (codes != NO_CODE).tolist() == [True, True, False, True, True, True]
    # Each delta's version follows that of the one before, as the store of published IDs counts.
    before = load_bundle(made / "bundle-v1+1").semantic_ids
    assert bundle.semantic_ids.ids.parent == before.version


@pytest.mark.parametrize("profile", ["fast", "full"])
def test_lists_are_those_of_a_full_load_to_the_last_bit(made, profile):
    full = load_bundle(made / "bundle-v1+3")
    first = load_bundle(made / "bundle-v1+1")
    before = answers(first, profile)[0]
    grown = load_bundle(made / "bundle-v1+3", first)
    assert (grown.version, grown.digest) == (full.version, full.digest)
    assert answers(grown, profile) == answers(full, profile)
    assert torch.equal(grown.items.content, full.items.content)
    assert torch.equal(grown.sequence.all_item_inputs(), full.sequence.all_item_inputs())
    # The one that is still serving is what it was.
    assert answers(first, profile)[0] == before
    assert first.retriever.index.num_item_rows == 43


def test_grown_parts_are_those_that_are_loaded_over_the_grown_catalogue(made):
    bundle, path = load_bundle(made / "bundle-v1+3"), made / "bundle-v1"
    items, codes = bundle.items, bundle.semantic_ids.codes
    generative = GenerativeModel.load(
        path / "generative", items, codes, semantic_ids=bundle.released.semantic_ids.version
    )
    models = {
        bundle.retriever.model: TwoTower.load(path / "two_tower", items),
        bundle.sequence: SequenceModel.load(path / "sequence", items),
        bundle.ranker.model: Ranker.load(path / "ranker", items),
        bundle.generative.model: generative,
    }
    for grown, whole in models.items():
        assert grown.num_item_rows == whole.num_item_rows == 47
        torch.testing.assert_close(grown.all_item_inputs(), whole.all_item_inputs())
        rows = torch.tensor([1, 46])
        torch.testing.assert_close(grown.item_inputs(rows), whole.item_inputs(rows))
    assert torch.equal(bundle.generative.model.codes, generative.codes)
    similar = ContentSimilarity.load(path / "content_similarity", items.content)
    torch.testing.assert_close(bundle.content_similarity.vectors, similar.vectors)
    assert torch.equal(bundle.content_similarity.has_content, similar.has_content)
    tables = HistoryFeatures.load(path / "ranker", items).tables
    for table, whole in zip(bundle.ranker.builder.history_features.tables, tables, strict=True):
        torch.testing.assert_close(table, whole)


def test_what_does_not_grow_is_shared_and_only_then(made, tmp_path):
    first = load_bundle(made / "bundle-v1+1")
    grown = load_bundle(made / "bundle-v1+2", first)
    assert grown.users is first.users
    assert grown.released is first.released
    weights = [one.sequence.encoder.state_dict() for one in (first, grown)]
    assert all(weights[0][name].data_ptr() == weights[1][name].data_ptr() for name in weights[0])
    assert load_bundle(made / "bundle-v1", grown) is first.released
    elsewhere = shutil.copytree(made, tmp_path / "bundles")
    assert load_bundle(elsewhere / "bundle-v1+2", first).users is not first.users
    write_synthetic_bundle(elsewhere, "v2", replace(SIZE, seed=1))
    assert load_bundle(elsewhere / "bundle-v2", first).users is not first.users
