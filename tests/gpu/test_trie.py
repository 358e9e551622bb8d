"""The trie on a GPU: the CPU's masks, and a step of a search captured as a CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recsys.data.top_k import ItemMask
from recsys.semantic_ids.trie import Trie

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("level_sizes", [(40, 40, 40, 40), (300, 300, 300)])
def test_masks_steps_and_items_are_those_of_the_cpu(
    cuda: torch.device, level_sizes: tuple[int, ...]
) -> None:
    drawn = [torch.rand(60_000) ** 3 * size for size in level_sizes]
    codes = torch.stack(drawn, 1).int().unique(dim=0)
    trie = Trie.build(codes, level_sizes)
    on_gpu = trie.to(cuda)
    generator = np.random.default_rng(0)
    masks = [ItemMask(generator.random(trie.num_item_rows) < 0.05) for _ in range(3)]
    limits, limits_on_gpu = trie.restrict(masks), on_gpu.restrict(masks)
    picks = torch.randint(len(codes), (64,))
    requests = torch.randint(3, (65,))
    states = torch.cat([trie.start(64), torch.tensor([-1])])
    for level in range(trie.num_levels):
        there, there_requests = states.to(cuda), requests.to(cuda)
        free = on_gpu.mask(there, level)
        bound = on_gpu.mask(there, level, limits_on_gpu, there_requests)
        assert torch.equal(free.cpu(), trie.mask(states, level))
        assert torch.equal(bound.cpu(), trie.mask(states, level, limits, requests))
        taken = torch.cat([codes[picks, level], torch.zeros(1, dtype=torch.int32)]).long()
        states = trie.step(states, taken, level)
        assert torch.equal(on_gpu.step(there, taken.to(cuda), level).cpu(), states)
    rows = on_gpu.item_rows(states.to(cuda)).cpu()
    assert rows.tolist() == [*(picks + 1).tolist(), 0]


def test_a_captured_search_follows_new_prefixes_and_masks(cuda: torch.device) -> None:
    sizes = (30, 30, 30)
    codes = torch.randint(30, (4_000, 3)).unique(dim=0).to(cuda)
    trie = Trie.build(codes, sizes)
    allowed = torch.ones(1, trie.num_item_rows, dtype=torch.bool, device=cuda)
    taken = codes[:50].long()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def search() -> tuple[torch.Tensor, ...]:
        limits = trie.restrict_rows(allowed)
        states, masks = trie.start(50), []
        for level in range(3):
            masks.append(trie.mask(states, level, limits))
            states = trie.step(states, taken[:, level], level)
        return (*masks, trie.item_rows(states))

    with torch.cuda.stream(stream):
        search()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = search()
    taken.copy_(codes[100:150])
    allowed.copy_(torch.rand(allowed.shape, device=cuda) < 0.1)
    graph.replay()
    found = [part.clone() for part in captured]
    for replayed, expected in zip(found, search(), strict=True):
        assert torch.equal(replayed, expected)
