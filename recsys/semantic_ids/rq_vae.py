"""RQ-VAE: an autoencoder whose middle is residual codes (arXiv:2107.03312, TIGER arXiv:2305.05065).

Gradients pass the codes straight through, or turned and stretched as the latent is turned onto its
code vector (the rotation trick, arXiv:2410.06424). Codebooks begin as k-means of the first latents,
codes that nothing uses restart at latents, so that no level collapses. Pairs of items that people
use together can pull codes together (InfoNCE), so that IDs carry behaviour as well as content.

Axes: N items, B batch, L levels, K codes per level, D width of the vectors, Z width of the latent.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.semantic_ids.codes import Quantizer, check_level_sizes
from recsys.semantic_ids.kmeans import Centres, KMeansConfig
from recsys.semantic_ids.rq_kmeans import (
    CHUNK_ROWS,
    FILE_NAME,
    ResidualKMeans,
    ResidualKMeansConfig,
    check_vectors,
)
from recsys.semantic_ids.tensor_file import digest_of, read_tensors, write_tensors

KIND = "rq_vae"
INITIAL_ROWS = 32_768
"""The first latents that k-means sees."""
POLISH_ROWS = 131_072
"""The last latents that k-means sees."""


@dataclass(frozen=True, kw_only=True)
class RqVaeConfig:
    """Shape and training; ``commitment`` weighs how strongly latents are held to their codes.

    ``contrastive_weight`` acts only where ``fit`` is given pairs. Every ``restart_every`` steps
    codes that no latent of those steps used restart.
    """

    level_sizes: tuple[int, ...] = (256, 256, 256)
    hidden_dims: tuple[int, ...] = (512, 256)
    latent_dim: int = 64
    gradient: Literal["straight_through", "rotation"] = "straight_through"
    commitment: float = 0.25
    contrastive_weight: float = 0.1
    temperature: float = 0.1
    num_steps: int = 1000
    batch_rows: int = 1024
    learning_rate: float = 1e-3
    restart_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        check_level_sizes(self.level_sizes)
        if self.gradient not in ("straight_through", "rotation"):
            raise ValueError(f"gradient {self.gradient!r} must be 'straight_through' or 'rotation'")
        numbers = {
            "latent_dim": self.latent_dim,
            "num_steps": self.num_steps,
            "batch_rows": self.batch_rows,
            "learning_rate": self.learning_rate,
            "restart_every": self.restart_every,
            "temperature": self.temperature,
        }
        wrong = {name: value for name, value in numbers.items() if value <= 0}
        if wrong or min(self.commitment, self.contrastive_weight) < 0:
            raise ValueError(
                f"{wrong or {'commitment': self.commitment}} must be > 0 (the weights >= 0)"
            )


def rotate_onto(latent: Tensor, code_vector: Tensor) -> Tensor:
    """Return ``code_vector`` [B, Z], with gradients to ``latent`` as if turned and stretched.

    The turn takes the latent's direction onto the code vector's and counts as constant.
    """
    latent_norm = latent.norm(dim=1, keepdim=True).clamp(min=1e-6)
    code_norm = code_vector.norm(dim=1, keepdim=True).clamp(min=1e-6)
    from_unit = (latent / latent_norm).detach()
    to_unit = (code_vector / code_norm).detach()
    middle = functional.normalize(from_unit + to_unit, dim=1)
    turned = (
        latent
        - 2 * (latent * middle).sum(1, keepdim=True) * middle
        + 2 * (latent * from_unit).sum(1, keepdim=True) * to_unit
    )
    return cast(Tensor, turned * (code_norm / latent_norm).detach())


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(before, after))
        if index + 2 < len(widths):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class _Network(nn.Module):
    """Encoder, codebooks and decoder with their gradients."""

    mean: Tensor
    scale: Tensor

    def __init__(self, dim: int, config: RqVaeConfig) -> None:
        super().__init__()
        widths = (dim, *config.hidden_dims, config.latent_dim)
        self.encoder = _perceptron(widths)
        self.decoder = _perceptron(widths[::-1])
        self.codebooks = nn.ParameterList(
            [nn.Parameter(torch.zeros(size, config.latent_dim)) for size in config.level_sizes]
        )
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(()))

    def latents(self, vectors: Tensor) -> Tensor:
        """Map vectors [B, D] to latents [B, Z]."""
        return cast(Tensor, self.encoder((vectors.float() - self.mean) / self.scale))

    def vectors(self, latents: Tensor) -> Tensor:
        """Map latents [B, Z] to vectors [B, D]."""
        return cast(Tensor, self.decoder(latents)) * self.scale + self.mean

    def residual(self) -> ResidualKMeans:
        """View the codebooks as a quantiser of latents."""
        levels = [
            Centres(book.detach(), torch.zeros(len(book), device=book.device))
            for book in self.codebooks
        ]
        return ResidualKMeans(levels)

    @torch.no_grad()
    def set_codebooks(self, quantizer: ResidualKMeans) -> None:
        for book, level in zip(self.codebooks, quantizer.levels, strict=True):
            book.copy_(level.vectors)


def _sample(num_rows: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(num_rows, (count,), generator=generator)


class _Trainer:
    """One fit: the losses of a step, and the codes that restart."""

    def __init__(self, network: _Network, config: RqVaeConfig, generator: torch.Generator) -> None:
        self.network, self.config, self.generator = network, config, generator
        self.used = [torch.zeros(size, dtype=torch.bool) for size in config.level_sizes]

    def quantized(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return code vectors' sum with gradients to the latents, [B, Z], and the code loss."""
        residual, total, loss = latents, torch.zeros_like(latents), latents.new_zeros(())
        codes = self.network.residual().encode(latents.detach())
        for level, book in enumerate(self.network.codebooks):
            chosen = codes[:, level].long()
            self.used[level][chosen.cpu()] = True
            code_vectors = book[chosen]
            to_code = functional.mse_loss(code_vectors, residual.detach())
            to_latent = functional.mse_loss(residual, code_vectors.detach())
            loss = loss + to_code + self.config.commitment * to_latent
            residual = residual - code_vectors.detach()
            total = total + code_vectors.detach()
        if self.config.gradient == "rotation":
            return rotate_onto(latents, total), loss
        return latents + (total - latents).detach(), loss

    def loss(self, batch: Tensor) -> Tensor:
        """Reconstruction of [B, D], in units of the data's variance, and the code loss."""
        latents = self.network.latents(batch)
        total, code_loss = self.quantized(latents)
        error = (self.network.vectors(total) - batch) / self.network.scale
        return error.square().mean() + code_loss

    def contrastive_loss(self, left: Tensor, right: Tensor) -> Tensor:
        """InfoNCE: the other half of a pair against those of the other pairs, both [B, D]."""
        sides = [
            functional.normalize(self.quantized(self.network.latents(side))[0], dim=1)
            for side in (left, right)
        ]
        scores = sides[0] @ sides[1].T / self.config.temperature
        target = torch.arange(len(left), device=scores.device)
        both = functional.cross_entropy(scores, target) + functional.cross_entropy(scores.T, target)
        return both / 2

    @torch.no_grad()
    def restart_unused(self, batch: Tensor) -> None:
        """Put unused codes onto residuals of the batch, drawn at random."""
        residual = self.network.latents(batch)
        for level, book in enumerate(self.network.codebooks):
            dead = (~self.used[level]).nonzero().flatten().to(book.device)
            drawn = _sample(len(batch), len(dead), self.generator).to(book.device)
            book[dead] = residual[drawn]
            distances = book.square().sum(1) - 2 * residual @ book.T
            residual = residual - book[distances.argmin(1)]
            self.used[level].zero_()


def _begin(
    vectors: Tensor, config: RqVaeConfig, start: Quantizer | None, generator: torch.Generator
) -> _Network:
    """Take over ``start``, or make a network whose codebooks are k-means of its latents."""
    dim = vectors.shape[1]
    if start is not None:
        if not isinstance(start, RqVae):
            raise ValueError(f"start is a {type(start).__name__}, an RQ-VAE starts from an RqVae")
        same = ("level_sizes", "hidden_dims", "latent_dim")
        wanted = [getattr(config, name) for name in same]
        found = [getattr(start.config, name) for name in same]
        if found != wanted or start.dim != dim:
            raise ValueError(
                f"start has levels, hidden and latent widths {found} on vectors {start.dim} wide, "
                f"the fit is to have {wanted} on {dim}; start from the same shape or fit cold"
            )
        return copy.deepcopy(start.network).to(vectors.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = _Network(dim, config).to(vectors.device)
    some = vectors[_sample(len(vectors), INITIAL_ROWS, generator).to(vectors.device)].float()
    network.mean.copy_(some.mean(0))
    network.scale.copy_((some - network.mean).square().mean().sqrt().clamp(min=1e-6))
    with torch.no_grad():
        latents = network.latents(some)
    kmeans = ResidualKMeansConfig(
        level_sizes=config.level_sizes, kmeans=KMeansConfig(num_steps=10), seed=config.seed
    )
    network.set_codebooks(ResidualKMeans.fit(latents, kmeans))
    return network


@torch.no_grad()
def _polish(network: _Network, vectors: Tensor, config: RqVaeConfig, *, is_warm: bool) -> None:
    """Fit the codebooks to the last latents by k-means, which leaves no code without items."""
    generator = torch.Generator().manual_seed(config.seed)
    some = vectors
    if len(vectors) > POLISH_ROWS:
        some = vectors[_sample(len(vectors), POLISH_ROWS, generator).to(vectors.device)]
    kmeans = KMeansConfig(num_steps=5, batch_rows=POLISH_ROWS, start_weight=1.0 if is_warm else 0.0)
    refit = ResidualKMeansConfig(level_sizes=config.level_sizes, kmeans=kmeans, seed=config.seed)
    fitted = ResidualKMeans.fit(network.latents(some), refit, start=network.residual())
    network.set_codebooks(fitted)


class RqVae:
    """A fitted RQ-VAE; lives where its weights live."""

    def __init__(self, network: _Network, config: RqVaeConfig) -> None:
        self.network = network.eval().requires_grad_(False)
        self.config = config

    @classmethod
    def fit(
        cls,
        vectors: Tensor,
        config: RqVaeConfig,
        *,
        start: Quantizer | None = None,
        pairs: Tensor | None = None,
    ) -> Self:
        """Train on vectors [N, D], on their device; warm from ``start`` where given.

        Args:
            pairs: Rows of ``vectors`` that people use together, [P, 2]; None trains on content
                alone.

        Raises:
            ValueError: Fewer vectors than codes, not finite, pairs out of range, or ``start`` has
                another shape.
        """
        check_vectors(vectors, at_least=max(config.level_sizes))
        if pairs is not None and (
            pairs.ndim != 2
            or pairs.shape[1] != 2
            or len(pairs) == 0
            or int(pairs.min()) < 0
            or int(pairs.max()) >= len(vectors)
        ):
            raise ValueError(
                f"pairs {tuple(pairs.shape)} must be one or more rows [P, 2] of numbers in "
                f"[0, {len(vectors)})"
            )
        generator = torch.Generator().manual_seed(config.seed)
        network = _begin(vectors, config, start, generator).train().requires_grad_(True)
        trainer = _Trainer(network, config, generator)
        optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
        for step in range(config.num_steps):
            rows = _sample(len(vectors), config.batch_rows, generator).to(vectors.device)
            loss = trainer.loss(vectors[rows].float())
            if pairs is not None and config.contrastive_weight > 0:
                drawn = pairs[_sample(len(pairs), config.batch_rows // 4 + 1, generator)]
                left, right = vectors[drawn.T.to(vectors.device)].float()
                contrastive = trainer.contrastive_loss(left, right)
                loss = loss + config.contrastive_weight * contrastive
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            # Not in the last tenth: a code that has just restarted has no training yet.
            is_early = step < 0.9 * config.num_steps
            if (step + 1) % config.restart_every == 0 and is_early:
                trainer.restart_unused(vectors[rows].float())
        _polish(network, vectors, config, is_warm=start is not None)
        return cls(network, config)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        return self.config.level_sizes

    @property
    def dim(self) -> int:
        return len(self.network.mean)

    @property
    def device(self) -> torch.device:
        return self.network.mean.device

    @cached_property
    def digest(self) -> str:
        return digest_of({"kind": KIND, "config": asdict(self.config)}, self.network.state_dict())

    def to(self, device: torch.device | str) -> Self:
        """Copy to a device."""
        return type(self)(copy.deepcopy(self.network).to(device), self.config)

    @torch.no_grad()
    def encode(self, vectors: Tensor) -> Tensor:
        """Encode vectors [N, D] as [N, L] int32 on their device."""
        check_vectors(vectors, self.dim)
        out = torch.empty(
            len(vectors), len(self.level_sizes), dtype=torch.int32, device=vectors.device
        )
        residual = self.network.residual()
        for codes, chunk in zip(
            torch.split(out, CHUNK_ROWS), torch.split(vectors, CHUNK_ROWS), strict=True
        ):
            codes.copy_(residual.encode(self.network.latents(chunk.to(self.device))))
        return out

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Rebuild vectors [N, D] from codes [N, l], l <= L."""
        return self.network.vectors(self.network.residual().decode(codes))

    @torch.no_grad()
    def level_distances(self, vectors: Tensor, prefix: Tensor) -> Tensor:
        latents = self.network.latents(vectors.to(self.device))
        return self.network.residual().level_distances(latents, prefix)

    def relabelled(self, new_codes: Sequence[Tensor]) -> Self:
        network = copy.deepcopy(self.network)
        network.set_codebooks(network.residual().relabelled(new_codes))
        return type(self)(network, self.config)

    def save(self, directory: Path) -> None:
        description = {"kind": KIND, "digest": self.digest, "config": asdict(self.config)}
        write_tensors(directory, FILE_NAME, self.network.state_dict(), description)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read back; raises a ValueError where the files are damaged or of another kind."""
        tensors, description = read_tensors(directory, FILE_NAME, KIND)
        known = dict(description["config"])
        for name in ("level_sizes", "hidden_dims"):
            known[name] = tuple(known[name])
        config = RqVaeConfig(**known)
        network = _Network(len(tensors["mean"]), config)
        network.load_state_dict(tensors)
        return cls(network, config)
