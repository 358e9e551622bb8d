"""Items that training never met: drawn, held out with all their events, and appended afterwards.

A twentieth of the items is cold for test and another for validation, on which everything is
chosen. Models, quantiser included, see the warm items alone; then the catalogue grows by the cold
ones, as it does between two trainings. Every event of a cold item, after one warm event at least,
is a target; its query is the warm events of the same user before it.

Three settings, as in LIGER (arXiv:2411.18814) and stricter:

    cold only     an oracle names the cold items, and those alone are ranked
    oracle-cold   the same with the system's own 20 best warm items, as in LIGER
    blind         the full catalogue is ranked, and nothing says which items are cold

Axes: N item rows, W warm item rows, F content width, U queries, L code levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged, cut_offsets
from recsys.data.dataset import Rows, Sequences, concatenated_ranges
from recsys.fitting.queries import EvaluationQueries, ModelInputs
from recsys.models.item_tower import ItemCatalogue
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.collisions import assign_semantic_ids
from recsys.semantic_ids.lifecycle import append
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from tests.benchmarks.recipes.prepared import Prepared


@dataclass(frozen=True, kw_only=True)
class ColdStartConfig:
    """How many items are cold, and how many warm ones are ranked with them."""

    cold_share: float = 0.05
    """Of the items, for test; as many again for validation."""
    num_warm: int = 20
    """Warm items that are ranked with the cold ones in the setting ``oracle-cold``."""

    def __post_init__(self) -> None:
        if not 0 < self.cold_share < 0.5:
            raise ValueError(f"cold_share must be in (0, 0.5), got {self.cold_share}")
        if self.num_warm < 0:
            raise ValueError(f"num_warm must be >= 0, got {self.num_warm}")


class ColdWorld(NamedTuple):
    """A data set whose item rows are ordered: warm, cold for validation, cold for test."""

    warm: Prepared
    """What training sees; W item rows."""
    grown: Prepared
    """The same sequences over all N item rows."""
    cold: Mapping[str, Tensor]
    """Which item rows are cold for validation and for test, [N] bool each."""
    queried: Mapping[str, ModelInputs]
    """One query a user row for validation and for test: warm events, then the cold one."""
    users: Mapping[str, Rows]
    """The user row in the data of each of those."""


def draw_cold(events: Rows, num_item_rows: int, share: float, seed: int) -> dict[str, Rows]:
    """Draw two sets of items that have events, without one that is in both.

    Raises:
        ValueError: Too few items for a cold one in each.
    """
    items = np.unique(events[events > 0])
    size = round(share * (num_item_rows - 1))
    if size < 1 or 2 * size >= len(items):
        raise ValueError(
            f"{len(items)} items with events give no two sets of {size} cold ones (share {share} "
            f"of {num_item_rows - 1} items); take another share or more data"
        )
    drawn = np.random.default_rng([seed, num_item_rows]).permutation(items)
    return {"validation": np.sort(drawn[:size]), "test": np.sort(drawn[size : 2 * size])}


def cold_world(prepared: Prepared, order: str, seed: int, config: ColdStartConfig) -> ColdWorld:
    """Hold items out of a data set and append them behind the others."""
    sequences = prepared.order(order)
    events = np.asarray(sequences.item_rows)
    drawn = draw_cold(events, prepared.num_item_rows, config.cold_share, seed)
    cold_rows = np.concatenate([drawn["validation"], drawn["test"]])
    warm_rows = np.setdiff1d(np.arange(prepared.num_item_rows), cold_rows)
    place = np.empty(prepared.num_item_rows, np.int64)  # old item row -> new
    ordered = np.concatenate([warm_rows, cold_rows])
    place[ordered] = np.arange(len(ordered))

    moved = replace(sequences, item_rows=place[events])
    catalogue = reordered(prepared.catalogue, torch.from_numpy(ordered))
    training = warm_sequences(moved, len(warm_rows))
    codes = None
    if prepared.codes is not None:
        codes = appended_codes(
            catalogue.content[:, : prepared.content_columns], len(warm_rows), prepared.codes, seed
        )
    grown = replace(prepared, orders={order: training}, catalogue=catalogue, codes=codes)
    warm = replace(
        grown,
        catalogue=first_rows(catalogue, len(warm_rows)),
        sizes=replace(prepared.sizes, num_item_rows=len(warm_rows)),
    )
    if codes is not None:
        warm = replace(warm, codes=replace(codes, codes=codes.codes[: len(warm_rows)]))
    cold, queried, users = {}, {}, {}
    for split, rows in drawn.items():
        cold[split] = torch.zeros(prepared.num_item_rows, dtype=torch.bool)
        cold[split][place[rows]] = True
        events_before, users[split] = cold_queries(moved, cold[split].numpy(), len(warm_rows))
        features = {
            name: np.asarray(rows)[users[split]] for name, rows in prepared.user_features.items()
        }
        queried[split] = replace(
            grown.inputs(order), sequences=events_before, user_features=features
        )
    return ColdWorld(warm, grown, cold, queried, users)


def reordered(catalogue: ItemCatalogue, rows: Tensor) -> ItemCatalogue:
    """Lay a catalogue out in another order of rows."""
    return ItemCatalogue(catalogue.content[rows], catalogue.categories.take(rows))


def first_rows(catalogue: ItemCatalogue, num_rows: int) -> ItemCatalogue:
    """Keep the first rows."""
    return reordered(catalogue, torch.arange(num_rows))


def warm_sequences(sequences: Sequences, num_warm_rows: int) -> Sequences:
    """Leave out events of cold items and split what is left: the last of each user is test."""
    kept = np.asarray(sequences.item_rows) < num_warm_rows
    before = np.concatenate([[0], np.cumsum(kept)])  # kept events before each position
    offsets = before[np.asarray(sequences.offsets)]
    starts, ends = offsets[:-1], offsets[1:]
    times = None if sequences.times is None else np.asarray(sequences.times)[kept]
    # Users of one or two events train with all of them, as before the cold ones were taken out.
    held_out = ends - starts >= 3
    return Sequences(
        item_rows=np.asarray(sequences.item_rows)[kept],
        offsets=offsets,
        train_end=ends - 2 * held_out,
        validation_end=ends - held_out,
        times=times,
        context={name: np.asarray(rows)[kept] for name, rows in sequences.context.items()},
    )


def cold_queries(
    sequences: Sequences, is_cold: np.ndarray, num_warm_rows: int
) -> tuple[Sequences, Rows]:
    """Make every event of a cold item a user row of its own: the warm events before it, then it.

    Returns:
        The queries, whose last event is held out for test, and whose they are.
    """
    events = np.asarray(sequences.item_rows)
    is_warm = events < num_warm_rows
    before = np.concatenate([[0], np.cumsum(is_warm)])
    positions = np.flatnonzero(is_cold[events])
    users = sequences.users_of(positions)
    starts = before[np.asarray(sequences.offsets)[users]]
    ends = before[positions]
    some = ends > starts
    positions, users, starts, ends = (part[some] for part in (positions, users, starts, ends))
    warm_positions = np.flatnonzero(is_warm)
    # Each query: its warm events, then the cold one, written behind them.
    lengths = ends - starts + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    source = np.empty(int(offsets[-1]), np.int64)
    last = offsets[1:] - 1
    source[last] = positions
    others = np.ones(len(source), bool)
    others[last] = False
    source[others] = warm_positions[concatenated_ranges(starts, ends)]
    queries = Sequences(
        item_rows=events[source],
        offsets=offsets,
        train_end=last,
        validation_end=last,
        times=None if sequences.times is None else np.asarray(sequences.times)[source],
        context={name: np.asarray(rows)[source] for name, rows in sequences.context.items()},
    )
    return queries, users


def appended_codes(content: Tensor, num_warm_rows: int, like: ItemCodes, seed: int) -> ItemCodes:
    """Fit semantic IDs on warm items and append those of the cold ones; the warm keep theirs.

    Args:
        content: [N, F], warm items first; what IDs are made from. Rows of zeros get no ID.
        num_warm_rows: W.
        like: IDs of the same level sizes.
        seed: Of the fit.
    """
    config = ResidualKMeansConfig(level_sizes=like.level_sizes, seed=seed)
    warm = content[:num_warm_rows]
    known = warm.abs().sum(1) > 0
    quantizer = ResidualKMeans.fit(warm[known], config)
    ids = assign_semantic_ids(quantizer, warm)
    new = num_warm_rows + torch.arange(len(content) - num_warm_rows)
    new = new[content[new].abs().sum(1) > 0]
    grown = append(ids, quantizer, content[new], item_rows=new)
    codes = torch.full((len(content), ids.num_levels), -1, dtype=torch.int32)
    codes[: len(grown.codes)] = grown.codes
    return replace(like, codes=codes, level_sizes=grown.level_sizes)


def cold_evaluation(world: ColdWorld, split: str) -> EvaluationQueries:
    """Query the full catalogue for the cold items of a split."""
    return EvaluationQueries.of(world.queried[split], "test", world.grown.recipe.retrieval)


def with_best_warm(cold: Tensor, lists: Tensor, num_warm: int) -> Jagged:
    """List for each query its best warm items, those of lists [U, k] that are not cold.

    Args:
        cold: Item rows that are cold in any split, [N] bool.
        lists: Item rows, best first, -1 at the end.
    """
    is_warm = (lists > 0) & ~cold[lists.clamp(min=0)]
    kept = is_warm & (is_warm.long().cumsum(1) <= num_warm)
    return Jagged(lists[kept], cut_offsets(kept.sum(1)))
