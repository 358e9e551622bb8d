"""Train users' rows on a stream with churn: every user's own, admitted, shared, and in 8 bits.

A shop of 40 days: each day some users stop coming for good and others come first; one in ten is a
regular. A user's clicks follow their taste and the items' popularity. Every day the rows are
assigned anew (``features/user_ids.py``), the model of the day before is continued on the day's
clicks, and the next day's are predicted: is the clicked item among the first 10 of all? The model
is a product of a user's and an item's row, trained by row-wise Adagrad.

8 bits: rows are kept as integers with a scale of their own (the largest number is 127), 72 bytes
instead of 256 at width 64. ``served``: what was trained in float32 is rounded once. ``trained``:
rows are rounded after every step, to the nearest or at random in proportion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from features.schema import UserIdRows
from features.user_ids import Assigned, UserActivity, assigned, renewed
from tests.benchmarks.harness import Row, command_line, write_results

DAYS, USERS, ITEMS, TASTE, WIDTH = 40, 12_000, 1_000, 8, 32
WARM_UP_DAYS = 15
BATCH, PASSES, NEGATIVES, RATE = 512, 2, 50, 0.15
DAY = 86_400


class Stream(NamedTuple):
    """Clicks of every day."""

    users: list[np.ndarray]
    items: list[np.ndarray]


class Variant(NamedTuple):
    """One way to hold users' rows."""

    name: str
    settings: UserIdRows
    bits: str = ""


def stream(seed: int) -> Stream:
    """Draw a shop's clicks."""
    random = np.random.default_rng(seed)
    tastes = random.normal(size=(USERS + 1, TASTE))
    items = random.normal(size=(ITEMS, TASTE))
    popular = 0.5 * random.gumbel(size=ITEMS)
    first = random.integers(-20, DAYS, size=USERS + 1)
    regular = random.random(USERS + 1) < 0.1
    stays = np.where(regular, 60, random.geometric(0.2, size=USERS + 1))
    users_of, items_of = [], []
    for day in range(DAYS):
        present = np.flatnonzero((first <= day) & (day < first + stays))
        present = present[present > 0]
        clicks = random.poisson(np.where(regular[present], 4.0, 1.5))
        users = random.permutation(np.repeat(present, clicks))
        scores = 0.7 * tastes[users] @ items.T + popular
        chosen = np.argmax(scores + random.gumbel(size=scores.shape), axis=1)
        users_of.append(users)
        items_of.append(chosen)
    return Stream(users_of, items_of)


def rounded(rows: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Round rows to 255 steps of their own; at random where there is a generator."""
    scale = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    steps = rows / scale
    if generator is not None:
        steps = (steps + torch.rand(steps.shape, generator=generator)).floor()
    return steps.round().clamp(-127, 127) * scale


class Model:
    """Users' tables (one or two) and the items', moved by rows."""

    def __init__(self, cardinality: dict[str, int], seed: int, bits: str) -> None:
        generator = torch.Generator().manual_seed(seed)
        sizes = [*cardinality.values(), ITEMS]
        self.tables = [torch.zeros(size, WIDTH) for size in sizes]
        self.tables[-1] = torch.randn(ITEMS, WIDTH, generator=generator) * 0.3
        self.squares = [torch.full((size,), 1e-6) for size in sizes]
        self.bias, self.generator, self.bits = torch.zeros(ITEMS), generator, bits

    def grow(self, cardinality: dict[str, int]) -> None:
        """Append rows, where every user has one."""
        for place, size in enumerate(cardinality.values()):
            more = size - len(self.tables[place])
            if more > 0:
                self.tables[place] = torch.cat([self.tables[place], torch.zeros(more, WIDTH)])
                self.squares[place] = torch.cat([self.squares[place], torch.full((more,), 1e-6)])

    def clear(self, rows: np.ndarray) -> None:
        """Zero rows that have gone to others."""
        self.tables[0][torch.from_numpy(rows)] = 0
        self.squares[0][torch.from_numpy(rows)] = 1e-6

    def move(self, place: int, rows: Tensor, gradient: Tensor) -> None:
        """Row-wise Adagrad on the different rows of a step."""
        unique, where = torch.unique(rows, return_inverse=True)
        summed = torch.zeros(len(unique), WIDTH).index_add_(0, where, gradient)
        self.squares[place][unique] += summed.square().mean(1)
        step = RATE * summed / self.squares[place][unique].sqrt()[:, None]
        moved = self.tables[place][unique] - step
        if self.bits:
            moved = rounded(moved, self.generator if self.bits == "random" else None)
        self.tables[place][unique] = moved

    def step(self, rows: list[Tensor], items: Tensor) -> None:
        """Softmax of the clicked item against drawn ones."""
        drawn = torch.randint(0, ITEMS, (NEGATIVES,), generator=self.generator)
        candidates = torch.cat([items, drawn])
        users = sum(table[own] for table, own in zip(self.tables[:-1], rows, strict=True))
        assert isinstance(users, Tensor)
        vectors = self.tables[-1][candidates]  # [B + N, D]
        logits = users @ vectors.T + self.bias[candidates]
        # Clicks of the batch are drawn by popularity, so they are no fair negatives.
        logits[:, : len(items)] = torch.where(
            torch.eye(len(items)) > 0, logits[:, : len(items)], -30.0
        )
        share = logits.softmax(1)
        share[torch.arange(len(items)), torch.arange(len(items))] -= 1
        share /= len(items)
        of_users, of_items = share @ vectors, share.T @ users
        self.bias.index_add_(0, candidates, -2.0 * share.sum(0))
        for place, own in enumerate(rows):
            # The unknown row too: it learns what those without rows like.
            self.move(place, own, of_users)
        self.move(len(self.tables) - 1, candidates, of_items)


@torch.no_grad()
def hits(model: Model, rows: list[Tensor], items: Tensor, *, round_rows: bool) -> Tensor:
    """Say for each click whether its item is among the first 10 of all."""
    tables = [rounded(table) for table in model.tables] if round_rows else model.tables
    users = sum(table[own] for table, own in zip(tables[:-1], rows, strict=True))
    assert isinstance(users, Tensor)
    scores = users @ tables[-1].T + model.bias
    own = scores.gather(1, items[:, None])
    return (scores >= own).sum(1) <= 10


def rows_of(found: Assigned, users: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(rows[users]) for rows in found.features.values()]


def run(variant: Variant, data: Stream, seed: int) -> dict[str, float]:
    """Go through the stream once."""
    counts, last = np.zeros(USERS + 1, np.int64), np.zeros(USERS + 1, np.int64)
    owners: np.ndarray | None = None
    model: Model | None = None
    found_hits: list[Tensor] = []
    later: list[Tensor] = []
    most = 0
    for day in range(DAYS - 1):
        users, items = data.users[day], torch.from_numpy(data.items[day])
        np.add.at(counts, users, 1)
        last[users] = (day + 1) * DAY
        found = assigned(variant.settings, UserActivity(counts, last), owners)
        assert found is not None
        if model is None:
            trained = variant.bits if variant.bits != "served" else ""
            model = Model(found.cardinality, seed, trained)
        if owners is not None and len(found.owners):
            model.clear(renewed(found.owners, owners))
        owners = found.owners if len(found.owners) else None
        most = max(most, sum(found.cardinality.values()))
        rows = rows_of(found, users)
        order = torch.Generator().manual_seed(day)
        for _ in range(PASSES):
            for part in torch.randperm(len(items), generator=order).split(BATCH):
                model.step([one[part] for one in rows], items[part])
        if day >= WARM_UP_DAYS:
            next_users = data.users[day + 1]
            served = variant.bits == "served"
            clicked = torch.from_numpy(data.items[day + 1])
            hit = hits(model, rows_of(found, next_users), clicked, round_rows=served)
            found_hits.append(hit)
            later.append(hit[torch.from_numpy(counts[next_users] >= 5)])
    return {
        "hit": 100 * float(torch.cat(found_hits).float().mean()),
        "of active": 100 * float(torch.cat(later).float().mean()),
        "rows": most,
    }


def variants() -> list[Variant]:
    """List the ways that are compared; a table of every user first."""
    whole = UserIdRows(rows=USERS, min_events=1)
    found = [Variant("every user", whole), Variant("8 bits, served", whole, "served")]
    found.append(Variant("8 bits, trained, to the nearest", whole, "nearest"))
    found.append(Variant("8 bits, trained, at random", whole, "random"))
    for rows in (3_000, 1_200):
        share = f"{rows / USERS:.0%} of the rows"
        for name, settings in (
            ("admitted", UserIdRows(rows=rows, min_events=3, ttl_days=7)),
            ("admitted, never evicted", UserIdRows(rows=rows, min_events=3)),
            ("hashed", UserIdRows(rows=rows, kind="hashed", min_events=1)),
            ("hashed twice", UserIdRows(rows=rows, kind="hashed_twice", min_events=1)),
        ):
            found.append(Variant(f"{name}, {share}", settings))
    return [*found, Variant("nobody", UserIdRows(rows=1, min_events=10**9))]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    made: list[Row] = []
    shops = [stream(seed) for seed in range(seeds)]
    base = 0.0
    for variant in variants():
        each = [run(variant, shop, seed) for seed, shop in enumerate(shops)]
        mean = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        base = base or mean["hit"]
        name = variant.name
        made += [
            Row(
                name=f"{name}: clicked item in the first 10",
                value=mean["hit"],
                unit="%",
                ratio=mean["hit"] / base,
            ),
            Row(name=f"{name}: of users with 5 events", value=mean["of active"], unit="%"),
            Row(name=f"{name}: most rows", value=mean["rows"]),
        ]
        print(made[-3], made[-2].value, flush=True)
    notes = (
        f"{seeds} shops of {DAYS} days, {USERS:,} users, {ITEMS:,} items; the last "
        f"{DAYS - WARM_UP_DAYS - 1} days count. Ratio: against `every user`."
    )
    write_results("user_rows", made, notes=notes)


if __name__ == "__main__":
    main()
