"""How much each item was wanted, lately and ever: what a blend reads of an item besides its lists.

Lists of popular items say nothing of items below their last place. Weights of these features are
learned with those of the lists (learned.py), and only say how much more often an item is chosen
than one without events. They are three numbers an item, since a visitor's history decides how far
demand counts.

Weights rank items without events low: sources tell little of them, and most targets are old. One
parameter more is how many times as often they are chosen as the weights expect, fitted on all
queries. Nothing tells it which of them want a new item.

A blend judged by time learns what people want who come back. In the middle of a visit, or away for
longer than most who came back, others' demand says little: the user's own history ranks, by
weights of its own.

Axes: E events, N item rows, D features of demand, B queries, Q queries fitted on, C candidates of
each, P features of lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.dataset import Rows, Sequences
from recsys.data.top_k import TopK
from recsys.models.names import POPULARITY
from recsys.retrieval.blend.choices import Choices, FittedWeights, fit_weights, kinds_of_rows
from recsys.retrieval.blend.config import BlendConfig

DAY = 86_400
HALF_LIVES = (7.0, 30.0, 90.0, 365.0)
"""Days."""
EVENTS_AT_ONCE = 1 << 20
"""Events that are counted together, so that memory stays flat."""
NEVER = 3_000.0
"""Days since the last event of an item without one."""
DEMAND = (*(f"events.{days:g}d" for days in HALF_LIVES), "events", "age", "last")
"""Logarithms (log1p) of an item's events, half as much after each of these days; of all of them;
of the days since the first; and of the days since the last one, less that of ``NEVER``."""
DEMAND_L2 = 10.0
"""Pulls weights of demand, of features of deviation 1, towards 0; worth this many queries."""
LONGEST = 4_095
"""Longest history by number of events; longer ones count as this long."""
LENGTH_LOGS = torch.arange(LONGEST + 1, dtype=torch.float64).log1p()
"""By length: one table for one query and for many, whose logarithms may differ in the last bit."""
OWN = -2
"""Length of history that stands for that of a query which the user's own history ranks."""
VISIT_SECONDS = 1_800
"""A visit lasts until this long after its last event."""
CAME_BACK, MIN_QUERIES = (0.7, 0.8, 0.9, 0.95, 1.0), 50
"""Shares of validation's users whose absences are tried as the longest that others' demand counts
after; and the fewest queries that show it."""
PARTS = 3
"""Parts of an item's demand: for everyone, for visitors without a history, and times the
logarithm (log1p) of the history's length."""


def item_demand(item_rows: Rows, times: Rows, num_item_rows: int) -> Tensor:
    """Measure each item's demand at the last of some events, [N, D] float32; 0 without events.

    Args:
        item_rows: Of the events, [E].
        times: Unix seconds, [E].
    """
    columns = np.zeros((len(DEMAND), num_item_rows))
    columns[-1] = NEVER
    now = int(times.max()) if len(times) else 0
    for begin in range(0, len(times), EVENTS_AT_ONCE):
        block = slice(begin, begin + EVENTS_AT_ONCE)
        _count(columns, item_rows[block], (now - times[block]) / DAY)
    demand = torch.from_numpy(np.log1p(columns).T.copy())
    demand[:, -1] -= np.log1p(NEVER)
    return demand.float()


def _count(columns: NDArray[np.float64], item_rows: Rows, ages: NDArray[np.float64]) -> None:
    """Add events of some ages in days to columns [D, N]."""
    num_item_rows = columns.shape[1]
    inside = (item_rows > 0) & (item_rows < num_item_rows)
    item_rows, ages = item_rows[inside], ages[inside]
    for column, days in zip(columns, HALF_LIVES, strict=False):
        column += np.bincount(item_rows, np.exp2(-ages / days), minlength=num_item_rows)
    columns[-3] += np.bincount(item_rows, minlength=num_item_rows)
    np.maximum.at(columns[-2], item_rows, ages)
    np.minimum.at(columns[-1], item_rows, ages)


def demand_before(sequences: Sequences, ends: Rows, num_item_rows: int) -> Tensor | None:
    """Measure demand by each user's events before ``ends`` [U]; None without times."""
    if sequences.times is None:
        return None
    places = sequences.without_negative(sequences.positions_before(ends))
    rows, times = np.asarray(sequences.item_rows[places]), np.asarray(sequences.times[places])
    return item_demand(rows, times, num_item_rows)


def history_parts(history_lengths: Tensor) -> Tensor:
    """Return how much each part counts for histories of some lengths, [B] -> [B, PARTS] float64.

    Of a history of unknown length, -1, the first part alone does; of ``OWN`` none.
    """
    logs = LENGTH_LOGS.to(history_lengths.device)[history_lengths.clamp(0, LONGEST)]
    counts = (history_lengths != OWN).double()
    return torch.stack([counts, (history_lengths == 0).double(), logs], 1)


class DemandOfChoices(NamedTuple):
    """Demand of the candidates themselves."""

    features: Tensor
    """[Q, C, PARTS * D] float32, each of deviation 1."""
    scales: Tensor
    """[PARTS * D] float32, what features were divided by."""

    @classmethod
    def of(cls, demand: Tensor, item_rows: Tensor, history_lengths: Tensor) -> DemandOfChoices:
        """Look demand [N, D] up for candidates [Q, C], 0 for rows beyond, by history [Q]."""
        inside = (item_rows > 0) & (item_rows < len(demand))
        own = demand[item_rows.where(inside, 0)] * inside[:, :, None]  # [Q, C, D]
        parts = history_parts(history_lengths).float()  # [Q, PARTS]
        features = (parts[:, None, :, None] * own[:, :, None]).flatten(2)
        scales = features[item_rows > 0].std(0)
        scales = scales.where(scales > 1e-6, 1.0)
        return cls(features / scales, scales)


def fit_with_demand(
    choices: Choices, of_items: DemandOfChoices | None, l2: float, *, non_negative: bool
) -> tuple[FittedWeights, Choices, Tensor | None]:
    """Fit weights of features, [P], with those of demand if there is any."""
    width = choices.features.shape[2]
    if of_items is None:
        precision = l2 * torch.eye(width)
        shared = fit_weights(choices, torch.zeros(width), precision, non_negative=non_negative)
        return shared, choices, None
    whole = choices._replace(features=torch.cat([choices.features, of_items.features], 2))
    penalties = torch.full((whole.features.shape[2],), DEMAND_L2)
    penalties[:width] = l2
    is_list = torch.arange(len(penalties)) < width
    fitted = fit_weights(
        whole, torch.zeros(len(penalties)), penalties.diag(), non_negative=is_list & non_negative
    )
    weights = fitted.weights[width:]
    shared = fitted._replace(weights=fitted.weights[:width])
    choices = choices._replace(offsets=choices.offsets + of_items.features @ weights)
    return shared, choices, (weights / of_items.scales).view(PARTS, -1)


NEW_ITEMS_L2 = 1.0
"""Pulls the logarithm of the odds towards 0; worth a few queries."""


def with_new_item_odds(
    config: BlendConfig,
    choices: Choices,
    weights: Tensor,
    item_rows: Tensor,
    item_counts: Tensor | None,
) -> tuple[BlendConfig, Choices]:
    """Fit ``new_item_odds`` if they are not set, and add them to the choices.

    They are 1 if no target is new, and never less: new items are not ranked lower than before.

    Args:
        weights: Fitted to the features of the choices, [P].
        item_rows: Of the candidates, [Q, C].
        item_counts: Events of each item that the sources were fitted on, [N]; None if not known.
    """
    if config.new_item_odds is not None or item_counts is None:
        return config, choices
    new = kinds_of_rows((item_counts == 0).long(), item_rows) == 1  # [Q, C]
    if not bool(((choices.chosen > 0) & new).any()):
        return replace(config, new_item_odds=1.0), choices
    offsets = choices.offsets + choices.features @ weights
    fitted = fit_weights(
        Choices(new[:, :, None].float(), offsets, choices.chosen),
        torch.zeros(1),
        torch.full((1, 1), NEW_ITEMS_L2),
    )
    log_odds = float(fitted.weights)
    choices = choices._replace(offsets=choices.offsets + log_odds * new)
    return replace(config, new_item_odds=math.exp(log_odds)), choices


def days_away(sequences: Sequences, positions: Rows) -> Tensor | None:
    """Count the days from each query's last event to the end of train, [B]; NaN without a history.

    None without times, or if some held-out events are not after that end: then validation
    is of each user's last events, and tells nothing of absences.
    """
    if sequences.times is None or len(positions) == 0:
        return None
    seen = sequences.times[sequences.positions_before(sequences.visible_end("train"))]
    now = int(seen.max(initial=0))
    if int(sequences.times[positions].min()) <= now:
        return None
    is_first = positions == sequences.offsets[sequences.users_of(positions)]
    last = np.asarray(sequences.times[np.maximum(positions - 1, 0)])
    return torch.from_numpy(np.where(is_first, np.nan, (now - last) / DAY))


def longest_absences(days: Tensor | None) -> list[float]:
    """Return the days away that each share of ``CAME_BACK`` of these queries does not exceed.

    Nothing of too few queries, or without an absence.
    """
    known = torch.zeros(0) if days is None else days[~days.isnan()]
    if len(known) < MIN_QUERIES:
        return []
    return [longest for share in CAME_BACK if (longest := float(known.quantile(share)))]


def of_their_own(
    lists: Mapping[str, TopK], history_lengths: Tensor, is_own: Tensor, k: int
) -> tuple[dict[str, TopK], Tensor]:
    """Take the popular list and the length of the history away from some queries.

    Args:
        lists: By source, [B, k_s] each.
        history_lengths: [B].
        is_own: Whether the user's own history ranks, [B] bool.
        k: Places that the others must fill without it.
    """
    others = [(top.item_rows > 0).sum(1) for name, top in lists.items() if name != POPULARITY.name]
    if not others or not bool(is_own.any()):
        return dict(lists), history_lengths
    own = is_own & (torch.stack(others).amax(0) >= k)
    found = dict(lists)
    if POPULARITY.name in found:
        scores, rows = found[POPULARITY.name]
        gone = own[:, None]
        found[POPULARITY.name] = TopK(
            scores.masked_fill(gone, -torch.inf), rows.masked_fill(gone, -1)
        )
    return found, history_lengths.masked_fill(own, OWN)
