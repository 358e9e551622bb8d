from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import recsys.semantic_ids.trie as trie_module
from recsys.semantic_ids.trie import DEAD, Trie

Catalogue = tuple[tuple[int, ...], list[tuple[int, ...]], list[int]]


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    """Level sizes, unique IDs and their rows, in any order; often few IDs in many cells."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple))
    one_id = st.tuples(*(st.integers(0, size - 1) for size in sizes))
    ids = draw(st.lists(one_id, unique=True, max_size=40))
    rows = draw(st.permutations(range(1, len(ids) + 4)))[: len(ids)]
    return sizes, ids, list(rows)


def tensor_of(ids: list[tuple[int, ...]], sizes: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int32).view(len(ids), len(sizes))


def build(catalogue: Catalogue) -> Trie:
    sizes, ids, rows = catalogue
    return Trie.build(tensor_of(ids, sizes), sizes, item_rows=torch.tensor(rows), num_item_rows=44)


def walk(trie: Trie, codes: torch.Tensor) -> torch.Tensor:
    """Step from the start through codes [B, l]: states after l codes, [B]."""
    states = trie.start(len(codes))
    for level in range(codes.shape[1]):
        states = trie.step(states, codes[:, level].long(), level)
    return states


def check_against_all_items(trie: Trie, ids: dict[int, tuple[int, ...]], random: int) -> None:
    """Compare with a look at every item: all prefixes there are, dead ones, two requests."""
    generator = np.random.default_rng(random)
    allowed = generator.random((2, trie.num_item_rows)) < 0.4
    restriction = trie.restrict_rows(torch.from_numpy(allowed))
    for level, size in enumerate(trie.level_sizes):
        prefixes = sorted({codes[:level] for codes in ids.values()}) or [()] * (level == 0)
        states = torch.cat([walk(trie, tensor_of(prefixes, (0,) * level)), torch.tensor([DEAD])])
        for request in (None, 0, 1):
            expected = torch.zeros(len(states), size, dtype=torch.bool)
            for row, codes in ids.items():
                if request is None or allowed[request, row]:
                    expected[prefixes.index(codes[:level]), codes[level]] = True
            if request is None:
                found = trie.mask(states, level)
            else:
                found = trie.mask(states, level, restriction, torch.full_like(states, request))
            assert torch.equal(found, expected)
        everywhere = states.repeat_interleave(size)
        codes = torch.arange(size).repeat(len(states))
        lives = trie.step(everywhere, codes, level) != DEAD
        assert torch.equal(lives.view(-1, size), trie.mask(states, level))
    every = tensor_of(list(ids.values()), trie.level_sizes)
    assert trie.item_rows(walk(trie, every)).tolist() == list(ids)


@pytest.mark.parametrize("mask_cells", [trie_module.MASK_CELLS, 0])
@given(catalogue=catalogues(), random=st.integers(0, 1_000))
@settings(max_examples=100, deadline=None)
def test_masks_and_steps_agree_with_a_look_at_every_item(
    mask_cells: int, catalogue: Catalogue, random: int
) -> None:
    _, ids, rows = catalogue
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trie_module, "MASK_CELLS", mask_cells)
        trie = build(catalogue)
    check_against_all_items(trie, dict(zip(rows, ids, strict=True)), random)
