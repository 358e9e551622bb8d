"""Domains in one item space, planted or real, and how well a model ranks each; for benchmarks."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.data.domains import domain_positions
from recsys.data.windows import window_batch
from recsys.models.item_tower import ItemCatalogue
from recsys.models.sequence.model import SequenceModel
from tests.recsys.testing.worlds import WorldConfig, world


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

    def counts(self) -> Tensor:
        return self.sequences.item_counts(self.sequences.train_end, len(self.domain_of_item))


def leave_one_out(
    lists: list[NDArray[np.int64]], times: list[NDArray[np.int64]] | None = None
) -> Sequences:
    """Hold out each user's last two events; row 0 owns none."""
    offsets = np.concatenate([[0, 0], np.cumsum([len(one) for one in lists])])
    return Sequences(
        item_rows=np.concatenate(lists),
        offsets=offsets,
        train_end=np.maximum(offsets[1:] - 2, offsets[:-1]),
        validation_end=np.maximum(offsets[1:] - 1, offsets[:-1]),
        times=None if times is None else np.concatenate(times),
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


def prepared(folder: Path, names: tuple[str, ...]) -> Data:
    """Put prepared sets beside each other, by ``--prepare`` of cards in benchmarks/reproduction.

    Users of each are users of their own. Events of a set without times stand at time 0, decades
    before all others, which a calendar reads as a vector of its own.
    """
    lists: list[NDArray[np.int64]] = []
    times: list[NDArray[np.int64]] = []
    contents, categories, domains = [], [], [-1]
    lengths, num_items, num_categories = [np.zeros(1, np.int64)], 0, 1
    for number, name in enumerate(names):
        with np.load(folder / name / "arrays.npz", allow_pickle=False) as file:
            rows = file["given/item_rows"].astype(np.int64)
            cuts = file["given/offsets"].astype(np.int64)
            known = "given/times" in file
            when = file["given/times"].astype(np.int64) if known else np.zeros_like(rows)
            values, bounds = file["categories/values"], file["categories/offsets"]
        with np.load(folder / name / "content.npz", allow_pickle=False) as file:
            content = file["content"].astype(np.float32)
        users = [(a, b) for a, b in pairwise(cuts) if b - a >= 4]
        lists += [rows[a:b] + num_items for a, b in users]
        times += [when[a:b] for a, b in users]
        contents.append(content[1:])
        categories.append(values.astype(np.int64) + num_categories - 1)
        lengths.append(np.diff(bounds.astype(np.int64))[1:])
        domains += [number] * (len(content) - 1)
        num_items += len(content) - 1
        document = json.loads((folder / name / "prepared.json").read_text())
        num_categories += int(document["num_categories"]) - 1
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    everything = np.concatenate([np.zeros((1, contents[0].shape[1]), np.float32), *contents])
    of_items = Jagged(torch.from_numpy(np.concatenate(categories)), torch.from_numpy(offsets))
    return Data(
        leave_one_out(lists, times),
        ItemCatalogue(torch.from_numpy(everything), of_items),
        num_categories,
        np.array(domains),
        names,
    )


def drawn(whole: Data, num_users: int, seed: int) -> Data:
    """Keep so many users of each domain, drawn by the seed, and the items that they took."""
    sequences, rng = whole.sequences, np.random.default_rng(seed)
    first = whole.domain_of_item[sequences.item_rows[sequences.offsets[1:-1]]]
    chosen = [
        rng.permutation(np.flatnonzero(first == domain))[:num_users] + 1
        for domain in range(len(whole.names))
    ]
    parts = [
        slice(sequences.offsets[user], sequences.offsets[user + 1])
        for user in np.concatenate(chosen)
    ]
    lists = [np.asarray(sequences.item_rows[part]) for part in parts]
    when = sequences.times
    kept = np.concatenate([[0], np.unique(np.concatenate(lists))])
    rows = torch.from_numpy(kept)
    return Data(
        leave_one_out(
            [np.searchsorted(kept, one) for one in lists],
            None if when is None else [np.asarray(when[part]) for part in parts],
        ),
        ItemCatalogue(whole.catalogue.content[rows], whole.catalogue.categories.take(rows)),
        whole.num_categories,
        whole.domain_of_item[kept],
        whole.names,
    )


def cut(data: Data, domains: Collection[int]) -> tuple[Data, NDArray[np.int64]]:
    """Keep the items and events of some domains; also names the item rows that were kept, [n].

    What was held out stays held out; users keep their numbers, those without an event too.
    """
    keep_item = np.isin(data.domain_of_item, list(domains))
    rows = np.concatenate([[0], np.flatnonzero(keep_item)])
    place = np.zeros(len(data.domain_of_item), np.int64)
    place[rows] = np.arange(len(rows))
    whole = data.sequences
    keep = keep_item[np.asarray(whole.item_rows)]
    before = np.concatenate([[0], np.cumsum(keep)])
    kept = torch.from_numpy(rows)
    part = Data(
        Sequences(
            item_rows=place[whole.item_rows[keep]],
            offsets=before[whole.offsets],
            train_end=before[whole.train_end],
            validation_end=before[whole.validation_end],
            times=None if whole.times is None else np.asarray(whole.times)[keep],
        ),
        ItemCatalogue(data.catalogue.content[kept], data.catalogue.categories.take(kept)),
        data.num_categories,
        data.domain_of_item[rows],
        data.names,
    )
    return part, rows


OF_ITEMS = ("embedding_bags.item.weight", "item_counts")
OF_CATEGORIES = "embedding_bags.category.weight"


def rows_of_weights(
    weights: dict[str, Tensor], rows: NDArray[np.int64] | None
) -> dict[str, Tensor]:
    """Keep some items' rows of a sequence model's state dict; all for None."""
    if rows is None:
        return weights
    kept = torch.from_numpy(rows)
    return {
        name: value[kept] if name.endswith(OF_ITEMS) else value for name, value in weights.items()
    }


def grown_weights(
    weights: dict[str, Tensor], rows: NDArray[np.int64], data: Data, part: Data
) -> dict[str, Tensor]:
    """Put the weights of a model of some items, ``rows``, into a catalogue of more.

    The others were never met, nor were categories that only they have: those add nothing, as row 0
    of a vocabulary, which is what they would be.
    """
    grown = dict(weights)
    for name, value in weights.items():
        if name.endswith(OF_ITEMS):
            whole = value.new_zeros(len(data.domain_of_item), *value.shape[1:])
            whole[torch.from_numpy(rows)] = value
            grown[name] = whole
        if name.endswith(OF_CATEGORIES):
            met = torch.zeros(len(value), dtype=torch.bool)
            met[part.catalogue.categories.values] = True
            grown[name] = value * met[:, None]
    return grown


class Judge:
    """N@10 among a domain's items on users that a split holds out; half of them, or all."""

    def __init__(
        self,
        data: Data,
        sequences: Sequences,
        domain: int,
        device: str,
        *,
        split: Literal["validation", "test"] = "validation",
        half: int | None = None,
    ) -> None:
        own = data.own(domain)
        positions = domain_positions(sequences, split, own)
        if half is not None:
            # By the user, so that both histories of a user, whole and cut, fall into one half.
            positions = positions[sequences.users_of(positions) % 2 == half]
        starts = sequences.offsets[sequences.users_of(positions)]
        self.parts = [
            (
                window_batch(sequences, starts[a : a + 1024], positions[a : a + 1024]).to(device),
                sequences.labels(positions[a : a + 1024]).to(device),
            )
            for a in range(0, len(positions), 1024)
        ]
        self.rows = torch.from_numpy(np.flatnonzero(own)).to(device)  # [C]
        self.place = torch.full((len(own),), len(self.rows), device=device)
        self.place[self.rows] = torch.arange(len(self.rows), device=device)
        self.num_users = len(positions)

    def __call__(self, model: SequenceModel) -> float:
        return float(self.gains(model).mean())

    @torch.no_grad()
    def gains(self, model: SequenceModel) -> NDArray[np.float32]:
        """Give each user's N@10, [U]."""
        model.eval()
        items = functional.pad(model.all_item_vectors()[self.rows], (0, 0, 0, 1)).T  # [D, C + 1]
        found = [torch.zeros(0)]
        for queries, labels in self.parts:
            scores = model.query_vectors(queries) @ items
            history, wanted = queries["history"], self.place[labels]
            # What is of other domains falls into the last column.
            own = scores.gather(1, wanted[:, None])
            scores[history.segments(), self.place[history.values]] = -torch.inf
            scores[:, -1] = -torch.inf
            ranks = (scores > own).sum(1)
            found.append(torch.where(ranks < 10, 1 / torch.log2(ranks + 2.0), 0.0).cpu())
        return torch.cat(found).numpy()
