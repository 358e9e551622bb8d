"""Residual k-means: each level's codebook is fitted to what the levels before it left over.

Also called multi-stage or residual quantisation (Juang and Gray 1982; Chen et al. 2010); semantic
IDs of OneRec (arXiv:2502.18965) are made this way. Encoding is greedy, so a prefix of the codes is
the encoding by the first levels and items near each other share it.

Axes: N items, L levels, K codes per level, D width, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from recsys.semantic_ids.codes import check_level_sizes
from recsys.semantic_ids.kmeans import (
    Centres,
    KMeansConfig,
    chunk_rows,
    fit_centres,
    nearest,
    partial_distances,
    subtract_nearest,
)
from recsys.semantic_ids.tensor_file import digest_of, read_tensors, write_tensors

KIND = "rq_kmeans"
FILE_NAME = "quantizer"
CHUNK_ROWS = 131_072
"""Rows checked and compared at a time, so that no copy exists of all rows."""


@dataclass(frozen=True, kw_only=True)
class ResidualKMeansConfig:
    """Levels, and how each is fitted; ``max_train_rows`` rows, drawn once, fit the codebooks."""

    level_sizes: tuple[int, ...] = (256, 256, 256)
    kmeans: KMeansConfig = field(default_factory=KMeansConfig)
    max_train_rows: int = 524_288
    seed: int = 0

    def __post_init__(self) -> None:
        check_level_sizes(self.level_sizes)
        if self.max_train_rows < max(self.level_sizes):
            raise ValueError(
                f"max_train_rows {self.max_train_rows} must be at least the largest level, "
                f"{max(self.level_sizes)}"
            )


def check_vectors(vectors: Tensor, dim: int | None = None, at_least: int = 0) -> None:
    """Refuse vectors that cannot be encoded or fitted."""
    if vectors.ndim != 2 or not vectors.is_floating_point():
        raise ValueError(
            f"vectors {tuple(vectors.shape)} {vectors.dtype} must be a matrix [N, D] of floats"
        )
    if dim is not None and vectors.shape[1] != dim:
        raise ValueError(
            f"vectors are {vectors.shape[1]} wide, the quantiser was fitted on {dim}; encode the "
            "items with the same content encoder or fit again"
        )
    if len(vectors) < at_least:
        raise ValueError(
            f"{len(vectors)} vectors are fewer than the {at_least} codes of the largest level; "
            f"use level_sizes of at most {len(vectors)} codes each"
        )
    for index, chunk in enumerate(torch.split(vectors, CHUNK_ROWS)):
        finite = torch.isfinite(chunk.float().sum(1))
        if not bool(finite.all()):
            row = index * CHUNK_ROWS + int((~finite).int().argmax())
            raise ValueError(
                f"vector {row} is not finite; drop items without content or give them a vector "
                "(rows_with_content finds those that have one)"
            )


class ResidualKMeans:
    """Codebooks of L levels; lives where its codebooks live.

    Quantisers of equal ``digest`` encode equally.
    """

    def __init__(self, levels: Sequence[Centres]) -> None:
        check_level_sizes([len(level.vectors) for level in levels])
        self.levels = tuple(levels)

    @classmethod
    def fit(
        cls, vectors: Tensor, config: ResidualKMeansConfig, *, start: ResidualKMeans | None = None
    ) -> Self:
        """Fit on vectors [N, D], on their device; warm from ``start`` where given."""
        dim = vectors.shape[1]
        check_vectors(vectors, at_least=max(config.level_sizes))
        if start is not None and (start.level_sizes, start.dim) != (config.level_sizes, dim):
            raise ValueError(
                f"start has levels {start.level_sizes} x {start.dim}, the fit is to have "
                f"{config.level_sizes} x {dim}; start from the same shape or fit cold"
            )
        generator = torch.Generator().manual_seed(config.seed)
        residual = _training_rows(vectors, config.max_train_rows, generator)
        levels: list[Centres] = []
        for index, size in enumerate(config.level_sizes):
            old = None
            if start is not None:
                old = Centres(*(part.to(residual.device) for part in start.levels[index]))
            level = fit_centres(residual, size, config.kmeans, generator, old)
            levels.append(level)
            if index + 1 < len(config.level_sizes):
                subtract_nearest(residual, level)
        return cls(levels)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        return tuple(len(level.vectors) for level in self.levels)

    @property
    def dim(self) -> int:
        return int(self.levels[0].vectors.shape[1])

    @property
    def device(self) -> torch.device:
        return self.levels[0].vectors.device

    @cached_property
    def digest(self) -> str:
        return digest_of({"kind": KIND}, self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """Return the state."""
        named: dict[str, Tensor] = {}
        for index, level in enumerate(self.levels):
            named[f"codebook_{index}"] = level.vectors
            named[f"penalties_{index}"] = level.penalties
        return named

    @classmethod
    def of_tensors(cls, named: dict[str, Tensor]) -> Self:
        """Build from what ``tensors`` returned; raises a ValueError where a part is missing."""
        num_levels = sum(name.startswith("codebook_") for name in named)
        wanted = {f"{part}_{i}" for part in ("codebook", "penalties") for i in range(num_levels)}
        if num_levels == 0 or wanted != set(named):
            raise ValueError(f"codebooks need {sorted(wanted)}, the file has {sorted(named)}")
        return cls(
            [Centres(named[f"codebook_{i}"], named[f"penalties_{i}"]) for i in range(num_levels)]
        )

    def to(self, device: torch.device | str) -> Self:
        """Copy to a device."""
        return type(self)([Centres(*(part.to(device) for part in level)) for level in self.levels])

    def encode(self, vectors: Tensor) -> Tensor:
        """Encode vectors [N, D] as [N, L] int32 on their device."""
        check_vectors(vectors, self.dim)
        out = torch.empty(len(vectors), len(self.levels), dtype=torch.int32, device=vectors.device)
        size = chunk_rows(self.device)
        for codes, chunk in zip(torch.split(out, size), torch.split(vectors, size), strict=True):
            residual = chunk.to(self.device, torch.float32)
            for index, level in enumerate(self.levels):
                chosen = nearest(residual, level)
                codes[:, index] = chosen
                if index + 1 < len(self.levels):
                    residual = residual - level.vectors.index_select(0, chosen)
        return out

    def decode(self, codes: Tensor) -> Tensor:
        """Add up the code vectors of codes [N, l], l <= L: [N, D] on the codebooks' device."""
        out = torch.zeros(len(codes), self.dim, device=self.device)
        for index in range(codes.shape[1]):
            out += self.levels[index].vectors[codes[:, index].to(self.device, torch.int64)]
        return out

    def level_distances(self, vectors: Tensor, prefix: Tensor) -> Tensor:
        """Squared distances to the codes of the level after ``prefix`` [B, l], [B, K]."""
        residual = vectors.to(self.device, torch.float32) - self.decode(prefix)
        partial = partial_distances(residual, self.levels[prefix.shape[1]])
        return partial + residual.square().sum(1, keepdim=True)

    def relabelled(self, new_codes: Sequence[Tensor]) -> Self:
        """Rename the codes: code c of level l becomes ``new_codes[l][c]``, a permutation."""
        levels = []
        for level, renamed in zip(self.levels, new_codes, strict=True):
            check_permutation(renamed, len(level.vectors))
            order = renamed.to(self.device).argsort()
            levels.append(Centres(level.vectors[order], level.penalties[order]))
        return type(self)(levels)

    def save(self, directory: Path) -> None:
        description = {"kind": KIND, "digest": self.digest}
        write_tensors(directory, FILE_NAME, self.tensors(), description)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read back; raises a ValueError where the files are damaged or of another kind."""
        tensors, _ = read_tensors(directory, FILE_NAME, KIND)
        return cls.of_tensors(tensors)


def check_permutation(new_codes: Tensor, size: int) -> None:
    """Refuse a renaming that loses or repeats a code."""
    if not torch.equal(new_codes.sort().values.cpu(), torch.arange(size)):
        raise ValueError(f"new_codes must hold each of 0 to {size - 1} once")


def _training_rows(vectors: Tensor, max_rows: int, generator: torch.Generator) -> Tensor:
    """Copy rows to fit on, in random order."""
    # Drawn with replacement from many more rows, few are drawn twice, and no permutation of all
    # rows has to be made.
    if len(vectors) <= max_rows:
        drawn = torch.randperm(len(vectors), generator=generator)
    else:
        drawn = torch.randint(len(vectors), (max_rows,), generator=generator)
    return vectors.index_select(0, drawn.to(vectors.device)).float()
