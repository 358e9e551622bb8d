"""The held-out events of a split as queries and targets, one query a user.

Axes: B queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Rows, Sequences, Split, concatenated_ranges


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The queries and targets of one split, one query a user."""

    positions: Rows
    """Each user's first held-out event, [B]; what precedes it is the query."""
    targets: Jagged
    """Item rows held out, per query."""
    seen: Jagged
    """Item rows of the user's whole history before the first target, per query."""

    @classmethod
    def of(cls, sequences: Sequences, split: Split) -> HeldOut:
        """Collect the users that have a target in the split, in user order."""
        labels = sequences.label_positions(split)
        users, first, counts = np.unique(
            sequences.users_of(labels), return_index=True, return_counts=True
        )
        positions = labels[first]
        lengths = positions - sequences.offsets[users]
        before = concatenated_ranges(sequences.offsets[users], positions)
        return cls(
            positions=positions,
            targets=ragged(np.asarray(sequences.item_rows[labels]), counts),
            seen=ragged(np.asarray(sequences.item_rows[before]), lengths),
        )

    def target_positions(self) -> Rows:
        """Return the position of each target; those of a query follow each other, [M]."""
        return concatenated_ranges(self.positions, self.positions + self.targets.lengths().numpy())

    def take(self, queries: Rows) -> HeldOut:
        """Pick queries by their place, [R]."""
        rows = torch.from_numpy(queries)
        return HeldOut(
            positions=self.positions[queries],
            targets=self.targets.take(rows),
            seen=self.seen.take(rows),
        )

    def drawn(self, num_queries: int, seed: int) -> Rows:
        """Draw at most ``num_queries`` places once by the seed, ascending."""
        if num_queries >= len(self.positions):
            return np.arange(len(self.positions))
        rng = np.random.default_rng([seed, num_queries])
        return np.sort(rng.choice(len(self.positions), num_queries, replace=False))

    def sample(self, num_queries: int, seed: int) -> HeldOut:
        """Keep at most ``num_queries``, drawn once by the seed."""
        if num_queries >= len(self.positions):
            return self
        return self.take(self.drawn(num_queries, seed))


def ragged(values: Rows, lengths: Rows) -> Jagged:
    """Cut values into examples of the given lengths."""
    return Jagged(torch.from_numpy(values), torch.from_numpy(np.append(0, np.cumsum(lengths))))
