"""Count right and wrong values that words name at each least cosine, on two further catalogues.

40 words each for values of Amazon Beauty (categories and brands) and of IFDB (kinds of fiction),
with the values that they may mean, and 40 words that mean none (synonyms.csv), all written by hand
before any was read.
"""

from __future__ import annotations

import csv
import html
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import torch

from pipelines.searching.meanings import MAX_VALUES, list_words
from recsys.content.minilm import MiniLMEncoder
from recsys.models.text_search.meaning import Meanings
from tests.benchmarks.harness import Row, command_line, write_results

NUM_ITEMS, NUM_WORDS = 1_500, 20_000
NOTES = """Precision counts the words that mean none among those that name a value, recall the 40
words of the catalogue. Meanings are fitted as by a run, on 1,500 items drawn at random."""


def read_catalogue(folder: Path) -> list[tuple[str, list[str]]]:
    """Read the text and the values of each item."""
    items = pl.read_parquet(folder / "items.parquet")
    if "attributes" in items.columns:
        rows = items.select("tags", "attributes").iter_rows()
        return [(words or "", [html.unescape(one) for one in own or ()]) for words, own in rows]
    rows = items.select("title", "categories").iter_rows()
    return [(title or "", [one for one in (own or "").split("|") if one]) for title, own in rows]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder, rows = MiniLMEncoder(), list[Row]()
    words = list_words(encoder, NUM_WORDS)
    word_vectors = encoder.encode(list(words.values()))
    with (Path(__file__).parent / "synonyms.csv").open() as file:
        known = [(one["catalogue"], one["word"], one["values"]) for one in csv.DictReader(file)]
    for catalogue in ("amazon-beauty", "ifdb"):
        items = read_catalogue(options.data / catalogue)
        counts = Counter(value for _, own in items for value in set(own))
        values = [value for value, number in counts.most_common(MAX_VALUES) if number > 1]
        drawn = np.random.default_rng(0).choice(len(items), NUM_ITEMS, replace=False)
        texts = [f"{items[n][0]}. {', '.join(items[n][1])}" for n in drawn]
        vectors = (word_vectors, encoder.encode(texts), {one: [0] for one in values})
        meanings = Meanings.build(list(words), *vectors, encoder.encode(values))
        found = []
        for own, word, right in known:
            if own in (catalogue, ""):
                near, place = (meanings.value_vectors @ meanings.encode([word])).max(0)
                found.append((float(near), values[int(place)].strip() in right.split("|"), own))
        for least in (0.45, 0.5, 0.55, 0.6, 0.65):
            named = [right for near, right, _ in found if near >= least]
            recall = sum(named) / sum(own != "" for _, _, own in found)
            peer = f"recall {recall:.2f}; {len(values)} values"
            value = sum(named) / max(1, len(named))
            rows.append(Row(name=f"{catalogue}, from {least}: precision", value=value, peer=peer))
    write_results("named_values", rows, notes=NOTES)


if __name__ == "__main__":
    main()
