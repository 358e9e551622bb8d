from dataclasses import replace

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.lora.file import load_adapter, save_adapter
from recsys.layers.lora.linear import LoraAdapter, LoraConfig, digest_of_weights
from recsys.models.adapted import AdaptedRanker, copy_layers, ranker_targets
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import RankingBatch
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

INPUTS = RankerInputs(
    num_item_rows=30, tasks=("click", "purchase"), candidate_dense=("price", "score")
)
CONFIG = RankerConfig(
    embedding_dim=16, key_dim=4, max_history=6, hidden_dim=16, num_experts=4, head_dim=8,
    tile_rows=32, backend="torch",
)  # fmt: skip
DOMAINS = ["books", None, "films", "books", "unheard of"]
# Inputs, history and experts are 16 wide, heads 8, adapters of rank 3; logits are about 2.
CLOSE = rounding(16 + 6 + 4 * 16 + 8 + 3 * 3, size=2.0)
SIZES = [3, 2, 5, 40, 1]


def ranker(trunk="dense", seed=0):
    torch.manual_seed(seed)
    return Ranker(replace(CONFIG, trunk=trunk), INPUTS, ItemCatalogue.empty(30)).eval()


def adapter_of(model, seed, rank=3):
    torch.manual_seed(seed)
    targets = ranker_targets(model)
    adapter = LoraAdapter(model, LoraConfig(targets=targets, rank=rank, max_share=1.0))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_(std=0.2)
    return adapter.eval()


def batch():
    generator = torch.Generator().manual_seed(2)
    lists = [torch.randint(1, 30, (n,), generator=generator).tolist() for n in (4, 0, 9, 2, 1)]
    rows = [torch.randint(1, 30, (n,), generator=generator).tolist() for n in SIZES]
    queries = JaggedBatch({"history": Jagged.from_lists(lists)})
    numbers = torch.randn(sum(SIZES), 2, generator=generator)
    return RankingBatch(queries, Jagged.from_lists(rows), None, numbers)


def mixed_logits(adapted, domains):
    """Predict each query's candidates through its domain's adapter, [M, T]."""
    logits, of_row = [], batch().candidates.segments()
    for query, domain in enumerate(domains):
        with adapted._bank.choose(domain):
            logits.append(adapted.model(batch()).logits[of_row == query])
    return torch.cat(logits)


@pytest.mark.parametrize("trunk", ["dense", "sparse", "shared_bottom"])
@torch.no_grad()
def test_each_candidate_of_a_mixed_batch_is_judged_through_its_querys_adapter(trunk):
    model = ranker(trunk)
    alone = model(batch()).logits
    adapters = {name: adapter_of(model, seed) for seed, name in enumerate(("books", "films"), 1)}
    adapted = AdaptedRanker(model, adapters)
    mixed = mixed_logits(adapted, DOMAINS)
    of_row = [DOMAINS[query] for query in batch().candidates.segments().tolist()]
    for name, adapter in adapters.items():
        own = [row for row, domain in enumerate(of_row) if domain == name]
        adapter.attach()
        torch.testing.assert_close(mixed[own], model(batch()).logits[own], rtol=0, atol=CLOSE)
        adapter.detach()
        assert float((mixed[own] - alone[own]).abs().max()) > 1e-2
    others = [row for row, domain in enumerate(of_row) if domain not in adapters]
    torch.testing.assert_close(mixed[others], alone[others], rtol=0, atol=CLOSE)
    nobody = mixed_logits(adapted, ["unheard of"] * 5)
    torch.testing.assert_close(nobody, alone, rtol=0, atol=CLOSE)
    assert [adapted.knows(one) for one in DOMAINS] == [True, False, True, True, False]


@pytest.mark.parametrize("trunk", ["dense", "sparse"])
@torch.no_grad()
def test_served_scores_are_those_of_the_adapter_and_do_not_depend_on_company(trunk):
    model = ranker(trunk)
    adapters = {name: adapter_of(model, seed) for seed, name in enumerate(("books", "films"), 1)}
    twin = copy_layers(model)
    served = AdaptedRanker(twin, adapters)
    for query, domain in enumerate(DOMAINS):
        begin, end = batch().candidates.offsets[query : query + 2].tolist()
        rows = batch().candidates.values[begin:end]
        numbers = batch().candidate_dense[begin:end]
        reader = model.encode_reader(batch(), query)
        scores = served.score_candidates(reader, rows, numbers, domain)
        if domain in adapters:
            adapters[domain].attach()
        expected = model.score_candidates(reader, rows, numbers)
        if domain in adapters:
            adapters[domain].detach()
        torch.testing.assert_close(scores, expected, rtol=0, atol=CLOSE)
        one = served.score_candidates(reader, rows[-1:], numbers[-1:], domain)
        assert torch.equal(one, scores[-1:])


@torch.no_grad()
def test_a_saved_adapter_fits_its_ranker_and_no_other(tmp_path):
    model = ranker()
    adapter = adapter_of(model, 1)
    save_adapter(adapter, tmp_path, domain="books")
    again = load_adapter(tmp_path, ranker())
    expected = mixed_logits(AdaptedRanker(model, {"books": adapter}), DOMAINS)
    found = mixed_logits(AdaptedRanker(again.base, {"books": again}), DOMAINS)
    assert torch.equal(found, expected)
    other = ranker(seed=1)
    with pytest.raises(ValueError, match=adapter.base_digest) as refused:
        load_adapter(tmp_path, other)
    assert digest_of_weights(other) in str(refused.value)


def test_what_a_ranker_cannot_adapt_is_refused():
    model = ranker()
    with pytest.raises(ValueError, match=r"rank 9 is larger than layer heads\.0\.0"):
        adapter_of(model, 1, rank=9)
    config = LoraConfig(targets=("attention.*",), rank=2, max_share=1.0)
    reading = LoraAdapter(model, config)
    with pytest.raises(ValueError, match=r"corrects 'attention\.query'"):
        AdaptedRanker(model, {"books": reading})
