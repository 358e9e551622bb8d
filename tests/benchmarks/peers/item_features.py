"""What recent demand, as features of items, adds to a blend in a replay, and how high it could get.

    python -m tests.benchmarks.peers.item_features FOLDER ... [--write NAME]

Reads the lists that the sources of a backtest's policy ``full`` wrote and merges them anew. Weights
of a step are learned on the step before; they read the rank of an item in each source, by the
item's number of events. ``item features`` adds what is known of the item itself when the step
begins: logarithms of its events that halve in 7, 30, 90 and 365 days, of all its events, of days
since its first and its last one, each also for users without a history, and times the logarithm of
the history's length.

Axes: Q queries, L candidates of a query, S sources, F features, N item rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.benchmarks.harness import Row, as_table, write_results
from tests.benchmarks.peers.folder import KEPT, WARM_UP, Backtest, Known, Queries, Rows
from tests.benchmarks.peers.ranking import best

SOURCES = ("popularity", "item_to_item", "ease", "item_knn", "content", "two_tower", "sequence")
RECENT = "popularity_7d"
HALF_LIVES = (7, 30, 90, 365)
DAY, NEVER = 86_400, 3_000
FUSION, L2, K = 60, 10.0, 10
KINDS = (5.0, 20.0)
"""Number of events at which kinds of items begin, as in the preset of Amazon's sets."""
DISCOUNTS = 1 / np.log2(np.arange(2, K + 2))
IDEAL = np.concatenate([[0.0], np.cumsum(DISCOUNTS)])
ROWS = {"blend": False, "blend, item features": True}


@dataclass(frozen=True)
class StepLists:
    """A step's queries with every source's list."""

    backtest: Backtest
    step: int

    @cached_property
    def queries(self) -> Queries:
        return self.backtest.queries(self.step)

    @cached_property
    def known(self) -> Known:
        return self.backtest.known_before(self.queries.begin)

    def decayed(self, days: float) -> NDArray[np.float64]:
        """Count each item's events, those of so many days ago by half, [N]."""
        age = (self.known.begin - self.known.times) / DAY
        return np.bincount(
            self.known.item_rows, 0.5 ** (age / days), minlength=self.known.num_item_rows
        )

    def item_features(self) -> Tensor:
        """What is known of every item when the step begins, [N, F]."""
        known, counts = self.known, self.known.counts()
        first = np.full(known.num_item_rows, known.begin)
        last = np.full(known.num_item_rows, known.begin - NEVER * DAY)
        np.minimum.at(first, known.item_rows, known.times)
        np.maximum.at(last, known.item_rows, known.times)
        columns = [self.decayed(days) for days in HALF_LIVES]
        columns += [counts, (known.begin - first) / DAY, (known.begin - last) / DAY]
        return torch.from_numpy(np.log1p(np.stack(columns, 1))).float()

    def lists(self) -> dict[str, Rows]:
        """Read each source's list, and list what was popular in the last days, [Q, KEPT] each."""
        models = {WARM_UP: "warm-up", 1: "first"}.get(self.step, "full")
        folder = self.backtest.path / "steps" / str(self.step) / "lists"
        paths = {name: folder / f"{models}.{name}.npz" for name in SOURCES}
        lists = {
            name: np.load(path, allow_pickle=False)["item_rows"].astype(np.int64)
            for name, path in paths.items()
            if path.exists()
        }
        scores = np.where(self.queries.candidates, self.decayed(7), -np.inf)
        order = np.argsort(-scores, kind="stable")
        lists[RECENT] = np.zeros((len(self.queries), KEPT), np.int64)
        for query in range(len(self.queries)):
            begin, end = self.queries.history_offsets[query : query + 2]
            some = order[: KEPT + end - begin]
            own = some[~np.isin(some, self.queries.history_rows[begin:end])][:KEPT]
            lists[RECENT][query, : len(own)] = own
        return lists

    def hits(self, rows: Rows) -> NDArray[np.bool_]:
        """Say which places hold a target of their query, [Q, L]."""
        lengths, size = np.diff(self.queries.target_offsets), self.known.num_item_rows
        wanted = np.repeat(np.arange(len(lengths)), lengths) * size + self.queries.targets
        return np.isin(np.arange(len(rows))[:, None] * size + rows, wanted) & (rows > 0)

    def ndcg(self, rows: Rows) -> NDArray[np.float64]:
        """NDCG@10 of every query, [Q]."""
        most = IDEAL[np.minimum(np.diff(self.queries.target_offsets), K)]
        return (self.hits(rows[:, :K]) * DISCOUNTS).sum(1) / most

    def ceiling(self, reachable: NDArray[np.int64]) -> float:
        """NDCG@10 with so many targets of every query, [Q], in the first places."""
        most = IDEAL[np.minimum(np.diff(self.queries.target_offsets), K)]
        return float((IDEAL[np.minimum(reachable, K)] / most).mean())


@dataclass(frozen=True)
class Candidates:
    """The distinct items of each query's lists, and what weights read of them."""

    item_rows: Tensor
    """[Q, L], 0 behind the last."""
    ranks: Tensor
    """By source, and by kind of item, [Q, L, F]."""
    items: Tensor
    """Features of the item, also by the query's history, [Q, L, F]."""
    hits: Tensor
    """[Q, L] float32."""

    @classmethod
    def of(cls, step: StepLists) -> Candidates:
        """Bring equal items of all lists together."""
        lists = step.lists()
        places = np.concatenate(list(lists.values()), 1)  # [Q, S * KEPT]
        rows = np.zeros_like(places)
        ranks = np.zeros((*places.shape, 2 * len(lists)), np.float32)
        source = np.repeat(np.arange(len(lists)), KEPT)
        reciprocal = (FUSION + 1) / (FUSION + 1 + np.tile(np.arange(KEPT), len(lists)))
        for query, own in enumerate(places):
            found, at = np.unique(own, return_inverse=True)
            rows[query, : len(found)] = found
            there = own > 0
            ranks[query, at[there], 2 * source[there]] = reciprocal[there]
            ranks[query, at[there], 2 * source[there] + 1] = 1
        width = int((rows > 0).sum(1).max()) + 1
        rows, by_source = rows[:, :width], torch.from_numpy(ranks[:, :width])
        item_rows = torch.from_numpy(rows)
        counts = torch.from_numpy(step.known.counts())[item_rows]
        kind = torch.bucketize(counts, torch.tensor(KINDS), right=True)[:, :, None]
        kinds = [
            part for one in range(len(KINDS)) for part in (by_source * (kind == one), kind == one)
        ]
        own = step.item_features()[item_rows]
        length = torch.from_numpy(np.diff(step.queries.history_offsets)).float()[:, None, None]
        return cls(
            item_rows,
            torch.cat([by_source, *(part.float() for part in kinds)], 2),
            torch.cat([own, own * (length == 0), own * length.log1p()], 2),
            torch.from_numpy(step.hits(rows)).float(),
        )

    def features(self, *, items: bool) -> Tensor:
        """Everything that weights read, [Q, L, F]."""
        return torch.cat([self.ranks, self.items], 2) if items else self.ranks

    def learned(self, *, items: bool) -> Tensor:
        """Fit weights by a softmax over each query's candidates, [F]."""
        found = self.hits.any(1)
        features, is_item = self.features(items=items)[found], self.item_rows[found] > 0
        scale = features[is_item].std(0) + 1e-6
        features, wanted = features / scale, self.hits[found]
        wanted = wanted / wanted.sum(1, keepdim=True)
        weights = torch.zeros(len(scale), requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=60, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            scores = (features @ weights).masked_fill(~is_item, -1e9)
            likelihood = (wanted * scores.log_softmax(1)).sum() - L2 / 2 * weights.square().sum()
            value = -likelihood / len(features)
            value.backward()
            return value

        optimizer.step(loss)
        return weights.detach() / scale

    def merged(self, weights: Tensor, *, items: bool) -> Rows:
        """Rank by weights, [Q, K]."""
        scores = (self.features(items=items) @ weights).masked_fill(self.item_rows < 1, -torch.inf)
        order = torch.from_numpy(best(scores.numpy(), K))
        return self.item_rows.gather(1, order).numpy()


def measured(backtest: Backtest) -> tuple[dict[str, list[float]], list[NDArray[np.float64]]]:
    """Merge and measure step by step: values of each row, and differences that features make."""
    values: dict[str, list[float]] = {}
    gains, weights = [], {}
    for number in [WARM_UP, *backtest.steps()]:
        step = StepLists(backtest, number)
        candidates = Candidates.of(step)
        if number != WARM_UP:
            lists = {name: candidates.merged(weights[name], items=on) for name, on in ROWS.items()}
            gains.append(step.ndcg(lists["blend, item features"]) - step.ndcg(lists["blend"]))
            lists |= {"sequence": step.lists()["sequence"], RECENT: step.lists()[RECENT]}
            for name, rows in lists.items():
                values.setdefault(name, []).append(float(step.ndcg(rows).mean()))
            target_of = np.repeat(
                np.arange(len(step.queries)), np.diff(step.queries.target_offsets)
            )
            old = step.queries.candidates[step.queries.targets]
            known = np.bincount(target_of, old, minlength=len(step.queries)).astype(np.int64)
            listed = candidates.hits.sum(1).long().numpy()
            values.setdefault("share of targets newer than the step", []).append(1 - old.mean())
            values.setdefault("ceiling, older targets first", []).append(step.ceiling(known))
            values.setdefault("ceiling, listed targets first", []).append(step.ceiling(listed))
        weights = {name: candidates.learned(items=on) for name, on in ROWS.items()}
        print(
            f"step {number}", {name: round(one[-1], 4) for name, one in values.items()}, flush=True
        )
    return values, gains


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--write", help="name of the result in results/peers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, notes = [], "NDCG@10, means of all steps. Item features change it by"
    for folder in options.folders:
        name = json.loads((folder / "replay.json").read_text())["data_set"]
        values, gains = measured(Backtest(folder))
        rows += [
            Row(name=f"{case}: {name}", value=round(float(np.mean(one)), 4))
            for case, one in values.items()
        ]
        gain = float(np.mean([one.mean() for one in gains]))
        error = float(np.sqrt(sum(one.var() / len(one) for one in gains))) / len(gains)
        up = sum(one.mean() > 0 for one in gains)
        notes += f" {gain:+.4f} on {name} (standard error {error:.4f}; upwards on {up} of "
        notes += f"{len(gains)} steps),"
    notes = notes.removesuffix(",") + f". Only ranks of kept lists ({KEPT} places) are read, no "
    notes += "scores, so `blend` is not the served list."
    if options.write:
        write_results(options.write, rows, notes=notes)
    else:
        sys.stdout.write(f"{as_table(rows)}\n\n{notes}\n")


if __name__ == "__main__":
    main()
