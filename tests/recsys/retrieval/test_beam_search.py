from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.data.top_k import ItemMask, TopK
from recsys.retrieval.beam_search import Beams, BeamSearch, Decoded, check_scores
from recsys.semantic_ids.trie import Trie
from tests.recsys.semantic_ids.test_trie import catalogues
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics

NUM_ROWS = 44
Ids = dict[int, tuple[int, ...]]


class Tables(NamedTuple):
    """Logits of every prefix, read as a number, for each level: [B, prefixes, K] each."""

    logits: tuple[Tensor, ...]


def decode_table(tables: Tables, beams: Beams[Tensor] | None, /) -> Decoded[Tensor]:
    """Decode with a table instead of a model; the state is each beam's prefix."""
    if beams is None:
        batch_size = len(tables.logits[0])
        prefixes = torch.zeros(batch_size, 1, dtype=torch.int64)
        return Decoded(tables.logits[0], prefixes)
    size = tables.logits[beams.level - 1].shape[2]
    prefixes = beams.state.gather(1, beams.parents) * size + beams.codes
    logits = tables.logits[beams.level]
    wanted = prefixes[:, :, None].expand(-1, -1, logits.shape[2])
    return Decoded(logits.gather(1, wanted), prefixes)


def draw_tables(sizes: tuple[int, ...], batch_size: int, seed: int, coarse: bool) -> Tables:
    """Draw logits; coarse ones are few different numbers, so that many items tie."""
    generator = torch.Generator().manual_seed(seed)
    logits, prefixes = [], 1
    for size in sizes:
        drawn = torch.randn(batch_size, prefixes, size, generator=generator)
        logits.append(drawn.sign() if coarse else drawn)
        prefixes *= size
    return Tables(tuple(logits))


def prefix_scores(tables: Tables, ids: Ids, request: int) -> dict[tuple[int, ...], Tensor]:
    """Score every prefix of a request, one addition at a time."""
    scores = {(): torch.zeros(())}
    for level, logits in enumerate(tables.logits):
        size = logits.shape[2]
        for number, prefix in enumerate([prefix for prefix in scores if len(prefix) == level]):
            row = logits[request, number]
            following = {codes[level] for codes in ids.values() if codes[:level] == prefix}
            is_rival = torch.tensor([code in following for code in range(size)])
            row = row.masked_fill(~is_rival, -torch.inf)
            row = row.log_softmax(0)
            scores |= {(*prefix, code): scores[prefix] + row[code] for code in range(size)}
    return scores


def plain_beam_search(
    tables: Tables, ids: Ids, k: int, masks: list[ItemMask] | None, beam_width: int, request: int
) -> tuple[list[int], list[float]]:
    """Search with lists: best prefixes by score, then code; best items by score, then row."""
    scores = prefix_scores(tables, ids, request)
    live = {
        codes: row
        for row, codes in ids.items()
        if masks is None or masks[request].allows(np.array([row]))[0]
    }
    beams = {()}
    for level in range(len(tables.logits) - 1):
        following = {codes[: level + 1] for codes in live if codes[:level] in beams}
        ranked = sorted(following, key=lambda prefix: (-float(scores[prefix]), prefix))
        beams = set(ranked[:beam_width])
    reached = {row: float(scores[codes]) for codes, row in live.items() if codes[:-1] in beams}
    rows = sorted(reached, key=lambda row: (-reached[row], row))[:k]
    return rows, [reached[row] for row in rows]


class Case(NamedTuple):
    """A random model, catalogue and requests."""

    ids: Ids
    trie: Trie
    tables: Tables
    masks: list[ItemMask] | None
    k: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes, codes, rows = draw(catalogues())
    ids, batch_size = dict(zip(rows, codes, strict=True)), draw(st.integers(1, 3))
    tables = draw_tables(sizes, batch_size, draw(st.integers(0, 10_000)), draw(st.booleans()))
    share = draw(st.sampled_from([None, 0.0, 0.1, 0.5]))
    generator = np.random.default_rng(draw(st.integers(0, 1_000)))
    masks = None
    if share is not None:
        masks = [ItemMask(generator.random(NUM_ROWS) < share) for _ in range(batch_size)]
    return Case(ids, trie_of(ids, sizes), tables, masks, draw(st.integers(1, 35)))


def trie_of(ids: Ids, sizes: tuple[int, ...]) -> Trie:
    codes = torch.tensor(list(ids.values()), dtype=torch.int32).view(len(ids), len(sizes))
    rows = torch.tensor(list(ids), dtype=torch.int64)
    return Trie.build(codes, sizes, item_rows=rows, num_item_rows=NUM_ROWS)


def search_table(case: Case, beam_width: int) -> TopK:
    found = BeamSearch(decode_table, case.trie, beam_width=beam_width)
    restriction = None
    if case.masks is not None:
        allowed = torch.stack([mask.as_bool() for mask in case.masks])
        restriction = case.trie.restrict_rows(allowed)
    return check_scores(found.lists(case.tables, case.k, restriction))


@given(cases(), st.sampled_from([1, 2, 3, 6, 30]))
@settings(max_examples=200, deadline=None)
def test_any_beam_keeps_what_a_search_with_lists_keeps(case: Case, beam_width: int) -> None:
    found = search_table(case, beam_width)
    for request in range(len(found.scores)):
        rows, scores = plain_beam_search(
            case.tables, case.ids, case.k, case.masks, beam_width, request
        )
        holes = case.k - len(rows)
        assert found.item_rows[request].tolist() == rows + [-1] * holes
        assert found.scores[request].tolist() == scores + [-torch.inf] * holes


def test_what_does_not_fit_is_refused() -> None:
    sizes = (2, 3)
    trie = trie_of({1: (0, 0), 5: (1, 2)}, sizes)

    search = BeamSearch(decode_table, trie, beam_width=2)
    tables = draw_tables(sizes, 2, 0, False)
    assert_refused({"k, the list length, must be >= 1, got 0": lambda: search.lists(tables, 0)})


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_nan_of_a_model_is_refused_with_the_request_named(level: int, sign: int) -> None:
    sizes = (3, 3)
    codes = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    search = BeamSearch(decode_table, Trie.build(codes, sizes), beam_width=2)
    tables = draw_tables(sizes, 3, 0, False)
    tables.logits[level][1, 0, 2] = sign * torch.nan
    tables.logits[0][1, 0, 0] += 5.0
    with pytest.raises(ValueError, match="logits for request 1 hold NaN"):
        check_scores(search.lists(tables, 4))
