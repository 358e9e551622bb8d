import pytest
import torch
from torch import Tensor

from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig

pytestmark = pytest.mark.numerics

SMALL = ResidualKMeansConfig(level_sizes=(8, 8), kmeans=KMeansConfig(num_steps=10))


def two_level_world(repeats: int = 20, seed: int = 0) -> Tensor:
    """Return rows that are exactly one of 4 far centres plus one of 3 near offsets."""
    generator = torch.Generator().manual_seed(seed)
    coarse = 100 * torch.eye(8)[:4]
    fine = torch.eye(8)[4:7]
    rows = (coarse[:, None] + fine[None]).reshape(12, 8).repeat(repeats, 1)
    return rows[torch.randperm(len(rows), generator=generator)]


def clustered(num_rows: int = 2000, dim: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(40, dim, generator=generator)
    chosen = torch.randint(40, (num_rows,), generator=generator)
    return centres[chosen] + 0.3 * torch.randn(num_rows, dim, generator=generator)


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
    vectors = clustered()
    config = ResidualKMeansConfig(level_sizes=(16, 16), kmeans=KMeansConfig(batch_rows=300))
    digests = [ResidualKMeans.fit(vectors, config).digest for _ in range(2)]
    other = ResidualKMeansConfig(level_sizes=(16, 16), kmeans=KMeansConfig(batch_rows=300), seed=1)
    assert digests[0] == digests[1] != ResidualKMeans.fit(vectors, other).digest


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_is_named(value: float) -> None:
    vectors = clustered(300)
    quantizer = ResidualKMeans.fit(vectors, SMALL)
    vectors[17, 3] = value
    with pytest.raises(ValueError, match="vector 17 is not finite"):
        quantizer.encode(vectors)
    with pytest.raises(ValueError, match="vector 17 is not finite"):
        ResidualKMeans.fit(vectors, SMALL)


def test_too_few_vectors_and_another_width_are_refused() -> None:
    vectors = clustered(300)
    with pytest.raises(ValueError, match="7 vectors are fewer than the 8 codes"):
        ResidualKMeans.fit(vectors[:7], SMALL)
    with pytest.raises(ValueError, match="8 wide, the quantiser was fitted on 16"):
        ResidualKMeans.fit(vectors, SMALL).encode(vectors[:, :8])
