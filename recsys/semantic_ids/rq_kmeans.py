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
from typing import NamedTuple, Self

import torch
from torch import Tensor

from recsys.data.bounds import check_bounds
from recsys.semantic_ids.codes import check_level_sizes, digest_of, read_tensors, write_tensors

DECAY = 0.5
"""Share of the running sums that a batch leaves standing."""
RESTART_SHARE = 0.08
"""Centres with less than this share of the average load restart, in the early steps."""
EARLY = 2 / 3
"""Share of the steps that are early: later a restarted centre would not settle."""
SEED_ROWS_PER_CENTRE = 32
"""k-means++ looks at this many rows per centre."""
WHOLE_BATCHES = 4
"""Up to this many batches of rows, each step takes all rows."""
BALANCE_TEMPERATURE = 0.3
"""Blur of the choice that penalties are found with, in shares of the spread of a row's distances;
0.2 makes the loads swing."""
SINKHORN_ROUNDS = 8
"""Rounds a step that the penalties of balanced centres are solved in; with 2 they swing."""
CPU_CHUNK_ROWS, GPU_CHUNK_ROWS = 8_192, 131_072
"""Rows measured at a time: what a CPU's allocator takes from its heap; what fills a GPU."""


@dataclass(frozen=True, kw_only=True)
class KMeansConfig:
    """How the centres of one level are found.

    ``num_steps`` of all rows, or ``num_batches`` of ``batch_rows`` where they are many.
    ``balanced`` adds a penalty to the distance of each centre such that all take their share, and
    keeps it for encoding. ``start_weight`` says how many average loads of rows an earlier centre
    counts for in a warm start: 0 forgets it, more moves it less.
    """

    num_steps: int = 30
    num_batches: int = 60
    batch_rows: int = 16_384
    balanced: bool = False
    start_weight: float = 1.0

    def __post_init__(self) -> None:
        check_bounds(self, num_steps=">= 0", num_batches=">= 0", batch_rows=">= 1")
        check_bounds(self, start_weight=">= 0")


class Centres(NamedTuple):
    """Centres [K, D] and a penalty on each one's squared distance, [K]."""

    vectors: Tensor
    penalties: Tensor


def partial_distances(rows: Tensor, centres: Centres) -> Tensor:
    """Measure [B, K]: squared distances plus penalties, less each row's own squared norm."""
    offset = centres.vectors.square().sum(1) + centres.penalties
    return torch.addmm(offset, rows, centres.vectors.T, alpha=-2)


def chunk_rows(device: torch.device) -> int:
    """Return the number of rows of a chunk."""
    return CPU_CHUNK_ROWS if device.type == "cpu" else GPU_CHUNK_ROWS


def nearest(rows: Tensor, centres: Centres) -> Tensor:
    """Find each row's centre, [N] int64; the lowest where several are as near."""
    found = [
        partial_distances(chunk, centres).argmin(1)
        for chunk in torch.split(rows, chunk_rows(rows.device))
    ]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=rows.device)


def sums_by_code(rows: Tensor, codes: Tensor, num_codes: int) -> Tensor:
    """Add up the rows of each code, [K, D], in an order that does not vary."""
    if rows.is_cuda:
        out = torch.zeros(num_codes, rows.shape[1], device=rows.device)
        for some_rows, some_codes in zip(
            torch.split(rows, 65_536), torch.split(codes, 65_536), strict=True
        ):
            one_hot = torch.zeros(num_codes, len(some_rows), device=rows.device)
            one_hot[some_codes, torch.arange(len(some_rows), device=rows.device)] = 1
            out.addmm_(one_hot, some_rows)
        return out
    return torch.zeros(num_codes, rows.shape[1]).index_add_(0, codes, rows)


def k_means_plus_plus(rows: Tensor, num_centres: int, generator: torch.Generator) -> Tensor:
    """Choose rows as centres, each with a chance that grows with its squared distance.

    Arthur and Vassilvitskii (2007). The draw is a race of exponential waiting times, which needs no
    running sum.
    """
    squares = rows.square().sum(1)
    distance = torch.full_like(squares, torch.inf)
    first = torch.randint(len(rows), (1,), generator=generator)
    chosen = [first.to(rows.device)]
    # Many draws at once, and picks that stay on the device: nothing waits for it.
    for begin in range(1, num_centres, 64):
        count = min(64, num_centres - begin)
        waits = torch.empty(count, len(rows)).exponential_(generator=generator)
        for waiting in waits.to(rows.device):
            centre = rows.index_select(0, chosen[-1])[0]
            to_centre = (squares - 2 * (rows @ centre) + centre.square().sum()).clamp(min=0)
            distance = torch.minimum(distance, to_centre).index_fill(0, chosen[-1], 0)
            chosen.append((distance / waiting).argmax(0, keepdim=True))
    return rows.index_select(0, torch.cat(chosen))


def takes_all(rows: Tensor, config: KMeansConfig) -> bool:
    """Return whether each step reads all rows, [N, D], because they fill few batches."""
    return len(rows) <= WHOLE_BATCHES * config.batch_rows


def initial_centres(
    rows: Tensor, num_centres: int, config: KMeansConfig, generator: torch.Generator
) -> Tensor:
    """Choose the centres that the steps begin with, [K, D].

    Sampled for batches, whose noise leads out of what k-means++ would avoid.
    """
    whole = takes_all(rows, config)
    count = min(len(rows), num_centres * (SEED_ROWS_PER_CENTRE if whole else 1))
    some = torch.randperm(len(rows), generator=generator)[:count].to(rows.device)
    return k_means_plus_plus(rows[some], num_centres, generator) if whole else rows[some]


def _balanced(distances: Tensor, penalties: Tensor) -> Tensor:
    """Find the penalties by which every centre takes its share of the rows, from those before.

    Sinkhorn's algorithm (Cuturi, arXiv:1306.0895) on distances without penalties, [B, K].
    """
    blur = (BALANCE_TEMPERATURE * distances.std(1).mean()).clamp(min=1e-12)
    scores = distances / -blur
    # Fresh memory of this size costs a CPU more than the arithmetic.
    shifted, choice = torch.empty_like(scores), torch.empty_like(scores)
    for _ in range(SINKHORN_ROUNDS):
        torch.sub(scores, penalties / blur, out=shifted)
        share = torch.softmax(shifted, 1, out=choice).mean(0)
        penalties = penalties + blur * (share * len(share)).clamp(min=1e-6).log()
    return penalties - penalties.mean()


def _batch(rows: Tensor, size: int, step: int) -> Tensor:
    """Take the rows of a step, [B, D], going round."""
    begin = step * size % len(rows)
    batch = rows[begin : begin + size]
    return batch if len(batch) == size else torch.cat([batch, rows[: size - len(batch)]])


def fit_centres(
    rows: Tensor,
    num_centres: int,
    config: KMeansConfig,
    generator: torch.Generator,
    start: Centres | None = None,
) -> Centres:
    """Find centres of rows [N, D] float32, from those of ``start`` where given.

    Batches follow the order of the rows, which must be random where they are many.
    A warm start keeps each old centre as this many rows that never leave it, so that codes keep
    their meaning and centres without rows stay where they are.
    """
    vectors = initial_centres(rows, num_centres, config, generator) if start is None else start[0]
    prior = vectors.clone()
    penalties = torch.zeros(num_centres, device=rows.device) if start is None else start[1].clone()
    is_whole = takes_all(rows, config)
    decay = 0.0 if is_whole else DECAY
    sums, counts = torch.zeros_like(vectors), torch.zeros(num_centres, device=rows.device)
    unbiased, batch = torch.zeros_like(penalties), rows
    num_steps = config.num_steps if is_whole else config.num_batches
    for step in range(num_steps):
        if not is_whole:
            batch = _batch(rows, config.batch_rows, step)
        if config.balanced:
            distances = partial_distances(batch, Centres(vectors, unbiased))
            penalties = _balanced(distances, penalties)
            codes = distances.add_(penalties).argmin(1)
        else:
            codes = nearest(batch, Centres(vectors, penalties))
        load = torch.bincount(codes, minlength=num_centres).float()
        sums = decay * sums + sums_by_code(batch, codes, num_centres)
        counts = decay * counts + load
        weight = 0.0 if start is None else config.start_weight * counts.mean()
        total = counts + weight
        moved = (sums + weight * prior) / total.clamp(min=1e-6)[:, None]
        vectors = torch.where(total[:, None] > 1e-3, moved, vectors)
        # Balanced centres that are small grow by their penalties.
        is_early = step < EARLY * num_steps and not config.balanced
        least = RESTART_SHARE * counts.mean() if is_early else 1e-3
        small = (total <= least).nonzero().flatten()
        if len(small):
            drawn = torch.randint(len(batch), (len(small),), generator=generator)
            vectors[small] = batch[drawn.to(batch.device)]
            sums[small], counts[small] = 0, 0
    if config.balanced and len(batch):
        distances = partial_distances(batch, Centres(vectors, unbiased))
        penalties = _balanced(distances, penalties)
    return Centres(vectors, penalties)


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
        check_vectors(vectors, at_least=max(config.level_sizes))
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
                for chunk in torch.split(residual, chunk_rows(residual.device)):
                    chunk -= level.vectors.index_select(0, nearest(chunk, level))
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
            order = renamed.to(self.device).argsort()
            levels.append(Centres(level.vectors[order], level.penalties[order]))
        return type(self)(levels)

    def save(self, directory: Path) -> None:
        description = {"kind": KIND, "digest": self.digest}
        write_tensors(directory, FILE_NAME, self.tensors(), description)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read back; raises a ValueError where the files are damaged or of another kind."""
        named, _ = read_tensors(directory, FILE_NAME, KIND)
        num_levels = sum(name.startswith("codebook_") for name in named)
        wanted = {f"{part}_{i}" for part in ("codebook", "penalties") for i in range(num_levels)}
        if num_levels == 0 or wanted != set(named):
            raise ValueError(f"codebooks need {sorted(wanted)}, the file has {sorted(named)}")
        return cls(
            [Centres(named[f"codebook_{i}"], named[f"penalties_{i}"]) for i in range(num_levels)]
        )


def _training_rows(vectors: Tensor, max_rows: int, generator: torch.Generator) -> Tensor:
    """Copy rows to fit on, in random order."""
    # Drawn with replacement from many more rows, few are drawn twice, and no permutation of all
    # rows has to be made.
    if len(vectors) <= max_rows:
        drawn = torch.randperm(len(vectors), generator=generator)
    else:
        drawn = torch.randint(len(vectors), (max_rows,), generator=generator)
    return vectors.index_select(0, drawn.to(vectors.device)).float()
