"""Published semantic IDs by item id: who may write, and what a damaged store says."""

from pathlib import Path

import pytest
import torch

from pipelines.semantic_ids.store import ITEM_IDS, SemanticIdStore
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.lifecycle import append
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig

VECTORS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
ITEM_IDS_OF_10 = [f"item-{number}" for number in range(10)]
ORIGIN = {"encoder": "made-up", "dim": 4, "settings": {}}


@pytest.fixture(scope="module")
def quantizer() -> ResidualKMeans:
    return ResidualKMeans.fit(VECTORS, ResidualKMeansConfig(level_sizes=(4, 4, 4)))


@pytest.fixture(scope="module")
def first(quantizer: ResidualKMeans) -> SemanticIds:
    nothing = SemanticIds(
        codes=torch.full((1, 3), -1, dtype=torch.int32),
        level_sizes=(4, 4, 4),
        quantizer_digest=quantizer.digest,
    )
    grown = append(nothing, quantizer, VECTORS[:10])
    return SemanticIds(codes=grown.codes, level_sizes=(4, 4, 4), quantizer_digest=quantizer.digest)


@pytest.fixture
def store(tmp_path: Path, first: SemanticIds, quantizer: ResidualKMeans) -> SemanticIdStore:
    store = SemanticIdStore(tmp_path / "semantic_ids")
    store.publish(first, quantizer, ITEM_IDS_OF_10, ORIGIN)
    return store


def test_version_that_does_not_know_the_published_one_is_refused(store, first, quantizer):
    names = [*ITEM_IDS_OF_10, "new"]
    sibling = append(first, quantizer, VECTORS[11:])
    store.publish(append(first, quantizer, VECTORS[10:11]), quantizer, names, ORIGIN)
    now = store.current()
    with pytest.raises(ValueError, match=f"follow version {first.version[:12]}.*at {now[:12]}"):
        store.publish(sibling, quantizer, [*ITEM_IDS_OF_10, "other"], ORIGIN)
    with pytest.raises(ValueError, match="published meanwhile"):
        store.publish(sibling, quantizer, [*reversed(names), "other"], ORIGIN)
    assert SemanticIdStore(store.directory).item_ids == names
    assert store.current() == now


def test_current_version_leads_from_what_it_appends_to_alone(store, first, quantizer):
    appended = append(first, quantizer, VECTORS[10:11])
    store.publish(appended, quantizer, [*ITEM_IDS_OF_10, "new"], ORIGIN)
    assert store.leads_from(first.version)
    assert store.leads_from(appended.version)

    other = ResidualKMeans.fit(VECTORS, ResidualKMeansConfig(level_sizes=(4, 4, 4), seed=5))
    refit = SemanticIds(
        codes=appended.codes,
        level_sizes=(4, 4, 4),
        quantizer_digest=other.digest,
        parent=appended.version,
    )
    store.publish(refit, other, [*ITEM_IDS_OF_10, "new"], ORIGIN)
    assert store.leads_from(refit.version)
    assert not store.leads_from(appended.version)
    assert not store.leads_from(first.version)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "damaged"), ('{"a": 1}', "list of different"), ('["a", "a"]', "list of different")],
)
def test_damaged_numbering_is_refused(store, text, message):
    (store.directory / ITEM_IDS).write_text(text)
    with pytest.raises(ValueError, match=message):
        SemanticIdStore(store.directory)
