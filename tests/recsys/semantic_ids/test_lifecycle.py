from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipelines.semantic_ids.store import VersionStore
from recsys.semantic_ids.codes import NO_CODE, SemanticIds
from recsys.semantic_ids.collisions import assign_semantic_ids
from recsys.semantic_ids.lifecycle import align, append
from recsys.semantic_ids.rq_kmeans import KMeansConfig, ResidualKMeans, ResidualKMeansConfig
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics


SIZES = (8, 8, 8)


@cache
def vectors() -> Tensor:
    """Content of 300 items in 40 clusters, row 0 zero, [301, 6]."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(40, 6, generator=generator)
    items = centres[torch.randint(40, (300,), generator=generator)]
    items = items + 0.2 * torch.randn(300, 6, generator=generator)
    return torch.cat([torch.zeros(1, 6), items])


def fit(rows: Tensor, seed: int = 0, start: ResidualKMeans | None = None) -> ResidualKMeans:
    config = ResidualKMeansConfig(level_sizes=SIZES, seed=seed, kmeans=KMeansConfig(num_steps=8))
    return ResidualKMeans.fit(rows[1:], config, start=start)


@cache
def quantizer() -> ResidualKMeans:
    return fit(vectors())


def published(count: int) -> SemanticIds:
    return assign_semantic_ids(quantizer(), vectors()[: count + 1])


@given(cuts=st.lists(st.integers(1, 300), min_size=2, max_size=4, unique=True).map(sorted))
@settings(max_examples=25, deadline=None)
def test_append_never_moves_an_id(cuts: list[int]) -> None:
    ids = published(cuts[0])
    for before, after in pairwise(cuts):
        grown = append(ids, quantizer(), vectors()[before + 1 : after + 1])
        assert torch.equal(grown.codes[: before + 1], ids.codes)
        assert len(grown.item_rows) == after
        assert grown.parent == ids.version
        ids = grown


def test_append_fills_rows_that_have_no_id_and_refuses_published_ones() -> None:
    whole, lacking = published(20), torch.tensor([4, 7])
    ids = whole.updated(lacking, torch.full((2, whole.num_levels), NO_CODE))
    content, other = vectors()[[7, 4]], fit(vectors(), seed=5)

    def to_rows(*rows: int) -> SemanticIds:
        return append(ids, quantizer(), content, item_rows=torch.tensor(rows))

    assert to_rows(7, 4).item_rows.tolist() == list(range(1, 21))
    assert_refused(
        {
            f"item row 3 has the ID {ids.text(3)} already": lambda: to_rows(7, 3),
            f"{ids.quantizer_digest}, this is {other.digest}": lambda: append(ids, other, content),
        }
    )


def test_align_counts_only_items_in_both_and_reports_what_it_improves() -> None:
    old = published(250)
    refit = fit(vectors()[30:], seed=4)
    content = vectors().clone()
    content[:30] = 0
    found = align(assign_semantic_ids(refit, content), refit, old)
    assert found.kept.num_items == 250 - 29
    assert found.kept.full >= found.before.full
    assert found.kept.per_prefix[0] > 0.4 > found.before.per_prefix[0]
    assert found.kept.per_prefix[-1] == found.kept.full
    other = ResidualKMeans(quantizer().levels[:-1])
    with pytest.raises(ValueError, match="cannot be aligned"):
        align(assign_semantic_ids(other, vectors()[:40]), other, old)


def test_store_publishes_and_keeps_every_version(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    assert_refused({"no current semantic IDs": store.load})
    first = published(100)
    second = append(first, quantizer(), vectors()[101:])
    for ids in (first, second):
        store.publish(ids, quantizer())
    assert store.load().version == second.version
    assert ResidualKMeans.load(store.path_of() / "quantizer").digest == quantizer().digest
    assert store.versions() == sorted([first.version, second.version])
    assert store.load(first.version).text(7) == second.text(7)
    assert store.history() == [first.version, second.version]
    assert_refused({"semantic IDs nonsense are not in": lambda: store.load("nonsense")})


def test_store_refuses_damage_and_a_kill_leaves_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, first = VersionStore(tmp_path), published(100)
    second, other = append(first, quantizer(), vectors()[101:]), fit(vectors(), seed=5)
    store.publish(first, quantizer())
    with monkeypatch.context() as patch:
        patch.setattr(ResidualKMeans, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.publish(second, quantizer())
    assert store.load().version == first.version
    assert store.versions() == [first.version]
    store.publish(second, quantizer())
    place = store.path_of(first.version)
    for path in store.path_of(second.version).glob("semantic_ids.*"):
        (place / path.name).write_bytes(path.read_bytes())
    damaged = f"{second.version}, expected {first.version}"
    assert_refused(
        {
            "publish IDs together": lambda: store.publish(first, other),
            damaged: lambda: store.load(first.version),
        }
    )
    assert store.load().version == second.version
    (tmp_path / "current").write_text("[")
    assert_refused({"damaged": store.load})
