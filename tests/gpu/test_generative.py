"""The generative model on a GPU: the CPU's lists and loss."""

from __future__ import annotations

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.codes import decoder as code_decoder
from recsys.layers.codes.decoder import SharedContext, joint_attention
from recsys.models.generative.config import GenerativeConfig
from recsys.models.generative.model import (
    BeamState,
    GenerativeContext,
    GenerativeInputs,
    GenerativeModel,
)
from recsys.models.item_tower import ItemCatalogue
from recsys.retrieval.beam_search import BeamSearch
from recsys.semantic_ids.trie import Trie

pytestmark = pytest.mark.gpu

SIZES = (16, 16, 16)
NUM_ITEM_ROWS = 1_001
LISTS = ([3, 8, 3, 21, 40], [], [7, 999, 5_000, 2, 1, 4, 5, 6, 9])


def model_on(device: torch.device | str) -> GenerativeModel:
    config = GenerativeConfig(
        embedding_dim=32, hidden_dim=64, max_length=8, dropout=0.0, id_dropout=0.0, backend="torch"
    )
    generator = torch.Generator().manual_seed(1)
    keys = torch.randperm(16**3, generator=generator)[: NUM_ITEM_ROWS - 1]
    codes = torch.full((NUM_ITEM_ROWS, 3), -1)
    codes[1:] = torch.stack([keys // 256, keys // 16 % 16, keys % 16], dim=1)
    inputs = GenerativeInputs(num_item_rows=NUM_ITEM_ROWS, level_sizes=SIZES, semantic_ids="drawn")
    torch.manual_seed(0)
    counts = torch.ones(NUM_ITEM_ROWS, dtype=torch.int64)
    catalogue = ItemCatalogue.empty(NUM_ITEM_ROWS)
    return GenerativeModel(config, inputs, codes, catalogue, counts).eval().to(device)


def search_with(model: GenerativeModel) -> BeamSearch[GenerativeContext, BeamState]:
    trie = Trie.build(model.codes[1:], SIZES, num_item_rows=NUM_ITEM_ROWS)
    return BeamSearch(model.decode_step, trie, beam_width=40)


def queries(device: torch.device | str, shift: int = 0) -> JaggedBatch:
    lists = [[row + shift for row in one] for one in LISTS]
    return JaggedBatch({"history": Jagged.from_lists(lists)}).to(device)


def test_lists_and_loss_are_those_of_the_cpu(cuda: torch.device) -> None:
    model, on_gpu = model_on("cpu"), model_on(cuda)
    expected = search_with(model).lists(model.context(queries("cpu")), 60)
    found = search_with(on_gpu).lists(on_gpu.context(queries(cuda)), 60)
    torch.testing.assert_close(found.scores.cpu(), expected.scores, rtol=1e-4, atol=1e-4)
    assert (found.item_rows.cpu() == expected.item_rows).float().mean() > 0.95
    loss, loss_on_gpu = model.loss(queries("cpu")), on_gpu.loss(queries(cuda))
    torch.testing.assert_close(loss_on_gpu.cpu(), loss, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 7])
def test_the_fused_context_is_that_of_its_scores_written_out(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    query = torch.randn(3, 7, 2, 4, 16, device=cuda)
    values = torch.randn(3, 7, 5, 4, 16, device=cuda)
    scores = torch.randn(3, 7, 2, 4, 5, device=cuda)
    bias = torch.randn(3, 4, width, 24, device=cuda)
    bias[1, ..., 9:] = -torch.inf
    keys, of_places = torch.randn(2, 3, 4, 24, 16, device=cuda)
    context = SharedContext(keys, of_places, bias)
    expected = joint_attention(query, scores, values, context)
    monkeypatch.setattr(code_decoder, "MANY_SCORES", 0)
    found = joint_attention(query, scores, values, context)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
