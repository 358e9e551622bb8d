"""Text search on held-out items: words, spelling, both, and with the user's own list.

    python -m tests.benchmarks.retrieval.benchmark_search --workspaces runs/movielens-100k
    python -m tests.benchmarks.retrieval.benchmark_search --part latency

A workspace is one that ``recsys run --until fit_blend`` left, so its models are fitted on train. A
fifth of the items is kept from the text tower's queries: events of half of them in validation teach
the weights, those of the others in test are judged. Each test event is one query of each kind, made
of the item that the user took next. BM25 and the tower alone read it as typed, uncorrected;
BM25 settles ties by popularity.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import polars as pl
import torch

from pipelines.candidates.blends import evaluation_queries, load_blends
from pipelines.candidates.load import READS, load_sources
from pipelines.inputs.tensors import read_inputs
from pipelines.presets.resolve import resolve
from pipelines.searching.fit import ALONE, PERSONAL, gains, kept_items, weights_of
from pipelines.searching.judged import Judged, personal_orders
from pipelines.searching.texts import item_texts, popularity_of, title_index
from recsys.data.item_mask import ItemMask
from recsys.models.configs import TextTowerConfig
from recsys.models.names import SLOW_MODELS
from recsys.models.text_search.lexical import WordIndex
from recsys.models.text_search.search import START, TextSearch
from recsys.models.text_search.tokens import ItemText, Kind, QueryMaker, split
from recsys.models.text_search.tower import train_tower
from serving.bundle.write import write_bundle
from serving.items import ItemSearch
from serving.query import hydrate
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from serving.sources import sources_of
from serving.surfaces import surfaces_of
from tests.benchmarks.harness import Row, command_line, write_results
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

ORDER = "given"
KINDS: tuple[Kind, ...] = get_args(Kind)
WAYS = ("words", "spelling", "hybrid", "personal")
MAX_QUERIES = 20_000
GOAL_WORDS, GOAL_SPELLING, GOAL_MS = 1.15, 1.1, 5.0


class World:
    """A workspace's models, texts and queries."""

    def __init__(self, workspace: Path) -> None:
        self.config = resolve(workspace / "config.toml")
        self.name = self.config.data.dataset or workspace.name
        features = workspace / "build_features"
        self.inputs = read_inputs(features, workspace / "embed_items", ORDER)
        context: Any = SimpleNamespace(
            config=self.config, inputs={name: workspace / name for name in (*READS, "fit_blend")}
        )
        every = load_sources(context, self.inputs, ORDER)
        self.sources = {name: one for name, one in every.items() if name not in SLOW_MODELS}
        self.blend = load_blends(workspace / "fit_blend" / ORDER)["fast"]
        self.texts = item_texts(pl.read_parquet(features / "items.parquet"))
        self.counts = self.inputs.item_counts("train")

    def judged(self, split_name: Any, wanted: dict[int, ItemText], seed: int, kind: Kind) -> Judged:
        """Make queries of one kind of a split's events."""
        queries = evaluation_queries(self.inputs, split_name, self.config)
        return Judged.of(queries.sample(MAX_QUERIES, seed), wanted, seed, kind)


def measured(world: World, seed: int, steps: int) -> dict[tuple[str, str], np.ndarray]:
    """NDCG@10 of each test query, by kind and way."""
    kept = sorted(kept_items(world.texts, seed))
    by_row = {text.item_row: text for text in world.texts}
    teaching = {row: by_row[row] for row in kept[::2]}
    testing = {row: by_row[row] for row in kept[1::2]}
    config = TextTowerConfig(num_steps=steps)
    tower = train_tower([one for one in world.texts if one.item_row not in set(kept)], config, seed)
    documents = [[], *(split(text.text) for text in world.texts)]
    popularity = popularity_of(world.counts.numpy())
    titles = title_index(world.texts, popularity)
    search = TextSearch(tower, tower.encode(documents), WordIndex.of(documents), START)

    def features_of(judged: Judged) -> tuple[list[Any], list[np.ndarray]]:
        found = judged.found(search, titles, popularity)
        orders = personal_orders(judged, found, world.sources, world.blend, world.counts)
        return found, [one.personal(order) for one, order in zip(found, orders, strict=True)]

    taught = [world.judged("validation", teaching, seed + n, kind) for n, kind in enumerate(KINDS)]
    every = Judged(
        taught[0].queries,
        tuple(target for one in taught for target in one.targets),
        tuple(made for one in taught for made in one.made),
    )
    parts = [features_of(one) for one in taught]
    found = [one for part, _ in parts for one in part]
    features = [one for _, part in parts for one in part]
    weights = {"personal": weights_of(every, found, features)}
    weights["hybrid"] = weights_of(every, found, [unknown(one) for one in features])
    values = {}
    for number, kind in enumerate(KINDS):
        judged = world.judged("test", testing, 100 + seed + number, kind)
        found, features = features_of(judged)
        typed = judged.as_typed(search, popularity)
        for way, alone in ALONE.items():
            values[kind, way] = gains(judged, typed, [one.features for one in typed], alone)
        values[kind, "hybrid"] = gains(
            judged, found, [unknown(one) for one in features], weights["hybrid"]
        )
        values[kind, "personal"] = gains(judged, found, features, weights["personal"])
    return values


def unknown(features: np.ndarray) -> np.ndarray:
    """Forget who searches."""
    features = features.copy()
    features[:, PERSONAL] = 0
    return features


def quality(workspaces: list[Path], seeds: int, steps: int) -> None:
    rows, notes = [], []
    for workspace in workspaces:
        world = World(workspace)
        runs = [measured(world, seed, steps) for seed in range(seeds)]
        for kind in (*KINDS, "all"):
            kinds = KINDS if kind == "all" else (kind,)
            means = {
                way: [np.concatenate([run[one, way] for one in kinds]).mean() for run in runs]
                for way in WAYS
            }
            for way in WAYS:
                mean = float(np.mean(means[way]))
                rows.append(Row(name=f"{world.name}, {kind}: N@10 {way}", value=mean))
            if kind == "all":
                own = float(np.mean(means["personal"]))
                for way, goal in (("words", GOAL_WORDS), ("spelling", GOAL_SPELLING)):
                    rows.append(
                        Row(
                            name=f"{world.name}: hybrid with the user's list against {way} alone",
                            value=own, peer=f"{way} {np.mean(means[way]):.4g}",
                            ratio=own / float(np.mean(means[way])), goal=f">= {goal}x",
                            met=own >= goal * float(np.mean(means[way])),
                        )
                    )  # fmt: skip
                ratios = [
                    mine / theirs
                    for mine, theirs in zip(means["personal"], means["words"], strict=True)
                ]
                spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
                queries = sum(len(runs[0][one, "words"]) for one in KINDS)
                notes.append(
                    f"{world.name}: {queries:,} test queries a seed, models of the user's list: "
                    f"{', '.join(world.blend.served.sources)}; ratio to words "
                    f"{np.mean(ratios):.3f} ± {spread:.3f} over {seeds} seeds."
                )
    notes.append(
        "Items' vectors and the models of recommendations are not touched by the text tower, so "
        "recommendations stay as they are."
    )
    write_results("search_quality", rows, notes=" ".join(notes))


def made_up_texts(num_items: int, random: np.random.Generator) -> list[ItemText]:
    """Draw titles of seven words, and a category of each item."""
    consonants, vowels = list("bcdfghjklmnpqrstvwz"), list("aeiou")
    words = [
        "".join(a + b for a, b in zip(random.choice(consonants, n), random.choice(vowels, n)))  # noqa: B905
        for n in random.integers(2, 5, 60_000)
    ]
    shares = 1 / np.arange(10, 10 + len(words))
    drawn = random.choice(len(words), (num_items, 7), p=shares / shares.sum())
    return [
        ItemText(
            item_row=row + 1,
            title=" ".join(words[place] for place in drawn[row]),
            text=" ".join([*(words[place] for place in drawn[row]), f"group{row % 50}"]),
            attributes=(f"group{row % 50}",),
        )
        for row in range(num_items)
    ]


def latency(num_items: int) -> None:
    """Search a made-up catalogue on one core: what is found, and lists of known visitors."""
    random = np.random.default_rng(0)
    texts = made_up_texts(num_items, random)
    documents = [[], *(split(text.text) for text in texts)]
    tower = train_tower(texts[:1_000], replace(TextTowerConfig(), num_steps=1), 0)
    begin = time.perf_counter()
    popularity = popularity_of(random.random(num_items + 1) * 1_000)
    search = TextSearch(tower, tower.encode(documents), WordIndex.of(documents), START)
    titles = title_index(texts, popularity)
    item_search = ItemSearch(titles, search, popularity, titles.title_of)
    built = time.perf_counter() - begin
    rows = [Row(name=f"{num_items:,} items: indexed", value=built, unit="s")]
    recommender = recommender_of(texts, search)
    for kind in KINDS:
        maker, found, listed = QueryMaker(1), [], []
        for number, text in enumerate(random.choice(num_items, 200).tolist()):
            query = maker.make(texts[text], kind).text
            found.append(milliseconds(partial(item_search.find, query)))
            request = Request(surface="search", query=query, user_id=f"user-{number + 1}", k=20)
            listed.append(milliseconds(partial(recommender.answer, request)))
        for name, times in (("", found), (" for a known visitor", listed)):
            case = f"{num_items:,} items, {kind}{name}"
            middle, late = statistics.median(times), float(np.quantile(times, 0.99))
            rows.append(Row(name=f"{case}: p50, ms", value=middle, at_most=GOAL_MS))
            rows.append(Row(name=f"{case}: p99, ms", value=late))
    for name, times in place_times(recommender).items():
        case = f"{num_items:,} items, a further list of 1,000 by {name}"
        rows.append(Row(name=f"{case}: p50, ms", value=statistics.median(times)))
        rows.append(Row(name=f"{case}: p99, ms", value=float(np.quantile(times, 0.99))))
    notes = (
        "One core that other work shared, in process, without HTTP. A known visitor has 50 events "
        f"and the models {', '.join(recommender.bundle.blends['fast'].sources)} of width 64."
    )
    write_results("search_latency", rows, notes=notes)


def milliseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return 1_000 * (time.perf_counter() - begin)


def recommender_of(texts: list[ItemText], search: TextSearch) -> Recommender:
    """Serve made-up users and models over items of these texts."""
    size = SyntheticSize(
        num_items=len(texts), num_users=200, events_per_user=50, embedding_dim=64, content_dim=64,
        cluster_items=20, semantic_ids=False, history_models=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        parts = synthetic_parts(root / "parts", size)
        search.save(root / "text_search")
        named = replace(parts.catalogue, display_texts=["", *(one.title for one in texts)])
        parts = replace(parts, catalogue=named, text_search=root / "text_search")
        write_bundle(root / "bundles", parts, version="1")
        recommender = Recommender.load(root / "bundles" / "bundle-1")
    recommender.answer(Request(surface="search", query=texts[0].title, user_id="user-1"))
    return recommender


def place_times(recommender: Recommender) -> dict[str, list[float]]:
    """Time a list by one model of all that a visitor has not had, for each of 200 visitors."""
    times: dict[str, list[float]] = {}
    bundle = recommender.bundle
    sources = sources_of(bundle, ServingOptions(), learned_content=True)
    surface = surfaces_of(exclude_history=True)["search"]
    for number in range(1, 201):
        request = Request(surface="search", query="x", user_id=f"user-{number}")
        query = hydrate(request, bundle, surface)
        mask = ItemMask.all_but(bundle.num_item_rows, query.seen)
        for name in ("ease", "two_tower", "sequence"):
            with torch.inference_mode():
                call = partial(sources[name].candidates, query, mask, 1_000)
                times.setdefault(name, []).append(milliseconds(call))
    return times


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--part", choices=("quality", "latency"), default="quality")
    parser.add_argument("--workspaces", nargs="*", type=Path, default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=TextTowerConfig().num_steps)
    parser.add_argument("--items", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "latency":
        latency(options.items)
    else:
        quality(options.workspaces, options.seeds, options.steps)


if __name__ == "__main__":
    main()
