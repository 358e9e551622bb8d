"""What a find's place in the visitor's whole list of one model would add to a search.

    python -m tests.benchmarks.retrieval.benchmark_search_place --workspaces runs/movielens-100k

Workspaces are those of ``benchmark_search``; validation alone is read. Half of the items that the
text tower makes no queries of teach the weights, the other half is judged, and the other way round.
The data sets know no repeats, so the item that a user takes next is never one of their history, and
whatever tells the history from the rest seems worth much. So three things are measured: queries for
the next item among all that is found, the same where what the visitor had is left out (as a surface
with ``exclude_seen`` does), and queries for an item that the visitor had.

Axes: K candidates of one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.searching.fit import PERSONAL, gains, kept_items
from pipelines.searching.judged import Judged, personal_orders
from pipelines.searching.texts import popularity_of, title_index
from recsys.models.text_search.lexical import WordIndex
from recsys.models.text_search.merging import L2, START, fit_weights
from recsys.models.text_search.queries import ItemText, Kind, QueryMaker
from recsys.models.text_search.search import PERSONAL_SCALE, Candidates, TextSearch
from recsys.models.text_search.tokens import split
from recsys.models.text_search.tower import TextTowerConfig, train_tower
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.retrieval.benchmark_search import KINDS, World

MODELS = ("two_tower", "ease")
PLACES, SCALE = 1_000, 100.0
"""Items of a whole list, and places over which the feature halves: the best on validation of 200
and 1,000, and of 10, 30 and 100."""
TODAY, NEW_ORDER = "five features", "own order without what was had"
Features = NDArray[np.float32]


@dataclass(frozen=True)
class Prepared:
    """Queries of one kind with their candidates, and features by way."""

    judged: Judged
    found: list[Candidates]
    new: list[NDArray[np.bool_]]
    """Candidates that the visitor has not had, [K]."""
    features: dict[str, list[Features]]

    def among_new(self, way: str) -> tuple[list[Candidates], list[Features]]:
        """Leave out what the visitor had."""
        left = [
            replace(one, item_rows=one.item_rows[new])
            for one, new in zip(self.found, self.new, strict=True)
        ]
        features = self.features[way]
        return left, [one[new] for one, new in zip(features, self.new, strict=True)]


def prepared(world: World, search: TextSearch, judged: Judged) -> Prepared:
    """Search for queries, and compute the features of every way."""
    popularity = popularity_of(world.counts.numpy())
    found = judged.found(search, title_index(world.texts, popularity), popularity)
    orders = personal_orders(judged, found, world.sources, world.blend, world.counts)
    new = [np.zeros(0, np.bool_)] * len(judged)
    places = {model: list(new) for model in MODELS}
    counted = list(new)
    for batch in judged.queries.batches():
        for place, row in enumerate(batch.rows.tolist()):
            new[row] = batch.allowed[place].numpy()[found[row].item_rows]
        for model in MODELS:
            ranking = world.sources[model](batch.queries, batch.allowed, PLACES)
            for place, row in enumerate(batch.rows.tolist()):
                rows = ranking.lists.item_rows[place].numpy()
                places[model][row] = place_feature(found[row], rows[rows > 0])
                if model == MODELS[0] and ranking.scores is not None:
                    scores = ranking.scores[place].numpy()
                    others = scores[batch.allowed[place].numpy()]
                    counted[row] = counted_feature(scores[found[row].item_rows], others)
    own = [one.personal(order) for one, order in zip(found, orders, strict=True)]
    unseen = [
        one.personal(order[np.isin(order, one.item_rows[mask])])
        for one, order, mask in zip(found, orders, new, strict=True)
    ]
    features = {TODAY: own, NEW_ORDER: unseen}
    for model in MODELS:
        features[f"place by {model}"] = joined(own, places[model])
    features[f"place by {MODELS[0]}, also of what was had"] = joined(own, counted)
    return Prepared(judged, found, new, features)


def place_feature(found: Candidates, ranked: NDArray[np.int64]) -> Features:
    """Scale the places of candidates in a list, [K]; 0 for those that it does not have."""
    whole = found.personal(ranked)[:, PERSONAL]
    ranks = np.divide(PERSONAL_SCALE, whole, out=np.full(len(whole), np.inf), where=whole > 0)
    return scaled(ranks - PERSONAL_SCALE)


def counted_feature(scores: Features, others: Features) -> Features:
    """Scale the number of items that score more than each candidate, [K]."""
    ordered = np.sort(others[np.isfinite(others)])
    above = len(ordered) - np.searchsorted(ordered, scores, side="right")
    return scaled(np.where(np.isfinite(scores), above, np.inf))


def scaled(ranks: NDArray[np.float64]) -> Features:
    return np.where(ranks < PLACES, SCALE / (SCALE + ranks), 0).astype(np.float32)


def joined(features: Sequence[Features], more: Sequence[Features]) -> list[Features]:
    return [np.column_stack(pair) for pair in zip(features, more, strict=True)]


def of_history(judged: Judged, by_row: dict[int, ItemText], kind: Kind, seed: int) -> Judged:
    """Make queries of items that each visitor had, one a visitor."""
    random, maker = np.random.default_rng(seed), QueryMaker(seed)
    seen, kept, targets, made = judged.queries.held_out.seen, [], [], []
    for query in range(len(judged)):
        begin, end = seen.offsets[query : query + 2].tolist()
        had = [row for row in seen.values[begin:end].tolist() if row in by_row]
        if had:
            kept.append(query)
            targets.append(int(random.choice(had)))
            made.append(maker.make(by_row[targets[-1]], kind))
    held_out = judged.queries.held_out.take(np.array(kept, np.int64))
    return Judged(replace(judged.queries, held_out=held_out), tuple(targets), tuple(made))


def learned(parts: Sequence[Prepared], way: str, *, new: bool) -> list[float]:
    """Learn weights of a way's features on queries whose item was found."""
    features, targets = [], []
    for part in parts:
        found, own = part.among_new(way) if new else (part.found, part.features[way])
        for row, target in enumerate(part.judged.targets):
            at = np.flatnonzero(found[row].item_rows == target)
            if len(at):
                features.append(own[row])
                targets.append(int(at[0]))
    start = (*START, 1.0)[: features[0].shape[1]]
    return fit_weights(features, targets, L2, start)


def halves_of(
    world: World, seed: int, most: int
) -> tuple[list[dict[Kind, Prepared]], list[dict[Kind, Prepared]]]:
    """Prepare queries for next items and for items that were had, by half of the kept items."""
    kept = sorted(kept_items(world.texts, seed))
    by_row = {text.item_row: text for text in world.texts}
    others = [text for text in world.texts if text.item_row not in set(kept)]
    tower = train_tower(others, TextTowerConfig(), seed)
    documents = [[], *(split(text.text) for text in world.texts)]
    search = TextSearch(tower, tower.encode(documents), WordIndex.of(documents), START)
    following: list[dict[Kind, Prepared]] = [{}, {}]
    had: list[dict[Kind, Prepared]] = [{}, {}]
    for half in (0, 1):
        wanted = {row: by_row[row] for row in kept[half::2]}
        for number, kind in enumerate(KINDS):
            judged = world.judged("validation", wanted, seed + number, kind)
            held_out = judged.queries.held_out.take(np.arange(min(most, len(judged))))
            queries = replace(judged.queries, held_out=held_out)
            judged = Judged(queries, judged.targets[:most], judged.made[:most])
            following[half][kind] = prepared(world, search, judged)
            again = of_history(judged, wanted, kind, 50 + seed + number)
            had[half][kind] = prepared(world, search, again)
    return following, had


def measured(world: World, seed: int, most: int) -> dict[tuple[str, str], float]:
    """NDCG@10 by way and what is looked for; the mean over kinds of queries."""
    following, had = halves_of(world, seed, most)
    values: dict[tuple[str, str], float] = {}
    for way in following[0][KINDS[0]].features:
        next_item, of_had, new_only = [], [], []
        for kind in KINDS:
            parts: tuple[list[NDArray[np.float64]], ...] = ([], [], [])
            for half in (0, 1):
                teaching = list(following[1 - half].values())
                weights = learned(teaching, way, new=False)
                for values_of, one in zip(parts, (following[half][kind], had[half][kind])):  # noqa: B905
                    values_of.append(gains(one.judged, one.found, one.features[way], weights))
                judged = following[half][kind]
                weights = learned(teaching, way, new=True)
                parts[2].append(gains(judged.judged, *judged.among_new(way), weights))
            for means, part in zip((next_item, of_had, new_only), parts, strict=True):
                means.append(float(np.concatenate(part).mean()))
        values[way, "next item"] = float(np.mean(next_item))
        values[way, "next item, categories"] = next_item[KINDS.index("attribute")]
        values[way, "item that was had"] = float(np.mean(of_had))
        values[way, "next item, what was had left out"] = float(np.mean(new_only))
    return values


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--workspaces", nargs="*", type=Path, default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=500, help="of a kind and half, at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, notes = [], ["Validation; mean over titles, typing errors, categories and mixed queries."]
    for workspace in options.workspaces:
        world = World(workspace)
        runs = [measured(world, seed, options.queries) for seed in range(options.seeds)]
        for way, what in runs[0]:
            mean = float(np.mean([run[way, what] for run in runs]))
            rows.append(Row(name=f"{world.name}, {way}: N@10 {what}", value=mean))
        key = (f"place by {MODELS[0]}", "next item, what was had left out")
        ahead = [run[key] - run[NEW_ORDER, key[1]] for run in runs]
        notes.append(
            f"{world.name}: what was had left out, the place by {MODELS[0]} adds "
            f"{np.mean(ahead):+.4f} ± {np.std(ahead, ddof=1) if len(ahead) > 1 else 0:.4f} over "
            f"{options.seeds} seeds."
        )
    write_results("search_place", rows, notes=" ".join(notes))


if __name__ == "__main__":
    main()
