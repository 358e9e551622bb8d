"""Domains in one item space, planted or real, and how well a model ranks each; for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.data.domains import domain_positions
from recsys.data.windows import window_batch
from recsys.models.item_tower import ItemCatalogue
from recsys.models.sequence import SequenceModel
from recsys.testing.worlds import WorldConfig, world


@dataclass(frozen=True)
class Data:
    """Domains in one item space."""

    sequences: Sequences
    catalogue: ItemCatalogue
    num_categories: int
    domain_of_item: NDArray[np.int64]
    """[N], -1 for row 0."""
    names: tuple[str, ...]

    def own(self, domain: int) -> NDArray[np.bool_]:
        return self.domain_of_item == domain

    def counts(self, sequences: Sequences) -> Tensor:
        starts, ends = sequences.offsets[:-1], sequences.train_end
        seen = np.concatenate([sequences.item_rows[a:b] for a, b in zip(starts, ends, strict=True)])
        return torch.from_numpy(np.bincount(seen, minlength=len(self.domain_of_item)))


def leave_one_out(lists: list[NDArray[np.int64]]) -> Sequences:
    """Hold out each user's last two events; row 0 owns none."""
    offsets = np.concatenate([[0, 0], np.cumsum([len(one) for one in lists])])
    return Sequences(
        item_rows=np.concatenate(lists),
        offsets=offsets,
        train_end=np.maximum(offsets[1:] - 2, offsets[:-1]),
        validation_end=np.maximum(offsets[1:] - 1, offsets[:-1]),
    )


def synthetic(seed: int) -> Data:
    """Clicks of a world whose domains are of opposite tastes; content tells the topic, noisily."""
    made = world(WorldConfig(seed=100 + seed, num_users=1_500, num_items=800, num_requests=60_000))
    shown, truth = made.impressions, made.truth
    clicked = shown.labels[:, 1]
    users, items = shown.users[clicked], shown.items[clicked] + 1
    lists = [items[users == user] for user in range(made.config.num_users)]
    rng = np.random.default_rng(seed)
    content = np.zeros((truth.num_items + 1, 24), np.float32)
    content[1:] = rng.normal(0, 0.5, (truth.num_items, 24))
    content[np.arange(1, truth.num_items + 1), truth.topic_of_item] += 1.0
    domains = np.concatenate([[-1], truth.domain_of_item])
    return Data(
        leave_one_out([one for one in lists if len(one) >= 4]),
        ItemCatalogue(
            torch.from_numpy(content), ItemCatalogue.empty(truth.num_items + 1).categories
        ),
        0,
        domains,
        tuple(f"domain {number}" for number in range(made.config.num_domains)),
    )


def joined(folder: Path, num_users: int | None = None, seed: int = 0) -> Data:
    """Put the domains of a folder beside each other; users of each are users of their own.

    Args:
        num_users: Draw so many users of each domain; items that none of them took are left out.
    """
    names = tuple(sorted(path.stem for path in folder.glob("*.npz") if "_" not in path.stem))
    lists: list[NDArray[np.int64]] = []
    contents, categories, domains = [], [], [-1]
    lengths, num_items, num_categories = [np.zeros(1, np.int64)], 0, 1
    for number, name in enumerate(names):
        stored = np.load(folder / f"{name}.npz")
        rows, cuts = stored["rows"], stored["offs"]
        lists += [rows[a:b] + num_items for a, b in pairwise(cuts[1:]) if b - a >= 4]
        content = np.load(folder / f"{name}_content.npy").astype(np.float32)
        contents.append(content[1:])
        known = np.load(folder / f"{name}_cats.npz")
        categories.append(known["values"] + num_categories - 1)
        lengths.append(np.diff(known["offsets"])[1:])
        domains += [number] * (len(content) - 1)
        num_items += len(content) - 1
        num_categories += int(known["n"]) - 1
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    everything = np.concatenate([np.zeros((1, contents[0].shape[1]), np.float32), *contents])
    values = torch.from_numpy(np.concatenate(categories))
    whole = Data(
        leave_one_out(lists),
        ItemCatalogue(torch.from_numpy(everything), Jagged(values, torch.from_numpy(offsets))),
        num_categories,
        np.array(domains),
        names,
    )
    return whole if num_users is None else drawn(whole, num_users, seed)


def drawn(whole: Data, num_users: int, seed: int) -> Data:
    """Keep so many users of each domain, drawn by the seed, and the items that they took."""
    sequences, rng = whole.sequences, np.random.default_rng(seed)
    first = whole.domain_of_item[sequences.item_rows[sequences.offsets[1:-1]]]
    chosen = [
        rng.permutation(np.flatnonzero(first == domain))[:num_users] + 1
        for domain in range(len(whole.names))
    ]
    lists = [
        np.asarray(sequences.item_rows[sequences.offsets[user] : sequences.offsets[user + 1]])
        for user in np.concatenate(chosen)
    ]
    kept = np.concatenate([[0], np.unique(np.concatenate(lists))])
    rows = torch.from_numpy(kept)
    return Data(
        leave_one_out([np.searchsorted(kept, one) for one in lists]),
        ItemCatalogue(whole.catalogue.content[rows], whole.catalogue.categories.take(rows)),
        whole.num_categories,
        whole.domain_of_item[kept],
        whole.names,
    )


def only(data: Data, domain: int) -> Sequences:
    """Cut all else out of every user's events; what was held out stays held out."""
    whole = data.sequences
    keep = data.own(domain)[np.asarray(whole.item_rows)]
    before = np.concatenate([[0], np.cumsum(keep)])
    return Sequences(
        item_rows=whole.item_rows[keep],
        offsets=before[whole.offsets],
        train_end=before[whole.train_end],
        validation_end=before[whole.validation_end],
    )


def without(data: Data, domain: int) -> Sequences:
    """Cut a domain out of every user's training events."""
    whole = data.sequences
    keep = ~data.own(domain)[np.asarray(whole.item_rows)]
    before = np.concatenate([[0], np.cumsum(keep)])
    ends = before[whole.train_end]
    kept = np.concatenate(
        [
            np.flatnonzero(keep[a:b]) + a
            for a, b in zip(whole.offsets[:-1], whole.train_end, strict=True)
        ]
    )
    offsets = np.concatenate([[0], np.cumsum(ends - before[whole.offsets[:-1]])])
    return Sequences(
        item_rows=whole.item_rows[kept],
        offsets=offsets,
        train_end=offsets[1:],
        validation_end=offsets[1:],
    )


class Judge:
    """N@10 among a domain's items on half of its validation users."""

    def __init__(self, data: Data, sequences: Sequences, domain: int, half: int, device: str):
        own = data.own(domain)
        positions = domain_positions(sequences, "validation", own)
        # By the user, so that both histories of a user, whole and cut, fall into one half.
        users = sequences.users_of(positions)
        positions = positions[users % 2 == half]
        starts = sequences.offsets[sequences.users_of(positions)]
        self.parts = [
            (
                window_batch(sequences, starts[a : a + 1024], positions[a : a + 1024]).to(device),
                sequences.labels(positions[a : a + 1024]).to(device),
            )
            for a in range(0, len(positions), 1024)
        ]
        self.others = torch.from_numpy(~own).to(device)
        self.num_users = len(positions)

    @torch.no_grad()
    def __call__(self, model: SequenceModel) -> float:
        gains = 0.0
        for queries, labels in self.parts:
            scores = model.score(queries).masked_fill(self.others, -torch.inf)
            history = queries["history"]
            wanted = scores.gather(1, labels[:, None])
            scores[history.segments(), history.values] = -torch.inf
            ranks = (scores > wanted).sum(1)
            gains += float((1 / torch.log2(ranks[ranks < 10] + 2.0)).sum())
        return gains / max(1, self.num_users)
