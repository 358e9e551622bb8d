from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Sequences
from recsys.data.top_k import ItemMask, TopK
from recsys.data.windows import training_windows
from recsys.fitting.own_model import check_retriever
from recsys.layers.codes.decoder import Beams
from recsys.models.generative.config import GenerativeConfig
from recsys.models.generative.model import GenerativeInputs, GenerativeModel
from recsys.retrieval.beam_search import BeamSearch
from recsys.semantic_ids.trie import Trie
from tests.recsys.models.parity import NUM_ITEM_ROWS, catalogue, queries, trained
from tests.recsys.testing.refusals import assert_refused
from tests.recsys.testing.tensors import history_queries, top_k_of_scores

SIZES = (4, 4, 4)
SMALL = GenerativeConfig(
    num_layers=1,
    embedding_dim=16,
    hidden_dim=32,
    max_length=8,
    dropout=0.1,
    id_dropout=0.1,
    label_smoothing=0.0,
    backend="torch",
)
VARIANTS = {
    "two blocks": replace(SMALL, num_layers=2),
    "vectors and places": replace(SMALL, items="codes_vectors", carries_place=True),
}
CODES_ALONE = replace(SMALL, items="codes")


def draw_codes(num_item_rows: int = NUM_ITEM_ROWS, seed: int = 0, without: int = 1) -> Tensor:
    """Give each row an ID of its own whose first code says the parity; the first have none."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.full((num_item_rows, 3), -1)
    for parity in (0, 1):
        rows = torch.arange(num_item_rows)
        rows = rows[(rows >= without) & (rows % 2 == parity)]
        keys = torch.randperm(32, generator=generator)[: len(rows)]
        codes[rows] = torch.stack([2 * parity + keys // 16, keys // 4 % 4, keys % 4], dim=1)
    return codes


def built(config: GenerativeConfig, codes: Tensor | None = None) -> GenerativeModel:
    codes = draw_codes() if codes is None else codes
    inputs = GenerativeInputs(
        num_item_rows=len(codes),
        level_sizes=SIZES,
        semantic_ids="ids-of-monday",
        content_dim=4,
        num_categories=3,
        vector_dim=6,
    )
    counts = torch.ones(len(codes), dtype=torch.int64)
    vectors = torch.randn(len(codes), 6, generator=torch.Generator().manual_seed(5))
    return GenerativeModel(config, inputs, codes, catalogue(len(codes)), counts, vectors)


def drawn(config: GenerativeConfig, seed: int = 0, codes: Tensor | None = None) -> GenerativeModel:
    """Build a model that has learnt nothing, with sizeable differences between items."""
    torch.manual_seed(seed)
    model = built(config, codes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def trie_of(codes: Tensor) -> Trie:
    rows = (codes[:, 0] >= 0).nonzero()[:, 0]
    return Trie.build(codes[rows], SIZES, item_rows=rows, num_item_rows=len(codes))


@pytest.mark.parametrize("config", [CODES_ALONE, SMALL])
def test_an_event_that_says_no_is_no_label(config: GenerativeConfig) -> None:
    def loss(last: int) -> Tensor:
        rows = np.array([3, 5, 8, 9, 4, last])
        ends, negative = np.array([0, 6]), np.arange(6) == 5
        events = Sequences(rows, np.array([0, 0, 6]), ends, ends, negative=negative)
        model = drawn(config)
        return model.loss(training_windows(events, "all", 8).batch(events, np.array([0])))

    assert torch.equal(loss(7), loss(12))


def generate(
    model: GenerativeModel,
    lists: list[list[int]],
    k: int = 40,
    beam_width: int = 64,
    masks: list[ItemMask] | None = None,
) -> TopK:
    search = BeamSearch(model.decode_step, trie_of(model.codes), beam_width=beam_width)
    restriction = None
    if masks is not None:
        restriction = search.trie.restrict_rows(torch.stack([one.as_bool() for one in masks]))
    with torch.no_grad():
        return search.lists(model.context(history_queries(*lists)), k, restriction)


@torch.no_grad()
def score_all_items(model: GenerativeModel, lists: list[list[int]]) -> Tensor:
    """Walk down every item's codes, no beam and no trie: log-probabilities [B, N]."""
    codes = model.codes
    rows = (codes[:, 0] >= 0).nonzero()[:, 0]
    context = model.context(history_queries(*lists))
    decoded, parents = model.decode_step(context, None), torch.zeros(len(lists), len(rows)).long()
    total = torch.zeros(len(lists), len(rows))
    for level in range(3):
        logits = decoded.logits.gather(1, parents[..., None].expand(-1, -1, SIZES[level]))
        prefix = codes[rows, :level]
        same = (prefix[:, None] == prefix[None, :]).all(2)  # [items, items]
        is_rival = torch.zeros(len(rows), SIZES[level])
        is_rival.index_add_(1, codes[rows, level], same.float())
        logits = logits.masked_fill(is_rival == 0, -torch.inf)
        taken = codes[rows, level].expand(len(lists), -1)
        total += logits.log_softmax(2).gather(2, taken[..., None])[..., 0]
        if level < 2:
            decoded = model.decode_step(context, Beams(level + 1, parents, taken, decoded.state))
            parents = torch.arange(len(rows)).expand(len(lists), -1)
    scores = torch.full((len(lists), len(codes)), -torch.inf)
    scores[:, rows] = total
    return scores


class Scored:
    """A model that scores every item by the probability of its ID."""

    def __init__(self, model: GenerativeModel) -> None:
        self.save, self.model = model.save, model

    def score(self, queries: JaggedBatch) -> Tensor:
        history = queries["history"]
        parts = history.values.split(history.lengths().tolist())
        return score_all_items(self.model, [part.tolist() for part in parts])


@pytest.mark.parametrize("name", VARIANTS)
def test_keeps_the_contract_of_every_retriever(
    name: str, tastes: Sequences, tmp_path: Path
) -> None:
    def fit(seed: int) -> Scored:
        torch.manual_seed(seed)
        return Scored(trained(tastes, built(VARIANTS[name]), seed, steps=3))

    def load(path: Path) -> Scored:
        return Scored(load_from(path))

    known = JaggedBatch({"history": queries(tastes)["history"]})
    check_retriever(fit, load, known, NUM_ITEM_ROWS, tmp_path)


def load_from(path: Path, semantic_ids: str = "ids-of-monday") -> GenerativeModel:
    return GenerativeModel.load(path, catalogue(), draw_codes(), semantic_ids=semantic_ids)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([*VARIANTS.values(), CODES_ALONE]),
    st.integers(0, 1_000),
    st.lists(st.lists(st.integers(0, 45), max_size=12), min_size=1, max_size=4),
    st.integers(1, 45),
    st.sampled_from([None, 0.0, 0.05, 0.5]),
)
def test_a_beam_that_covers_all_prefixes_ranks_as_scoring_every_item(
    config: GenerativeConfig, seed: int, lists: list[list[int]], k: int, share: float | None
) -> None:
    codes = draw_codes(seed=seed, without=3)
    model = drawn(config, seed, codes)
    truth = score_all_items(model, lists)
    masks = None
    if share is not None:
        generator = np.random.default_rng(seed)
        masks = [ItemMask(generator.random(len(codes)) < share) for _ in lists]
        allowed = torch.stack([mask.as_bool() for mask in masks])
    found = generate(model, lists, k, 64, masks)
    shown = truth if masks is None else truth.masked_fill(~allowed, -torch.inf)
    expected = top_k_of_scores(shown, k)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-5, atol=1e-5)
    listed = found.item_rows >= 0
    assert torch.equal(listed, expected.item_rows >= 0)
    again = shown.gather(1, found.item_rows.clamp(min=0))
    torch.testing.assert_close(again[listed], found.scores[listed], rtol=1e-5, atol=1e-5)
    for row in found.item_rows:
        items = row[row >= 0]
        assert len(items.unique()) == len(items)


@pytest.mark.parametrize("name", [*VARIANTS, "codes alone"])
def test_training_scores_each_prefix_as_generating_behind_it_does(name: str) -> None:
    """The loss of a sequence is minus the log-probability of each event behind those before it."""
    config = {**VARIANTS, "codes alone": CODES_ALONE}[name]
    config = replace(config, dropout=0.0, id_dropout=0.0)
    model = drawn(config)
    lists = [[3, 8, 3, 21, 40], [7], [], [2, 9]]
    total = weights = 0.0
    for events in lists:
        for place, label in enumerate(events):
            weight = 0.1 if place == 0 else 1.0
            total -= weight * score_all_items(model, [events[:place]])[0, label].item()
            weights += weight
    assert model.loss(history_queries(*lists)).item() == pytest.approx(total / weights, rel=1e-4)


def test_a_catalogue_of_one_item_and_of_none() -> None:
    for num_items in (0, 1):
        codes = torch.full((3, 3), -1)
        codes[2 : 2 + num_items] = torch.tensor([3, 0, 2])
        model = drawn(SMALL, codes=codes)
        found = generate(model, [[2, 1], []], 2)
        assert found.item_rows.tolist() == [[2 if num_items else -1, -1]] * 2
        nothing = generate(model, [[2, 1]], 2, masks=[ItemMask(np.zeros(3, np.bool_))])
        assert nothing.item_rows.tolist() == [[-1, -1]]
        assert torch.isfinite(model.loss(history_queries(*[[2, 2, 1]])))


@pytest.mark.parametrize("name", ["two blocks", "vectors and places"])
def test_an_appended_item_is_generated_and_one_without_an_id_is_not(
    name: str, tmp_path: Path
) -> None:
    model = drawn(VARIANTS[name])
    model.save(tmp_path)
    codes = torch.full((NUM_ITEM_ROWS + 2, 3), -1)
    codes[:NUM_ITEM_ROWS] = model.codes
    taken = {tuple(one) for one in model.codes.tolist()}
    free = next(i for i in range(64) if (i // 16, i // 4 % 4, i % 4) not in taken)
    codes[NUM_ITEM_ROWS] = torch.tensor([free // 16, free // 4 % 4, free % 4])
    grown = GenerativeModel.load(
        tmp_path, catalogue(len(codes)), codes, semantic_ids="ids-of-monday"
    )
    found = generate(grown, [[3, NUM_ITEM_ROWS, NUM_ITEM_ROWS + 1]], 45)
    assert NUM_ITEM_ROWS in found.item_rows[0]
    assert NUM_ITEM_ROWS + 1 not in found.item_rows[0]


def test_a_model_saved_with_settings_that_were_removed_loads_only_if_they_were_off(
    tmp_path: Path,
) -> None:
    model, path = drawn(SMALL), tmp_path / "config.json"
    model.save(tmp_path)
    document = json.loads(path.read_text())
    document["config"] |= {"memory_orders": [], "memory_rows": 1 << 16, "first_code_limit": None}
    path.write_text(json.dumps(document))
    assert load_from(tmp_path).config == model.config
    document["config"]["memory_orders"] = [1, 2]
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"trained with memory_orders = \(1, 2\).*train it again"):
        load_from(tmp_path)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    inputs, codes = built(SMALL).inputs, draw_codes()
    codes[5] = torch.tensor([1, 4, 0])
    drawn(SMALL).save(tmp_path)
    assert_refused(
        {
            "speaks semantic IDs ids-of-monday.*ids-of-sunday": lambda: load_from(
                tmp_path, "ids-of-sunday"
            ),
            r"codes \(40, 3\).*41 item rows": lambda: GenerativeModel(
                SMALL, inputs, draw_codes()[:40], catalogue()
            ),
            r"item row 5 has codes \[1, 4, 0\]": lambda: built(SMALL, codes),
        }
    )
