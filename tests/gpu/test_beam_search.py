"""Beam search on a GPU: the CPU's lists, and a captured search that follows its inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recsys.data.top_k import ItemMask, TopK
from recsys.retrieval.beam_search import BeamSearch, CapturedSearch
from recsys.semantic_ids.trie import Trie
from tests.recsys.retrieval.code_decoder import BeamState, CodeDecoder, CodeDecoderConfig, Context

pytestmark = pytest.mark.gpu

SIZES = (32, 32, 32)
BATCH_SIZE, LENGTH, DIM, WIDTH = 3, 12, 32, 40


def search_on(device: torch.device | str) -> tuple[CodeDecoder, BeamSearch[Context, BeamState]]:
    config = CodeDecoderConfig(level_sizes=SIZES, dim=DIM, num_heads=2)
    model = CodeDecoder(config).eval().to(device)
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(32, (5_000, 3), generator=generator).unique(dim=0)
    trie = Trie.build(codes, SIZES).to(device)
    search = BeamSearch(
        model.decode_step,
        trie,
        beam_width=WIDTH,
        semantic_ids_version=None,
    )
    return model, search


def contexts(model: CodeDecoder, device: torch.device | str, seed: int) -> Context:
    generator = torch.Generator().manual_seed(seed)
    events = torch.randn(BATCH_SIZE, LENGTH, DIM, generator=generator).to(device)
    with torch.no_grad():
        return model.encode(events, torch.tensor([0, 5, LENGTH], device=device))


def draw_masks(num_item_rows: int, seed: int) -> list[ItemMask]:
    generator = np.random.default_rng(seed)
    return [ItemMask(generator.random(num_item_rows) < share) for share in (0.3, 0.01, 0.0)]


def assert_close(found: TopK, expected: TopK) -> None:
    """Hold that scores agree and items but for those that rounding orders differently."""
    torch.testing.assert_close(found.scores.cpu(), expected.scores.cpu(), rtol=1e-4, atol=1e-4)
    same = (found.item_rows.cpu() == expected.item_rows.cpu()).float().mean()
    assert same > 0.95


@pytest.mark.parametrize("restricted", [False, True])
def test_lists_are_those_of_the_cpu(cuda: torch.device, restricted: bool) -> None:
    model, search = search_on("cpu")
    model_on_gpu, search_on_gpu = search_on(cuda)
    masks = draw_masks(search.trie.num_item_rows, 0) if restricted else None
    expected = search.search(contexts(model, "cpu", 1), 60, masks)
    found = search_on_gpu.search(contexts(model_on_gpu, cuda, 1), 60, masks)
    assert_close(found, expected)


def test_equal_items_are_ranked_by_their_row(cuda: torch.device) -> None:
    model, search = search_on(cuda)
    for parameter in model.parameters():
        parameter.data.zero_()
    found = search.search(contexts(model, cuda, 0), 50)
    # Rows ascend with the codes, and so do the prefixes kept of so many equal ones.
    assert found.item_rows.tolist() == [list(range(1, 51))] * BATCH_SIZE


def test_a_captured_search_follows_new_contexts_and_masks(cuda: torch.device) -> None:
    model, search = search_on(cuda)
    captured = CapturedSearch(search, contexts(model, cuda, 0), 60)
    for seed in (1, 2, 1):
        context = contexts(model, cuda, seed)
        masks = draw_masks(search.trie.num_item_rows, seed)
        found = captured.lists(context, search.trie.allowed_rows(masks))
        assert_close(found, search.search(context, 60, masks))
