from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys.semantic_ids.quality import purity
from recsys.semantic_ids.quantizers import load_quantizer
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from recsys.semantic_ids.rq_vae import RqVae, RqVaeConfig, rotate_onto

TINY = RqVaeConfig(
    level_sizes=(16, 16),
    hidden_dims=(32,),
    latent_dim=8,
    num_steps=250,
    batch_rows=256,
    restart_every=20,
)


def clustered(num_rows: int = 1000, dim: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(30, dim, generator=generator)
    chosen = torch.randint(30, (num_rows,), generator=generator)
    return centres[chosen] + 0.2 * torch.randn(num_rows, dim, generator=generator)


def error(quantizer: RqVae, vectors: Tensor) -> float:
    rebuilt = quantizer.decode(quantizer.encode(vectors))
    return float((vectors - rebuilt).square().sum() / (vectors - vectors.mean(0)).square().sum())


def test_the_rotation_gives_the_code_vector_and_turns_the_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(5, 3, generator=generator, dtype=torch.float64).requires_grad_()
    code = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    out = rotate_onto(latent, code)
    assert torch.allclose(out, code)
    # A gradient along the code vector arrives along the latent, stretched by the ratio of norms.
    (out * code).sum().backward()
    ratio = code.norm(dim=1, keepdim=True) / latent.detach().norm(dim=1, keepdim=True)
    expected = ratio**2 * latent.detach()
    assert latent.grad is not None
    assert torch.allclose(latent.grad, expected)


@pytest.mark.parametrize("gradient", ["straight_through", "rotation"])
def test_training_lowers_the_error_and_uses_all_codes(gradient: str) -> None:
    vectors = clustered()
    config = replace(TINY, gradient=gradient)  # type: ignore[arg-type]
    untrained = RqVae.fit(vectors, replace(config, num_steps=1))
    trained = RqVae.fit(vectors, config)
    assert error(trained, vectors) < 0.6 * error(untrained, vectors)
    codes = trained.encode(vectors)
    assert [len(codes[:, level].unique()) for level in range(2)] == [16, 16]


def test_no_seed_collapses() -> None:
    vectors = clustered()
    for seed in range(10):
        codes = RqVae.fit(vectors, replace(TINY, seed=seed)).encode(vectors)
        used = [len(codes[:, level].unique()) for level in range(2)]
        assert min(used) >= 15, f"seed {seed} uses {used} of 16 codes"


def test_pairs_make_codes_tell_who_is_used_together() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(800, 16, generator=generator)
    # People see a difference that is a small part of the content: the sign of one number in 16.
    side = vectors[:, 0] > 0
    sides = [side.nonzero().flatten(), (~side).nonzero().flatten()]
    pairs = torch.cat(
        [rows[torch.randint(len(rows), (1000, 2), generator=generator)] for rows in sides]
    )
    config = replace(TINY, contrastive_weight=1.0)
    purities = []
    for used in (None, pairs):
        codes = RqVae.fit(vectors, config, pairs=used).encode(vectors)[:, 0]
        purities.append(purity(codes.long(), side.long()))
    assert purities[1] > purities[0] + 0.1


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_seed_alone() -> None:
    vectors = clustered()
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second = (RqVae.fit(vectors, replace(TINY, num_steps=20)) for _ in range(2))
    assert first.digest == second.digest
    assert torch.equal(torch.rand(1), expected)


def test_a_warm_start_keeps_most_codes() -> None:
    vectors = clustered()
    first = RqVae.fit(vectors, TINY)
    warm = RqVae.fit(vectors[:900], replace(TINY, num_steps=20, learning_rate=1e-4), start=first)
    kept = (warm.encode(vectors) == first.encode(vectors)).all(1).float().mean()
    assert float(kept) > 0.8


def test_a_start_of_another_kind_or_shape_is_refused() -> None:
    vectors = clustered()
    other = ResidualKMeans.fit(vectors, ResidualKMeansConfig(level_sizes=(16, 16)))
    with pytest.raises(ValueError, match="start is a ResidualKMeans"):
        RqVae.fit(vectors, TINY, start=other)
    first = RqVae.fit(vectors, replace(TINY, num_steps=1))
    with pytest.raises(ValueError, match="start has levels"):
        RqVae.fit(vectors, replace(TINY, latent_dim=4), start=first)
    with pytest.raises(ValueError, match="residual k-means starts from"):
        ResidualKMeans.fit(vectors, ResidualKMeansConfig(level_sizes=(16, 16)), start=first)


def test_a_saved_quantizer_encodes_alike_and_codes_can_be_renamed(tmp_path: Path) -> None:
    vectors = clustered()
    quantizer = RqVae.fit(vectors, replace(TINY, num_steps=20))
    quantizer.save(tmp_path)
    loaded = load_quantizer(tmp_path)
    codes = quantizer.encode(vectors)
    assert loaded.digest == quantizer.digest
    assert torch.equal(loaded.encode(vectors), codes)
    renamed = quantizer.relabelled([torch.arange(16).flip(0)] * 2)
    assert torch.equal(renamed.encode(vectors), 15 - codes)
    distances = quantizer.level_distances(vectors, codes[:, :1])
    assert torch.equal(distances.argmin(1).int(), codes[:, 1])


def test_bad_vectors_and_pairs_are_refused() -> None:
    vectors = clustered()
    with pytest.raises(ValueError, match="15 vectors are fewer than the 16 codes"):
        RqVae.fit(vectors[:15], TINY)
    with pytest.raises(ValueError, match=r"numbers in \[0, 1000\)"):
        RqVae.fit(vectors, TINY, pairs=torch.tensor([[0, 1000]]))
    quantizer = RqVae.fit(vectors, replace(TINY, num_steps=1))
    vectors[4, 0] = torch.nan
    with pytest.raises(ValueError, match="vector 4 is not finite"):
        quantizer.encode(vectors)
    with pytest.raises(ValueError, match="8 wide"):
        quantizer.encode(vectors[:, :8])


def test_another_kind_of_artefact_is_refused(tmp_path: Path) -> None:
    vectors = clustered()
    RqVae.fit(vectors, replace(TINY, num_steps=1)).save(tmp_path)
    with pytest.raises(ValueError, match="of kind 'rq_vae', expected 'rq_kmeans'"):
        ResidualKMeans.load(tmp_path)
    path = tmp_path / "quantizer.json"
    path.write_text(path.read_text().replace('"rq_vae"', '"rq_next"'))
    with pytest.raises(ValueError, match="kind 'rq_next', this version reads"):
        load_quantizer(tmp_path)
