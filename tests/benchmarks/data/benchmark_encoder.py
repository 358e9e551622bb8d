"""Time MiniLM on item texts against sentence-transformers, and the cache's second run.

Texts: the Amazon Beauty items of RECSYS_DATA_MIRROR where that is set, else as many made from
random words with 5 to 60 words each.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import HashEncoder
from recsys.content.minilm import MiniLMEncoder, packaged_minilm
from recsys.content.text import item_text
from tests.benchmarks.harness import Row, command_line, write_results

WORDS = ["rose", "shampoo", "dry", "hair", "oil", "night", "cream", "brush", "set", "organic"]


def beauty_texts(mirror: Path) -> list[str]:
    import polars as pl

    items = pl.read_parquet(mirror / "amazon-beauty" / "items.parquet").rows(named=True)
    return [item_text(item["tags"], categories=item["attributes"]) for item in items]


def made_texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, random.integers(5, 61))) + f" {i}" for i in range(count)]


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--sample", type=int, default=3000, help="texts for the throughput")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save-vectors", type=Path, help="write [items + 1, D] here as .npy")
    return parser.parse_args()


def texts_per_second(options: argparse.Namespace, texts: list[str]) -> tuple[float, float]:
    """Best of several alternating runs: (ours, sentence-transformers)."""
    from sentence_transformers import SentenceTransformer

    ours = MiniLMEncoder(device="cpu")
    theirs = SentenceTransformer(str(packaged_minilm()), device="cpu", local_files_only=True)
    sample = texts[:: max(1, len(texts) // options.sample)][: options.sample]
    ours.encode(sample[:128])
    theirs.encode(sample[:128])
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(options.repeats):
        begin = time.perf_counter()
        vectors = ours.encode(sample)
        middle = time.perf_counter()
        expected = theirs.encode(sample, batch_size=64, show_progress_bar=False)
        seconds["ours"].append(middle - begin)
        seconds["theirs"].append(time.perf_counter() - middle)
        assert np.allclose(vectors, expected, atol=1e-4)
    return len(sample) / min(seconds["ours"]), len(sample) / min(seconds["theirs"])


def throughput_rows(ours: float, theirs: float) -> list[Row]:
    return [
        Row(
            name="MiniLM, texts a second",
            value=ours,
            unit="/s",
            peer=f"sentence-transformers {theirs:.0f}/s",
            ratio=ours / theirs,
            goal="within 10% of sentence-transformers' own",
            at_least=0.9 * theirs,
        ),
        Row(
            name="10,000 such texts at that rate",
            value=10_000 / ours,
            unit="s",
            goal="<= 30 s",
            at_most=30.0,
        ),
    ]


def main() -> None:
    options = parsed_arguments()
    mirror = os.environ.get("RECSYS_DATA_MIRROR")
    texts = beauty_texts(Path(mirror)) if mirror else made_texts(12_101)
    ours, theirs = texts_per_second(options, texts)

    with tempfile.TemporaryDirectory() as folder:
        encoder = MiniLMEncoder(device="cpu")
        begin = time.perf_counter()
        vectors = encode_cached(texts, encoder, Path(folder))
        first = time.perf_counter() - begin
        begin = time.perf_counter()
        again = encode_cached(texts, encoder, Path(folder))
        second = time.perf_counter() - begin
        size = sum(file.stat().st_size for file in Path(folder).rglob("shard-*")) / 1e6
    assert np.array_equal(vectors, again)
    begin = time.perf_counter()
    HashEncoder().encode(texts)
    hashed = len(texts) / (time.perf_counter() - begin)
    if options.save_vectors:
        np.save(options.save_vectors, np.concatenate([np.zeros((1, encoder.dim)), vectors]))

    rows = [
        *throughput_rows(ours, theirs),
        Row(
            name=f"first run, {len(texts):,} texts ({len(set(texts)):,} distinct)",
            value=first,
            unit="s",
        ),
        Row(
            name="second run, all from the cache",
            value=second,
            unit="s",
            peer="first run",
            ratio=first / second,
            goal=">= 100x faster than the first",
            met=first >= 100 * second,
        ),
        Row(name="cache on disk", value=size, unit="MB"),
        Row(name="HashEncoder, texts a second", value=hashed, unit="/s"),
    ]
    words = np.mean([len(text.split()) for text in texts])
    notes = f"""
{"Amazon Beauty items (mirror)" if mirror else "Texts made of random words"}, {words:.1f} words on
average. Throughput: best of {options.repeats} alternating runs over {options.sample:,} texts,
batches of equal numbers of tokens; sentence-transformers in batches of 64.
"""
    write_results("encoder", rows, notes=notes)


if __name__ == "__main__":
    main()
