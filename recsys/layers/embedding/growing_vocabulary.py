"""Rows for ids that nobody listed before training: a table that grows, and hashing without a list.

A ``GrowingVocabulary`` gives every new id a row of its own while there is room, and then the row of
the least-used id, so tomorrow's items train in today's table. An embedding row is not an item row:
item rows are never reused, these are.

Hashing needs no list and no state: each id is the mean of ``num_hashes`` rows of a table far
smaller than the id space (hash embeddings, arXiv:1709.03933). Two ids are the same only where all
their rows are, about one pair in num_rows ^ num_hashes.

Row 0 is "unknown" as in every table. Ids are any int64.

Axes: M ids of a batch, U ids that got a row, E ids that lost theirs, N rows, C content, D width.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.layers.embedding.collection import EmbeddingBags

Ints = NDArray[np.int64]
MAX_RECENT = 1 << 16
"""Ids searched apart from the others, so that a new id need not move the whole list."""


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """Size of a growing vocabulary and how it makes room.

    Raises:
        ValueError: If a number is out of its range.
    """

    num_rows: int
    """Rows of the table with row 0; so many ids less one have a row at a time."""
    halve_every: int | None = None
    """Admitted batches after which every count of uses is halved, so that what was popular once
    makes room; None counts for ever."""
    evict_share: float = 0.0
    """Share of the rows that is freed at a time once none is free; looking for the least used
    costs a pass over all rows. 0 frees only what the batch needs."""

    def __post_init__(self) -> None:
        if self.num_rows < 2:
            raise ValueError(f"num_rows must be >= 2, row 0 is unknown, got {self.num_rows}")
        if self.halve_every is not None and self.halve_every < 1:
            raise ValueError(f"halve_every must be >= 1 or None, got {self.halve_every}")
        if not 0 <= self.evict_share < 1:
            raise ValueError(f"evict_share must be in [0, 1), got {self.evict_share}")


class Admitted(NamedTuple):
    """What became of a batch of ids."""

    rows: Tensor
    """[M] int64, the row of each id; 0 where the batch had more new ids than rows could be had."""
    new_rows: Tensor
    """[U] int64: rows to be initialised, with their optimizer state, before they are looked up."""
    new_ids: Tensor
    """[U] int64, whose rows these now are."""
    evicted_ids: Tensor
    """[E] int64, ids that lost their rows."""


class GrowingVocabulary:
    """Ids to rows of one embedding table; the same batches in the same order give the same rows.

    Lives on the CPU beside the batches that it translates.
    """

    def __init__(self, config: VocabularyConfig) -> None:
        self.config = config
        self.ids: Ints = np.zeros(config.num_rows, np.int64)
        """[N], the id that holds each row, where ``uses`` is not 0."""
        self.uses: Ints = np.zeros(config.num_rows, np.int64)
        """[N] occurrences since the id got its row, halved now and then; 0 is a free row."""
        self.last_used: Ints = np.zeros(config.num_rows, np.int64)
        """[N] number of the batch that last held the id."""
        self.num_batches = 0
        self._free: Ints
        self._sorted: tuple[Ints, Ints]
        self._recent: tuple[Ints, Ints]
        self._index()

    def __len__(self) -> int:
        """Count the ids that have a row."""
        return int((self.uses > 0).sum())

    def rows_of(self, ids: Tensor) -> Tensor:
        """Look rows up without admitting anything, [M] -> [M]; unknown ids have row 0."""
        found, place = np.unique(ids.numpy(), return_inverse=True)
        return torch.from_numpy(self._find(found)[place])

    def admit(self, ids: Tensor) -> Admitted:
        """Give every id of a batch a row, and count the uses.

        Known ids keep theirs, and none of the batch is evicted. New ids come in the order of their
        first occurrence and take the lowest free rows. Where rows are short, the ids with the
        fewest uses go first; of these the longest unused, then the lowest row.
        """
        values = ids.numpy()
        distinct, first, place, counts = np.unique(
            values, return_index=True, return_inverse=True, return_counts=True
        )
        rows = self._find(distinct)
        known = rows > 0
        order = np.flatnonzero(~known)
        order = order[np.argsort(first[order], kind="stable")]
        evicted = self._make_room(len(order), rows[known])
        placed = order[: len(self._free)]
        taken, self._free = self._free[: len(placed)], self._free[len(placed) :]
        rows[placed] = taken
        self.ids[taken], self.uses[taken] = distinct[placed], 0
        held = rows > 0
        self.uses[rows[held]] += counts[held]
        self.last_used[rows[held]] = self.num_batches
        self._remember(distinct[placed], taken)
        self.num_batches += 1
        if self.config.halve_every and self.num_batches % self.config.halve_every == 0:
            # Rounded up: a count of zero is a free row.
            self.uses = (self.uses + 1) >> 1
        return Admitted(
            torch.from_numpy(rows[place].reshape(values.shape)),
            torch.from_numpy(taken.copy()),
            torch.from_numpy(distinct[placed]),
            torch.from_numpy(evicted),
        )

    def _make_room(self, needed: int, kept: Ints) -> Ints:
        """Free rows for so many ids, none of ``kept``; return the ids evicted, [E]."""
        short = needed - len(self._free)
        if short <= 0:
            return np.empty(0, np.int64)
        candidates = self.uses > 0
        candidates[kept] = False
        rows = np.flatnonzero(candidates)
        share = int(self.config.evict_share * self.config.num_rows)
        count = min(len(rows), max(short, share))
        if count < len(rows):
            # Only the uses that can be among the least are sorted by all three.
            limit = np.partition(self.uses[rows], count)[count]
            rows = rows[self.uses[rows] <= limit]
        order = np.lexsort((rows, self.last_used[rows], self.uses[rows]))
        out = rows[order[:count]]
        self.uses[out] = 0
        self._free = np.sort(np.concatenate([self._free, out]))
        return self.ids[out]

    def _index(self) -> None:
        """Sort what is held."""
        held = np.flatnonzero(self.uses)
        self._free = np.flatnonzero(self.uses[1:] == 0) + 1
        order = np.argsort(self.ids[held], kind="stable")
        self._sorted = (self.ids[held][order], held[order])
        self._recent = (np.empty(0, np.int64), np.empty(0, np.int64))

    def _find(self, ids: Ints) -> Ints:
        """Find the rows of ids, 0 where they have none."""
        rows = np.zeros(len(ids), np.int64)
        for known_ids, known_rows in (self._sorted, self._recent):
            if len(known_ids):
                at = np.minimum(np.searchsorted(known_ids, ids), len(known_ids) - 1)
                row = known_rows[at]
                # An entry is stale where its row was given to another id since, or freed.
                there = (known_ids[at] == ids) & (self.ids[row] == ids) & (self.uses[row] > 0)
                rows = np.where(there, row, rows)
        return rows

    def _remember(self, ids: Ints, rows: Ints) -> None:
        """Add ids that have no row yet to the recent ones; join these to the rest at times."""
        known_ids, known_rows = self._recent
        stale = np.isin(known_ids, ids)
        ids, rows = np.append(known_ids[~stale], ids), np.append(known_rows[~stale], rows)
        order = np.argsort(ids, kind="stable")
        self._recent = (ids[order], rows[order])
        if len(ids) > MAX_RECENT:
            free = self._free
            self._index()
            assert np.array_equal(free, self._free)

    def save(self, path: Path) -> None:
        """Write everything to a safetensors file; equal vocabularies give equal bytes."""
        tensors = {
            "ids": torch.from_numpy(np.where(self.uses > 0, self.ids, 0)),
            "uses": torch.from_numpy(self.uses),
            "last_used": torch.from_numpy(np.where(self.uses > 0, self.last_used, 0)),
            "num_batches": torch.tensor([self.num_batches]),
        }
        save_file(tensors, path, {"config": json.dumps(asdict(self.config), sort_keys=True)})

    @classmethod
    def load(cls, path: Path) -> GrowingVocabulary:
        """Read a saved vocabulary, to go on as if it had never stopped.

        Raises:
            ValueError: If the file is not a vocabulary, or its parts do not fit each other.
        """
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
        if "config" not in metadata or not {"ids", "uses", "last_used", "num_batches"} <= set(
            tensors
        ):
            raise ValueError(f"{path} holds no growing vocabulary; it has {sorted(tensors)}")
        vocabulary = cls(VocabularyConfig(**json.loads(metadata["config"])))
        num_rows = vocabulary.config.num_rows
        columns = [tensors[name] for name in ("ids", "uses", "last_used")]
        if any(one.shape != (num_rows,) or one.dtype != np.int64 for one in columns):
            raise ValueError(f"the vocabulary in {path} does not have its {num_rows} int64 rows")
        held = tensors["ids"][tensors["uses"] > 0]
        if len(np.unique(held)) != len(held) or tensors["uses"].min() < 0 or tensors["uses"][0]:
            raise ValueError(f"the vocabulary in {path} is damaged: ids or uses make no sense")
        vocabulary.ids, vocabulary.uses = tensors["ids"], tensors["uses"]
        vocabulary.last_used = tensors["last_used"]
        vocabulary.num_batches = int(tensors["num_batches"][0])
        vocabulary._index()
        return vocabulary


@torch.no_grad()
def reset_rows(
    bags: EmbeddingBags, table: str, rows: Tensor, vectors: Tensor | None = None
) -> None:
    """Start rows of a table afresh, also what row updates remember of them.

    Tables that train dense keep that in their optimizer: call ``optim.reset_optimizer_rows`` too.

    Args:
        rows: ``Admitted.new_rows``, [U].
        vectors: What they become, [U, D], such as ``rows_from_content``; None is the mean of the
            other rows that are not zero, row 0 aside.
    """
    weight = bags.weight(table).data
    rows = rows.to(weight.device)
    if vectors is None:
        others = weight.any(dim=1)
        others[0] = False
        others[rows] = False
        total = (weight * others[:, None]).sum(0)
        vectors = total / others.sum().clamp(min=1)
    weight[rows] = vectors.to(weight)
    if bags.updates is not None:
        for by_table in bags.updates.state().values():
            by_table[table][rows] = 0


def rows_from_content(
    known_content: Tensor, known_rows: Tensor, new_content: Tensor, *, ridge: float = 1e-3
) -> Tensor:
    """Predict rows of new ids from their content by ridge regression on trained ones, [U, D].

    Args:
        known_content: Content of ids with trained rows, [N, C]; with none known, rows are zero.
        known_rows: Their rows, [N, D].
        new_content: [U, C].
        ridge: Pull towards the mean row, relative to the mean square of the content.
    """
    if not len(known_content):
        return known_rows.new_zeros(len(new_content), known_rows.shape[1])
    middle, mean = known_content.mean(0), known_rows.mean(0)
    centred = (known_content - middle).double()  # [N, C]
    square = centred.T @ centred
    pull = ridge * square.diagonal().mean().clamp(min=1e-12)
    square.diagonal().add_(pull)
    slopes = torch.linalg.solve(square, centred.T @ (known_rows - mean).double())  # [C, D]
    found: Tensor = mean + (new_content - middle).double() @ slopes
    return found.to(known_rows.dtype)


def hashed_rows(ids: Tensor, num_rows: int, num_hashes: int, *, seed: int = 0) -> Tensor:
    """Hash ids to rows in [1, num_rows), [...] -> [..., num_hashes]; on any device.

    Each hash is a different permutation of the 64-bit words (the finaliser of SplitMix64) taken
    modulo the rows. The same numbers give the same rows on every machine.
    """
    if num_rows < 2 or num_hashes < 1:
        raise ValueError(
            f"hashing needs num_rows >= 2 and num_hashes >= 1, got {num_rows} and {num_hashes}"
        )
    streams = torch.arange(1, num_hashes + 1, device=ids.device) + seed * 1_000_003
    words = mixed(ids.long()[..., None] ^ mixed(streams * -0x61C8864680B583EB))
    rows: Tensor = words.remainder(num_rows - 1) + 1
    return rows


def mixed(words: Tensor) -> Tensor:
    """Permute 64-bit words such that each bit depends on all (Stafford's variant 13)."""
    words = (words ^ shifted(words, 30)) * -0x40A7B892E31B1A47
    words = (words ^ shifted(words, 27)) * -0x6B2FB644ECCEEE15
    return words ^ shifted(words, 31)


def shifted(words: Tensor, count: int) -> Tensor:
    """Shift to the right and fill with zeros, as for unsigned words."""
    kept: Tensor = (words >> count) & ((1 << (64 - count)) - 1)
    return kept


def hashed_feature(values: Jagged, num_rows: int, num_hashes: int, *, seed: int = 0) -> Jagged:
    """Replace each id by its hashed rows, weighted so that they are averaged; any table pools that.

    The weights of an id's rows sum to the id's own weight, so sum and mean pooling mean the same as
    for ids with a row each.
    """
    rows = hashed_rows(values.values, num_rows, num_hashes, seed=seed)  # [M, num_hashes]
    weights = values.weights
    if weights is None:
        weights = torch.ones(len(values.values), device=values.values.device)
    shared = (weights / num_hashes).repeat_interleave(num_hashes)
    return Jagged(rows.flatten(), values.offsets * num_hashes, shared)
