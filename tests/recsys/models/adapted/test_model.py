from dataclasses import replace

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.lora.linear import LoraAdapter, LoraConfig
from recsys.models.adapted import (
    ITEM_TABLE,
    AdaptedRetriever,
    adapted_layers,
    centre_items,
    copy_layers,
)
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from tests.recsys.testing.catalogues import drawn_catalogue
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

NUM_ITEM_ROWS = 60
INPUTS = FeatureSizes(num_item_rows=NUM_ITEM_ROWS)
SEQUENCE = SequenceConfig(
    embedding_dim=16, hidden_dim=32, max_length=6, num_heads=2, num_blocks=2, backend="torch"
)
# Two blocks of widths 16 and 32, adapters of rank 3, then cosines.
CLOSE = rounding(2 * (16 + 32 + 3 + 3) + 16)


def built(kind: str, content_dim: int = 0):
    torch.manual_seed(0)
    inputs, counts = replace(INPUTS, content_dim=content_dim), torch.ones(NUM_ITEM_ROWS).long()
    known = replace(
        drawn_catalogue(NUM_ITEM_ROWS, content_dim),
        categories=ItemCatalogue.empty(NUM_ITEM_ROWS).categories,
    )
    if kind == "two_tower":
        config = TwoTowerConfig(embedding_dim=16, hidden_dim=32, max_history=6, backend="torch")
        return TwoTower(config, inputs, known, counts).eval()
    return SequenceModel(replace(SEQUENCE, block=kind), inputs, known, counts).eval()


def adapter_of(model, seed: int, targets=None, rank: int = 3, own=None):
    torch.manual_seed(seed)
    config = LoraConfig(
        targets=targets or adapted_layers(model),
        tables=() if own is None else (ITEM_TABLE,),
        rank=rank,
        max_share=1.0,
    )
    adapter = LoraAdapter(model, config, rows={ITEM_TABLE: own})
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_(std=0.05)
    return adapter.eval()


def queries() -> JaggedBatch:
    """Six histories, one of them empty, one longer than models read."""
    lists = [[3, 4, 5], [7], [], [9, 8, 7, 6, 5, 4, 3, 2, 1], [30, 31], [40]]
    return JaggedBatch({"history": Jagged.from_lists(lists)})


@pytest.mark.parametrize("kind", ["two_tower", "attention", "hstu"])
@torch.no_grad()
def test_queries_are_read_through_the_adapter_of_their_domain(kind):
    model = built(kind)
    alone = model.query_vectors(queries())
    names = ["books", "films", "games"]
    adapters = {name: adapter_of(model, seed) for seed, name in enumerate(names, start=1)}
    retriever = AdaptedRetriever(model, adapters)
    for name, adapter in adapters.items():
        found = retriever.query_vectors(queries(), name)
        adapter.attach()
        torch.testing.assert_close(found, model.query_vectors(queries()), rtol=0, atol=CLOSE)
        adapter.detach()
        assert float((found - alone).abs().max()) > 1e-3
        # An empty history of a sequence model has one learned vector, which no layer corrects.
        assert (kind == "two_tower") is not torch.allclose(found[2], alone[2])
        scores = retriever.score(queries(), name)
        torch.testing.assert_close(
            scores[:, 1:], found @ model.all_item_vectors()[1:].T, rtol=0, atol=CLOSE
        )
        assert bool((scores[:, 0] == -torch.inf).all())
    for name in ("unheard of", None):
        assert torch.equal(retriever.query_vectors(queries(), name), alone)


@pytest.mark.parametrize("kind", ["two_tower", "attention"])
@torch.no_grad()
def test_a_domains_items_move_where_an_adapter_corrects_their_id_vectors(kind):
    model = built(kind, 6)
    model.item_tower.item_counts[12] = 0  # never met: it has no id vector to correct
    model.eval()
    reading, items = adapted_layers(model)[:1], model.all_item_vectors()
    adapters = {
        "books": adapter_of(model, 1, reading, own=torch.arange(1, 20)),
        "films": adapter_of(model, 2, reading),
        "games": adapter_of(model, 3, own=torch.arange(30, 60)),
    }
    retriever = AdaptedRetriever(model, adapters)
    assert torch.equal(model.all_item_vectors(), items)
    for name, adapter in adapters.items():
        found = retriever.score(queries(), name)
        adapter.attach()
        torch.testing.assert_close(found, model.score(queries()), rtol=0, atol=CLOSE)
        adapter.detach()
    moved = (retriever.item_vectors("books") - items).abs().amax(1) > 1e-4
    assert moved.nonzero()[:, 0].tolist() == [row for row in range(1, 20) if row != 12]
    assert retriever.shares_items("films")
    assert not retriever.shares_items("books")


@pytest.mark.parametrize("kind", ["two_tower", "attention"])
@torch.no_grad()
def test_what_items_of_a_new_domain_have_in_common_is_taken_off(kind):
    model, own = built(kind, 6), torch.arange(20, 50)
    alone = model.item_inputs(own)
    config = LoraConfig(targets=adapted_layers(model), rank=3, max_share=1.0)
    adapter = LoraAdapter(model, config)
    centre_items(model, adapter, own)
    adapter.attach()
    corrected = model.item_inputs(own)
    torch.testing.assert_close(corrected.mean(0), 0 * alone.mean(0), rtol=0, atol=1e-5)
    content = model.look_up_content(own)
    # Where content says nothing of what is common, nothing changes.
    common = content.mean(0)
    along = content @ common / (common @ common)
    moved = alone - along[:, None] * alone.mean(0)
    torch.testing.assert_close(corrected, moved, rtol=0, atol=1e-5)
    reading = LoraAdapter(model, replace(config, targets=adapted_layers(model)[:1]))
    with pytest.raises(ValueError, match="add it to targets"):
        centre_items(model, reading, own)


@pytest.mark.parametrize("kind", ["two_tower", "attention"])
@torch.no_grad()
def test_adapters_of_a_twin_do_not_reach_the_model(kind):
    model = built(kind, 6)
    alone, encoded = model.score(queries()), model.all_item_inputs()
    twin = copy_layers(model)
    assert twin.all_item_inputs() is encoded
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(mine is theirs for mine, theirs in pairs)
    retriever = AdaptedRetriever(twin, {"books": adapter_of(twin, 1)})
    assert not torch.allclose(retriever.score(queries(), "books"), alone, atol=1e-3)
    assert model.all_item_inputs() is encoded
    assert torch.equal(model.score(queries()), alone)
