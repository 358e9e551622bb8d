"""Measures beyond accuracy: coverage, novelty, diversity, fairness of exposure.

Every function reads the lists of `RankingResult.top_k`: item rows best first, -1 where a list is
short. Measures of one list are given per user, so that they can be sliced, bounded and
compared like NDCG; measures of all lists together are one number.

Popularity is counted on training histories only: `item_popularity(histories, num_item_rows)`.

Axes: U users, K length of the lists, k list length measured, N item rows (row 0 is padding),
D width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from recsys.data.batch import Jagged

MAX_CELLS = 1 << 22
"""Floats held at once while users are worked off in chunks (32 MiB)."""


def item_popularity(histories: Jagged, num_item_rows: int) -> Tensor:
    """Count the users who have each item in their history, [N] int64; a repeat counts once."""
    inside = (histories.values > 0) & (histories.values < num_item_rows)
    pairs = histories.segments()[inside] * num_item_rows + histories.values[inside]
    return torch.bincount(torch.unique(pairs) % num_item_rows, minlength=num_item_rows)


def exposure(lists: Tensor, k: int, num_item_rows: int) -> Tensor:
    """Count the lists that show each item among the first k, [N] int64."""
    shown = lists[:, :k]
    return torch.bincount(shown[shown > 0], minlength=num_item_rows)


def catalogue_coverage(lists: Tensor, k: int, num_item_rows: int) -> float:
    """Share of the catalogue that at least one list shows (Ge et al., RecSys 2010).

    Grows with the number of users, so it compares models for the same users only.
    """
    return float((exposure(lists, k, num_item_rows)[1:] > 0).double().mean())


def gini_of_exposure(lists: Tensor, k: int, num_item_rows: int) -> float:
    """Gini coefficient of how often each item is shown (Fleder and Hosanagar, 2009).

    0 where all items are shown equally often, 1 - 1 / (number of items) where one takes all;
    items never shown count as 0. Lists that show no item give 0: nothing is unequal.

        G = sum over i = 1..n of (2 i - n - 1) x_i / (n sum x), x sorted ascending
    """
    counts = exposure(lists, k, num_item_rows)[1:].double().sort().values
    place = torch.arange(1, len(counts) + 1, dtype=torch.float64)
    total = float(counts.sum()) * len(counts)
    return float(((2 * place - len(counts) - 1) * counts).sum()) / total if total else 0.0


def novelty(lists: Tensor, k: int, popularity: Tensor, num_users: int) -> Tensor:
    """Mean self-information of a list's items, log2(num_users / popularity), in bits, [U].

    Zhou et al., PNAS 2010: how surprising it is that a random user knows the item. An item
    no user has counts as if one user had it, so cold items are the most novel but not infinitely.
    NaN for an empty list.

    Args:
        popularity: Users who have each item, [N] (`item_popularity`).
    """
    bits = torch.log2(num_users / popularity.double().clamp_min(1))  # [N]
    shown = lists[:, :k]
    present = shown > 0
    return (bits[shown.clamp_min(0)] * present).sum(1) / present.sum(1)


def intra_list_diversity(lists: Tensor, k: int, vectors: Tensor) -> Tensor:
    """Mean cosine distance between the pairs of a list (Ziegler et al., WWW 2005), [U].

    0 where all items point one way, 1 where they are orthogonal, up to 2. An item with a zero
    vector is at distance 1 from all others. NaN for a list with fewer than two items.

    Args:
        vectors: Of every item row, [N, D], such as content embeddings; not the vectors the model
            ranks by, or the model defines its own diversity.
    """
    shown = lists[:, :k]
    unit = normalize(vectors.float(), dim=1)  # [N, D]
    has_direction = unit.square().sum(1) > 0
    parts = []
    for rows in torch.split(shown, max(1, MAX_CELLS // unit.shape[1])):
        total = embedding_bag(rows.clamp_min(0), unit, mode="sum", padding_idx=0)  # [b, D]
        squares = (has_direction[rows.clamp_min(0)] & (rows > 0)).double().sum(1)
        parts.append(_mean_distance(total.double(), squares, (rows > 0).sum(1)))
    return torch.cat(parts)


def _mean_distance(total: Tensor, squares: Tensor, num_items: Tensor) -> Tensor:
    """1 - mean cosine over pairs, from the sum of the unit vectors: no pair is visited, [b]."""
    cosines = (total**2).sum(1) - squares  # over ordered pairs of different items
    distance = 1 - cosines / (num_items * (num_items - 1))
    return distance.masked_fill(num_items < 2, torch.nan)
