"""The challenger's items and users against the champion's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.publishing.gate.subject import Subject, at_least, at_most
from pipelines.publishing.gate.vectors import common_rows
from recsys.models.popularity import Popularity
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict

MIN_KNOWN = 10
"""Items or users of the champion without which a share of them says nothing."""


def complete(subject: Subject) -> Iterator[Verdict]:
    """Refuse a catalogue, or a log, of which much is missing, and ids in the wrong column."""
    champion, challenger, config = subject.champion, subject.challenger, subject.config
    if champion is None:
        return
    items, users = _ids(champion, "items"), _ids(champion, "users")
    new_items, new_users = _ids(challenger, "items"), _ids(challenger, "users")
    swapped = _overlap(users, new_items) > _overlap(items, new_items)
    hint = "; its item ids are user ids: the columns were swapped" if swapped else ""
    if len(items) >= MIN_KNOWN:
        yield at_least(
            "catalogue completeness",
            _overlap(items, new_items),
            config.min_kept_items,
            f"share of the champion's {len(items)} items that are in this bundle ({len(new_items)} "
            f"items){hint}",
        )
    if len(users) >= MIN_KNOWN:
        yield at_least(
            "user completeness",
            _overlap(users, new_users),
            config.min_kept_users,
            f"share of the champion's {len(users)} users that are in this bundle{hint}",
        )


def _ids(bundle: Bundle, kind: str) -> set[str]:
    table = bundle.catalogue.item_ids if kind == "items" else bundle.users.user_ids
    return {table[row] for row in range(1, len(table))}


def _overlap(known: set[str], found: set[str]) -> float:
    return len(known & found) / len(known) if known else 0.0


def described_alike(subject: Subject) -> Iterator[Verdict]:
    """Refuse a catalogue most of whose items have other texts, or other categories, than before.

    A category that was only renamed is recognised by its items.
    """
    if subject.champion is None:
        return
    old, new = common_rows(subject)
    if len(old) < MIN_KNOWN:
        return
    before, after = subject.champion.catalogue, subject.challenger.catalogue
    texts = [
        before.display_texts[a] != after.display_texts[b] for a, b in zip(old, new, strict=True)
    ]
    yield at_most(
        "texts of the catalogue",
        float(np.mean(texts)),
        subject.config.max_changed_texts,
        "share of the items that both have whose text changed; a wrong column or a wrong file "
        "changes all",
    )
    groups = [_first_category(one, rows) for one, rows in ((before, old), (after, new))]
    if min(len(set(one)) for one in groups) < 2 <= max(len(set(one)) for one in groups):
        moved = 1.0
    else:
        moved = 1 - _most_renamed(*groups)
    yield at_most(
        "categories of the catalogue",
        moved,
        subject.config.max_changed_texts,
        "share of the items that both have which are no longer with the other items of their "
        "category",
    )


def _first_category(catalogue: object, rows: NDArray[np.int64]) -> list[int]:
    values, offsets = catalogue.category_values, catalogue.category_offsets  # type: ignore[attr-defined]
    return [
        int(values[offsets[row]]) if offsets[row + 1] > offsets[row] else 0 for row in rows.tolist()
    ]


def _most_renamed(before: list[int], after: list[int]) -> float:
    """Share of items that are where most items of their earlier category went."""
    pairs: dict[int, dict[int, int]] = {}
    for one, other in zip(before, after, strict=True):
        counts = pairs.setdefault(one, {})
        counts[other] = counts.get(other, 0) + 1
    return sum(max(counts.values()) for counts in pairs.values()) / max(1, len(before))


def popularity_of_events(subject: Subject) -> Iterator[Verdict]:
    """Count the bundle's events anew and compare with the popularity that it serves."""
    bundle = subject.challenger
    users = bundle.users
    if bundle.num_item_rows <= MIN_KNOWN or not len(users.item_rows):
        return
    times = None if users.times is None else np.asarray(users.times)
    counted = Popularity.fit(
        np.asarray(users.item_rows), times, bundle.num_item_rows, bundle.popularity.config
    )
    yield at_least(
        "popularity of these events",
        rank_correlation(counted.item_scores[1:], bundle.popularity.item_scores[1:]),
        0.5,
        "rank correlation of the served popularity with a count of the bundle's events",
    )


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's, ties with their mean rank; 1 where either does not vary."""
    ranks = [_mean_ranks(one.double()) for one in (first, second)]
    if min(float(one.std()) for one in ranks) == 0:
        return 1.0
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def _mean_ranks(values: Tensor) -> Tensor:
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks: Tensor = (last - (counts.double() - 1) / 2)[place]
    return ranks
