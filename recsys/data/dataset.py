"""Users' sequences as memory-mapped arrays, and queries cut out of them.

One array holds every user's items, oldest first, user after user. A *position* is an index into
that array: the event there is a label, and the events of the same user before it are its history.

    item_rows        [E]      every event's item
    offsets          [U + 1]  user u owns positions offsets[u] .. offsets[u + 1]
    train_end        [U]      train labels and history end here
    validation_end   [U]      validation targets are in [train_end, validation_end), test after it
    times            [E]      unix seconds, absent where the data has only an order
    event_types      [E]      row of each event's type, absent where all are of one type
    targets          [E]      events that may be held out, absent where all may
    negative         [E]      events that say no to their item, absent where none does
    context/<name>   [E]      categorical features as of that event as a label

Axes: E events, U user rows (row 0 is the unknown user and owns nothing), P positions, B batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, cut_offsets

Rows = NDArray[np.int64]
Split = Literal["train", "validation", "test", "all"]
FitSplit = Literal["train", "all"]
"""Events that a model is fitted on: all before those held out, or every event."""
USERS_PER_SLICE = 100_000
RANGES_PER_SLICE = 1 << 20


@dataclass(frozen=True)
class Sequences:
    """Every user's events in order; see the module's picture."""

    item_rows: Rows
    offsets: Rows
    train_end: Rows
    validation_end: Rows
    times: Rows | None = None
    context: Mapping[str, Rows] = field(default_factory=dict)
    event_types: Rows | None = None
    """Rows of the types' vocabulary; 0 is a type that it does not have."""
    targets: NDArray[np.bool_] | None = None
    negative: NDArray[np.bool_] | None = None
    """Events that are read in histories, and are neither labels nor counted."""

    def __post_init__(self) -> None:
        num_users = len(self.offsets) - 1
        if len(self.train_end) != num_users or len(self.validation_end) != num_users:
            raise ValueError(
                f"{num_users} users but {len(self.train_end)} train_end and "
                f"{len(self.validation_end)} validation_end; build the features again"
            )
        starts, ends = self.offsets[:-1], self.offsets[1:]
        ordered = (
            (starts <= self.train_end)
            & (self.train_end <= self.validation_end)
            & (self.validation_end <= ends)
        )
        if not ordered.all():
            raise ValueError(
                f"user row {int(np.flatnonzero(~ordered)[0])} has split ends outside its events; "
                "build the features again"
            )
        of_events = {"times": self.times, "event_types": self.event_types, **self.context}
        for name, values in of_events.items():
            if values is not None and len(values) != self.num_events:
                raise ValueError(
                    f"{name} has {len(values)} values for {self.num_events} events; "
                    "build the features again"
                )
        if num_users < 1 or self.offsets[0] != 0 or self.offsets[-1] != self.num_events:
            raise ValueError(
                f"offsets must run from 0 to the {self.num_events} events, got {num_users} users"
            )

    @classmethod
    def load(cls, directory: Path) -> Sequences:
        """Memory-map the sequences of the build_features artefact."""

        def array(path: Path) -> Rows:
            rows: Rows = np.load(path, mmap_mode="r", allow_pickle=False)
            return rows

        if not (directory / "item_rows.npy").exists():
            raise ValueError(f"no sequences in {directory}; run the build_features stage first")
        names = ("times", "event_types", "targets", "negative")
        times, types, targets, negative = (directory / f"{name}.npy" for name in names)
        return cls(
            item_rows=array(directory / "item_rows.npy"),
            offsets=array(directory / "offsets.npy"),
            train_end=array(directory / "train_end.npy"),
            validation_end=array(directory / "validation_end.npy"),
            times=array(times) if times.exists() else None,
            context={path.stem: array(path) for path in sorted(directory.glob("context/*.npy"))},
            event_types=array(types) if types.exists() else None,
            targets=np.load(targets, mmap_mode="r") if targets.exists() else None,
            negative=np.load(negative, mmap_mode="r") if negative.exists() else None,
        )

    @property
    def num_events(self) -> int:
        return len(self.item_rows)

    @property
    def num_user_rows(self) -> int:
        return len(self.offsets) - 1

    def visible_end(self, split: Literal["train", "validation", "all"]) -> Rows:
        """Return the end of each user's events for a model fit on ``split`` and before, [U]."""
        ends = {"train": self.train_end, "validation": self.validation_end, "all": self.offsets[1:]}
        return ends[split]

    def label_positions(self, split: Split) -> Rows:
        """List the labels of a split in ascending order, [P].

        Train labels leave out each user's first event, which has no history; ``all`` is every
        event but those. Validation and test labels may have an empty history.
        """
        positions = concatenated_ranges(*self._label_bounds(split))
        fits = split in get_args(FitSplit)
        return self.without_negative(positions) if fits else self.of_targets(positions)

    def of_targets(self, positions: Rows) -> Rows:
        """Keep the positions of events that may be held out."""
        positions = self.without_negative(positions)
        return positions if self.targets is None else np.asarray(positions[self.targets[positions]])

    def without_negative(self, positions: Rows) -> Rows:
        """Leave out the positions of negative events."""
        return positions if self.negative is None else positions[~self.negative[positions]]

    def num_labels(self, split: Split) -> int:
        """Count the labels of a split without listing them."""
        if self.targets is not None or self.negative is not None:
            return len(self.label_positions(split))
        starts, ends = self._label_bounds(split)
        return int((ends - starts).sum())

    def _label_bounds(self, split: Split) -> tuple[Rows, Rows]:
        starts = self.offsets[:-1]
        bounds = {
            "train": (np.minimum(starts + 1, self.train_end), self.train_end),
            "validation": (self.train_end, self.validation_end),
            "test": (self.validation_end, self.offsets[1:]),
            "all": (np.minimum(starts + 1, self.offsets[1:]), self.offsets[1:]),
        }
        if split not in bounds:
            raise ValueError(f"split must be one of {get_args(Split)}, got {split!r}")
        return bounds[split]

    def users_of(self, positions: Rows) -> Rows:
        """Return the user row that owns each position, [P]."""
        owners: Rows = np.searchsorted(self.offsets, positions, side="right") - 1
        return owners

    def positions_before(self, ends: Rows) -> Rows:
        """List each user's positions before ``ends`` [U], ascending."""
        return concatenated_ranges(np.asarray(self.offsets[:-1]), np.asarray(ends))

    def slices_before(self, ends: Rows) -> Iterator[Rows]:
        """List the same positions a slice of users at a time, so that memory stays flat."""
        starts, ends = np.asarray(self.offsets[:-1]), np.asarray(ends)
        for first in range(0, len(starts), USERS_PER_SLICE):
            last = first + USERS_PER_SLICE
            yield concatenated_ranges(starts[first:last], ends[first:last])

    def before(self, ends: Rows) -> Sequences:
        """Keep each user's events before ``ends`` [U], all of them as train."""
        kept = np.zeros(self.num_events, np.bool_)
        kept[self.positions_before(ends)] = True
        found = replace(self._where(kept), targets=None)
        return replace(found, train_end=found.offsets[1:], validation_end=found.offsets[1:])

    @cached_property
    def positive(self) -> Sequences:
        """The events without negative ones, as models count them."""
        return self if self.negative is None else self._where(~np.asarray(self.negative))

    def _where(self, kept: NDArray[np.bool_]) -> Sequences:
        """Keep some events, [E]; splits end before the same ones."""
        before = np.concatenate([[0], np.cumsum(kept)])
        changed: dict[str, Any] = {
            name: None if values is None else np.asarray(values[kept])
            for name in ("item_rows", "times", "event_types", "targets", "negative")
            for values in [getattr(self, name)]
        }
        for name in ("offsets", "train_end", "validation_end"):
            changed[name] = before[getattr(self, name)]
        context = {name: np.asarray(values[kept]) for name, values in self.context.items()}
        return replace(self, **changed, context=context)

    def histories(self, ends: Rows) -> Jagged:
        """Take each user's events before ``ends`` [U], U ragged item rows."""
        rows = np.asarray(self.item_rows[self.positions_before(ends)])
        lengths = np.asarray(ends) - np.asarray(self.offsets[:-1])
        return Jagged(torch.from_numpy(rows), cut_offsets(torch.from_numpy(lengths)))

    def item_counts(self, ends: Rows, num_item_rows: int) -> Tensor:
        """Count each item's events before each user's ``ends``, [num_item_rows]."""
        counts = np.zeros(num_item_rows, np.int64)
        for positions in self.slices_before(ends):
            rows = self.item_rows[self.without_negative(positions)]
            counts += np.bincount(rows, minlength=num_item_rows)
        return torch.from_numpy(counts)

    def labels(self, positions: Rows) -> Tensor:
        """Return the label item of each position, [P] int64."""
        return torch.from_numpy(np.asarray(self.item_rows[positions]))

    def queries(
        self, positions: Rows, *, max_history: int, user_features: Mapping[str, Rows] | None = None
    ) -> JaggedBatch:
        """Build what a model may know when it predicts the events at ``positions``.

        Args:
            positions: Labels, [B].
            user_features: Categorical rows by user row, each [U]; become ``user.<name>``.

        Returns:
            ``history`` (item rows, oldest first), ``history.times`` (unix seconds of the same
            events, where there are times), ``history.types`` (rows of their types, where there
            are types), ``history.negative`` (1 for negative ones, where there are any), ``user``
            (user row), ``user.<name>`` and ``context.<name>`` (one each).
        """
        users = self.users_of(positions)  # [B]
        starts = np.maximum(self.offsets[users], positions - max_history)  # [B]
        offsets = cut_offsets(torch.from_numpy(positions - starts))
        places = concatenated_ranges(starts, positions)
        features = self.events_at(places, offsets)
        features["user"] = Jagged.one_each(torch.from_numpy(users))
        for name, values in (user_features or {}).items():
            features[f"user.{name}"] = _one_each(values, users)
        for name, values in self.context.items():
            features[f"context.{name}"] = _one_each(values, positions)
        return JaggedBatch(features)

    def events_at(self, places: Rows, offsets: Tensor) -> dict[str, Jagged]:
        """Read ``history``, its ``.times``, ``.types`` and ``.negative`` if the data has them."""
        columns = {
            "": self.item_rows,
            ".times": self.times,
            ".types": self.event_types,
            ".negative": self.negative,
        }
        return {
            f"history{name}": Jagged(
                torch.from_numpy(np.asarray(values[places], np.int64)), offsets
            )
            for name, values in columns.items()
            if values is not None
        }


def _one_each(values: Rows, index: Rows) -> Jagged:
    return Jagged.one_each(torch.from_numpy(np.asarray(values[index], np.int64)))


def concatenated_ranges(starts: Rows, ends: Rows) -> Rows:
    """Concatenate the integers of every range [starts[i], ends[i]), empty ranges included."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    ranges: Rows = np.repeat(starts - before, lengths)
    # In place and a slice at a time: the ranges of a large log are large.
    for first in range(0, len(ranges), RANGES_PER_SLICE):
        part = ranges[first : first + RANGES_PER_SLICE]
        part += np.arange(first, first + len(part))
    return ranges


def types_of_negative(types: Rows | None, negative: Rows | None) -> Rows | None:
    """List the rows of the types of negative events [E], ascending; None without any."""
    if types is None or negative is None:
        return None
    return np.unique(types[np.asarray(negative) != 0])


class PastEvents(NamedTuple):
    """Some events of one user, oldest first."""

    rows: Rows
    """Item rows, [M]."""
    times: Rows | None
    """Unix seconds, [M]; None without times."""
    types: Rows | None
    """Rows of the types, 0 for an unknown one, [M]; None without types."""

    def take(self, places: slice | Rows | NDArray[np.bool_]) -> PastEvents:
        """Keep the events at some places."""
        rows, times, types = self
        return PastEvents(
            np.asarray(rows[places]),
            None if times is None else np.asarray(times[places]),
            None if types is None else np.asarray(types[places]),
        )

    def then(self, rows: Rows, times: Rows | int, types: Rows | int) -> PastEvents:
        """Append events; a number is that of each."""

        def joined(known: Rows | None, more: Rows | int) -> Rows | None:
            return None if known is None else np.append(known, np.broadcast_to(more, len(rows)))

        all_rows = np.concatenate([self.rows, rows])
        return PastEvents(all_rows, joined(self.times, times), joined(self.types, types))


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The queries and targets of one split, one query a user."""

    positions: Rows
    """Each user's first held-out event, [B]; what precedes it is the query."""
    targets: Jagged
    """Item rows held out, per query."""
    seen: Jagged
    """Item rows of the user's whole history before the first target, per query."""
    places: Jagged | None = None
    """Position of each target; None if those of a query follow each other."""

    @classmethod
    def of(cls, sequences: Sequences, split: Split) -> HeldOut:
        """Collect the users that have a target in the split, in user order."""
        labels = sequences.label_positions(split)
        users, counts = np.unique(sequences.users_of(labels), return_counts=True)
        positions = np.asarray(sequences._label_bounds(split)[0][users])
        lengths = positions - sequences.offsets[users]
        before = concatenated_ranges(sequences.offsets[users], positions)
        return cls(
            positions=positions,
            targets=ragged(np.asarray(sequences.item_rows[labels]), counts),
            seen=ragged(np.asarray(sequences.item_rows[before]), lengths),
            places=None if sequences.targets is None else ragged(labels, counts),
        )

    @classmethod
    def at(cls, sequences: Sequences, positions: Rows) -> HeldOut:
        """Make one query for each position [P], whose event is the target."""
        starts = sequences.offsets[sequences.users_of(positions)]
        seen = concatenated_ranges(starts, positions)
        return cls(
            positions=positions,
            targets=ragged(np.asarray(sequences.item_rows[positions]), np.ones_like(positions)),
            seen=ragged(np.asarray(sequences.item_rows[seen]), positions - starts),
        )

    @classmethod
    def later_events(cls, sequences: Sequences, split: Split, most: int) -> HeldOut:
        """Collect each user's latest events of the split, ``most`` at most; never its first one."""
        labels = np.asarray(sequences.label_positions(split))
        _, starts, counts = np.unique(
            sequences.users_of(labels), return_index=True, return_counts=True
        )
        place = np.arange(len(labels)) - np.repeat(starts, counts)
        is_late = np.repeat(counts, counts) - place <= most
        return cls.at(sequences, labels[is_late & (place > 0)])

    def target_positions(self) -> Rows:
        """Return the position of each target, query by query, [M]."""
        if self.places is not None:
            return np.asarray(self.places.values)
        return concatenated_ranges(self.positions, self.positions + self.targets.lengths().numpy())

    def take(self, queries: Rows) -> HeldOut:
        """Pick queries by their place, [R]."""
        rows = torch.from_numpy(queries)
        return HeldOut(
            positions=self.positions[queries],
            targets=self.targets.take(rows),
            seen=self.seen.take(rows),
            places=None if self.places is None else self.places.take(rows),
        )

    def drawn(self, num_queries: int, seed: int) -> Rows:
        """Draw at most ``num_queries`` places once by the seed, ascending."""
        if num_queries >= len(self.positions):
            return np.arange(len(self.positions))
        rng = np.random.default_rng([seed, num_queries])
        return np.sort(rng.choice(len(self.positions), num_queries, replace=False))

    def sample(self, num_queries: int, seed: int) -> HeldOut:
        """Keep at most ``num_queries``, drawn once by the seed."""
        return self.take(self.drawn(num_queries, seed))


def ragged(values: Rows, lengths: Rows) -> Jagged:
    """Cut values into examples of the given lengths."""
    return Jagged(torch.from_numpy(values), torch.from_numpy(np.append(0, np.cumsum(lengths))))
