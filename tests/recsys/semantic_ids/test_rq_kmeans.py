from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recsys.semantic_ids.behaviour import behaviour_ids
from recsys.semantic_ids.lifecycle import align, append
from recsys.semantic_ids.rq_kmeans import KMeansConfig, ResidualKMeans, ResidualKMeansConfig
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics

SMALL = ResidualKMeansConfig(level_sizes=(8, 8), kmeans=KMeansConfig(num_steps=10))


def two_level_world() -> Tensor:
    """Return rows that are exactly one of 4 far centres plus one of 3 near offsets."""
    coarse, fine = 100 * torch.eye(8)[:4], torch.eye(8)[4:7]
    rows = (coarse[:, None] + fine[None]).reshape(12, 8).repeat(20, 1)
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def clustered(num_rows: int = 2000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(40, 16, generator=generator)
    chosen = torch.randint(40, (num_rows,), generator=generator)
    return centres[chosen] + 0.3 * torch.randn(num_rows, 16, generator=generator)


def error(quantizer: ResidualKMeans, vectors: Tensor) -> float:
    rebuilt = quantizer.decode(quantizer.encode(vectors))
    return float((vectors - rebuilt).square().sum() / (vectors - vectors.mean(0)).square().sum())


@pytest.mark.parametrize("balanced", [True, False])
def test_a_world_of_two_levels_is_rebuilt_exactly(balanced: bool) -> None:
    vectors = two_level_world()
    kmeans = KMeansConfig(balanced=balanced)
    quantizer = ResidualKMeans.fit(
        vectors, ResidualKMeansConfig(level_sizes=(12, 2), kmeans=kmeans)
    )
    assert error(quantizer, vectors) < (0.02 if balanced else 1e-6)


def test_encoding_is_the_nearest_code_level_by_level() -> None:
    vectors = clustered(300)
    quantizer = ResidualKMeans.fit(vectors, SMALL)
    residual = vectors.double()
    expected = []
    for level in quantizer.levels:
        book = level.vectors.double()
        code = torch.cdist(residual, book).argmin(1)
        residual = residual - book[code]
        expected.append(code)
    assert torch.equal(quantizer.encode(vectors).long(), torch.stack(expected, dim=1))


def test_balanced_codes_are_used_more_evenly() -> None:
    generator = torch.Generator().manual_seed(1)
    # Nine tenths of the rows lie in one of ten clusters.
    centres = torch.randn(10, 16, generator=generator)
    chosen = torch.cat([torch.zeros(3600, dtype=torch.int64), torch.arange(400) % 10])
    vectors = 3 * centres[chosen] + torch.randn(4000, 16, generator=generator)
    largest = []
    for balanced in (False, True):
        config = ResidualKMeansConfig(level_sizes=(16,), kmeans=KMeansConfig(balanced=balanced))
        codes = ResidualKMeans.fit(vectors, config).encode(vectors)[:, 0]
        largest.append(int(torch.bincount(codes, minlength=16).max()))
    assert largest[1] < largest[0]
    assert largest[1] < 2 * 4000 / 16


def test_the_same_seed_gives_the_same_quantizer_in_batches_too() -> None:
    config = ResidualKMeansConfig(level_sizes=(16, 16), kmeans=KMeansConfig(batch_rows=300))
    first, again, other = (
        ResidualKMeans.fit(clustered(), replace(config, seed=seed)).digest for seed in (0, 0, 1)
    )
    assert first == again != other


def test_vectors_that_do_not_fit_are_refused() -> None:
    vectors = clustered(300)
    quantizer, spoilt = ResidualKMeans.fit(vectors, SMALL), vectors.clone()
    assert_refused(
        {
            "7 vectors are fewer than the 8 codes": lambda: ResidualKMeans.fit(vectors[:7], SMALL),
            "8 wide, the quantiser was fitted on 16": lambda: quantizer.encode(vectors[:, :8]),
        }
    )
    for value in (torch.nan, torch.inf):
        spoilt[17, 3] = value
        for call in (quantizer.encode, lambda rows: ResidualKMeans.fit(rows, SMALL)):
            with pytest.raises(ValueError, match="vector 17 is not finite"):
                call(spoilt)


NUM_GROUPS, OF_EACH = 4, 10
CONFIG = ResidualKMeansConfig(level_sizes=(4, 4, 4))


def two_views() -> tuple[Tensor, Tensor, Tensor]:
    """Make items of four groups, their behaviour, and content of another width that tells them."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.cat([torch.tensor([0]), torch.arange(NUM_GROUPS).repeat(OF_EACH)])
    centres = torch.eye(NUM_GROUPS)[groups]
    behaviour = 5 * centres + 0.1 * torch.randn(len(groups), NUM_GROUPS, generator=generator)
    content = torch.cat([3 * centres, torch.randn(len(groups), 2, generator=generator)], dim=1)
    behaviour[0], content[0] = 0, 0
    return groups, behaviour, content


def test_items_that_are_taken_alike_share_their_first_code() -> None:
    groups, behaviour, content = two_views()
    ids, _ = behaviour_ids(behaviour, content, CONFIG)
    first = [ids.codes[1:, 0][groups[1:] == group].unique().tolist() for group in range(NUM_GROUPS)]
    assert sorted(first) == [[0], [1], [2], [3]]
    assert ids.num_item_rows == len(groups)
    assert ids.codes[0].tolist() == [-1, -1, -1]


def test_a_new_item_gets_the_first_code_of_items_with_content_like_its_own() -> None:
    groups, behaviour, content = two_views()
    made = behaviour_ids(behaviour, content, CONFIG)
    new = torch.zeros(NUM_GROUPS, 6)
    new[:, :NUM_GROUPS] = 3 * torch.eye(NUM_GROUPS)
    rows = len(groups) + torch.arange(NUM_GROUPS)
    grown = append(made.ids, made.quantizer, new, item_rows=rows)
    assert torch.equal(grown.codes[: len(groups)], made.ids.codes)
    for group in range(NUM_GROUPS):
        expected = made.ids.codes[1:, 0][groups[1:] == group][0]
        assert grown.codes[rows[group], 0] == expected


@pytest.mark.parametrize("balanced", [False, True])
def test_a_refit_starts_from_published_codes_whatever_axes_behaviour_has(balanced: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    behaviour = torch.randn(301, 8, generator=generator)
    content = torch.randn(301, 5, generator=generator)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
    later = behaviour @ turn + 0.05 * torch.randn(301, 8, generator=generator)
    kmeans = KMeansConfig(balanced=balanced)
    config = ResidualKMeansConfig(level_sizes=(16, 16, 16), kmeans=kmeans)
    published = behaviour_ids(behaviour, content, config).ids
    warm, cold = (
        behaviour_ids(later, content, replace(config, seed=9), start=start)
        for start in (published, None)
    )
    kept = [align(made.ids, made.quantizer, published).kept.full for made in (warm, cold)]
    assert kept[0] > 0.6 > 0.3 > kept[1]
