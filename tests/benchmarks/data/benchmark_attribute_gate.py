"""Decisions about planted attributes: useful ones at several rates of error, and useless ones.

No language model that could be run here describes items well enough to gain, so an oracle's words
stand for a model's: true ones, of which a share is exchanged for those of other items. Worlds: the
one of tests/recsys/content/planted_attributes.py, hashed words. MovieLens-100K: titles alone as
text, genres and release decade as attributes, MiniLM; the last two events of each user, validation
and test, are never read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.content.attribute_gate import Decision, cut_queries
from recsys.content.encoder import HashEncoder, Vectors
from recsys.content.minilm import MiniLMEncoder
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.content.planted_attributes import decisions, planted_world, wrong_at_rate

RATES = (0.0, 0.2, 0.4, 0.6)


def world(seed: int) -> list[Decision]:
    """Name every attribute by what it is, its rate of error behind it."""
    texts, attributes, users = planted_world(seed)
    generator = np.random.default_rng(seed + 1000)
    planted: dict[str, list[str]] = {
        f"true, {rate:.0%} wrong": wrong_at_rate(attributes["true"], rate, generator)
        for rate in RATES
    }
    for name in ("random", "the same for all"):
        planted[name] = attributes[name]
    return decisions(texts, planted, cut_queries(users, seed), HashEncoder().encode, seed)


def agreed_words(
    words: list[str], rate: float, generator: np.random.Generator, answers: int, least: int
) -> list[str]:
    """Keep of each item what at least so many answers say, each wrong by itself; else nothing."""
    draws = [wrong_at_rate(words, rate, generator) for _ in range(answers)]
    voted = [Counter(one).most_common(1)[0] for one in zip(*draws, strict=True)]
    return [word if votes >= least else "" for word, votes in voted]


def world_of_answers(seed: int) -> list[Decision]:
    """One answer an item against five of which three agree, at three rates of error."""
    texts, attributes, users = planted_world(seed)
    generator = np.random.default_rng(seed + 2000)
    true, planted = attributes["true"], {}
    for rate in (0.4, 0.5, 0.6):
        planted[f"true, {rate:.0%} wrong, one answer"] = wrong_at_rate(true, rate, generator)
        planted[f"true, {rate:.0%} wrong, five answers"] = agreed_words(true, rate, generator, 5, 3)
    planted["random, five answers"] = agreed_words(true, 1.0, generator, 5, 3)
    return decisions(texts, planted, cut_queries(users, seed), HashEncoder().encode, seed)


def load_movies(mirror: Path) -> tuple[pl.DataFrame, list[NDArray[np.int64]]]:
    """Read titles, genres and decade, and each user's items without the last two."""
    folder = mirror / "movielens-100k"
    items = pl.read_csv(
        folder / "ml-100k.item",
        separator="\t",
        quote_char=None,
        new_columns=["item", "title", "year", "genres"],
        infer_schema_length=0,
    ).fill_null("")
    row_of = {item: row for row, item in enumerate(items["item"])}
    events = pl.read_csv(folder / "ml-100k.inter", separator="\t", infer_schema_length=0)
    events = events.select(
        pl.nth(0).alias("user"), pl.nth(1).alias("item"), pl.nth(3).cast(pl.Int64).alias("time")
    ).sort("user", "time", "item")
    users = events.group_by("user", maintain_order=True).agg("item")["item"]
    return items, [np.array([row_of[item] for item in user])[:-2] for user in users]


def movies(
    seed: int, items: pl.DataFrame, users: list[NDArray[np.int64]], encode: Callable[..., Vectors]
) -> list[Decision]:
    generator = np.random.default_rng(seed)
    genres = items["genres"].to_list()
    decades = [f"{year[:3]}0s" if year[:3].isdigit() else "" for year in items["year"]]
    planted: dict[str, list[str]] = {
        f"genres, {rate:.0%} wrong": wrong_at_rate(genres, rate, generator) for rate in RATES
    }
    planted["decade"] = decades
    planted["random genres"] = wrong_at_rate(genres, 1.0, generator)
    planted["random decade"] = wrong_at_rate(decades, 1.0, generator)
    return decisions(items["title"].to_list(), planted, cut_queries(users, seed), encode, seed)


def rows_of(data: str, found: list[list[Decision]]) -> list[Row]:
    rows = []
    for same in zip(*found, strict=True):
        kept = sum(one.kept for one in same)
        gain = np.mean([one.gain for one in same])
        margin = np.mean([one.high - one.gain for one in same])
        name = same[0].attribute
        rows.append(
            Row(
                name=f"{data}, {name}: kept",
                value=kept / len(same),
                unit=f"of {len(same)} seeds",
                peer=f"text alone; gain {gain:+.4f} +- {margin:.4f} NDCG@100",
                at_most=0.05 if "random" in name or "same" in name else None,
            )
        )
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=40, help="worlds")
    parser.add_argument("--draws", type=int, default=3, help="draws of errors on MovieLens-100K")
    parser.add_argument(
        "--answers", action="store_true", help="one answer against five, in worlds alone"
    )
    options = parser.parse_args()
    if options.answers:
        rows = rows_of("worlds", [world_of_answers(seed) for seed in range(options.seeds)])
        notes = "Errors of the five answers are drawn by themselves; a model's may be alike."
        write_results("attribute_agreement", rows, notes=notes)
        return
    rows = rows_of("worlds", [world(seed) for seed in range(options.seeds)])
    items, users = load_movies(Path(os.environ["RECSYS_DATA_MIRROR"]))
    minilm = MiniLMEncoder()
    known: dict[str, NDArray[np.float32]] = {}

    def encode(texts: list[str]) -> Vectors:
        fresh = sorted(set(texts) - known.keys())
        if fresh:
            known.update(zip(fresh, minilm.encode(fresh), strict=True))
        return np.stack([known[text] for text in texts])

    rows += rows_of(
        "MovieLens-100K", [movies(seed, items, users, encode) for seed in range(options.draws)]
    )
    notes = """
The oracle's words stand for a language model's: none that could be run here is good enough
([enrichment](enrichment.md): SmolLM2-135M .89x on cold items). Intervals are 95%, corrected for the
number of attributes, users and items clustered; means over seeds are shown. Test events never read.
"""
    write_results("attribute_gate", rows, notes=notes)


if __name__ == "__main__":
    main()
