from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import recsys.semantic_ids.trie as trie_module
from recsys.semantic_ids.trie import DEAD, Trie
from tests.recsys.testing.refusals import assert_refused

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


def test_bad_codes_are_refused() -> None:
    def built(codes: list, *rows: int) -> Callable[[], object]:
        return lambda: Trie.build(torch.tensor(codes), (4, 4), item_rows=torch.tensor(rows))

    assert_refused(
        {
            "item rows 1 and 2 share one semantic ID": built([[0, 1], [0, 1]], 1, 2),
            r"item row 1 has codes \[0, 4\]": built([[0, 4], [1, 1]], 1, 2),
            r"item row 1 has codes \[0, -1\]": built([[0, -1], [1, 1]], 1, 2),
            "a column for each of the levels": built([[0, 1, 1]], 1),
            "item row 3 has 2 semantic IDs": built([[0, 1], [1, 1]], 3, 3),
            "row 0 is the padding": built([[0, 1]], 0),
            "one row for each of 1 codes": built([[0, 1]], 1, 2),
            "whole numbers": built([[0.5, 1]], 1),
        }
    )
