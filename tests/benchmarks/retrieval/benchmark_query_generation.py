"""Semantic IDs generated from a query: alone, as a feature of the search, and what they cost.

    python -m tests.benchmarks.retrieval.benchmark_query_generation --workspace runs/movielens-100k

A workspace is one that ``recsys run --until fit_blend`` left. The preset's generative model learns
to spell the item of an event from the history before it and from a made query of that item, beside
its own loss (joint), or with all but the query's map frozen. The text tower's vectors go through
that map: the query's to the start of the history, or one of each word behind its latest event.

Validation alone. A fifth of the items is kept from all made queries, the tower's too, and searched
for: one query of each kind for each event of these. Weights of a search for half of the events are
learned on the other half. The models of the user's list are the workspace's, of one seed.

Axes: B queries, M words or queries of them, P places, L levels, D width.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.candidates.blends import evaluation_queries
from pipelines.searching.fit import gains, kept_items, weights_of
from pipelines.searching.judged import Judged, personal_orders
from pipelines.searching.texts import popularity_of, title_index
from pipelines.semantic_ids.artefact import read_item_codes
from pipelines.training.fitters import settings_of
from recsys.data.batch import Jagged, JaggedBatch, latest, offsets_of
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows
from recsys.fitting.generative import generative_inputs
from recsys.fitting.queries import EvaluationQueries
from recsys.fitting.training import TrainingRun, fit_retriever, run_training
from recsys.layers.codes.children import CodeChildren
from recsys.models.generative.model import GenerativeModel
from recsys.models.names import GENERATIVE
from recsys.models.text_search import merging
from recsys.models.text_search.lexical import WordIndex
from recsys.models.text_search.queries import QueryMaker
from recsys.models.text_search.search import PERSONAL_SCALE, Candidates, TextSearch
from recsys.models.text_search.tokens import bags_of, split
from recsys.models.text_search.tower import TextTower, TextTowerConfig, train_tower
from recsys.retrieval.generated import generated_source
from recsys.semantic_ids.behaviour import behaviour_ids
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.rq_kmeans import ResidualKMeansConfig
from serving.surfaces import HOME
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.retrieval.benchmark_search import KINDS, World

Place = Literal["start", "words"]
PLACES, IDS = ("start", "words"), ("content", "text")
WITHOUT, NO_QUERY, RECOMMENDS = "search without", "no query", "recommendation"
SINGLE = ("categories, search", RECOMMENDS)
SHOWN = {"title": "titles", "attribute": "categories"}
WEIGHT = 0.2
"""Of the loss of queries beside the model's own."""
GOAL, K, TRAINED = 0.99, 10, 300


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class QueryModel(GenerativeModel):
    """Reads a batch's feature ``query``, vectors of texts, beside its history."""

    place: Place = "start"
    query: Jagged | None = None
    of_query: nn.Linear

    def loss(self, batch: JaggedBatch, teacher: Any = None) -> Tensor:
        self.query = None
        return super().loss(batch, teacher)

    def _history(self, batch: JaggedBatch, limit: int) -> Jagged:
        self.query = batch.features.get("query")
        if self.query is None or self.place == "start":
            return super()._history(batch, limit)
        # An unknown item stands for each word, behind the latest event.
        history, words = batch["history"], self.query
        lengths = history.lengths() + words.lengths()
        values = history.values.new_zeros(int(lengths.sum()))
        shift = words.offsets[history.segments()]
        values[torch.arange(len(history.values)) + shift] = history.values
        return self._known(latest(Jagged(values, offsets_of(lengths)), limit))

    def _places(self, history: Jagged, layout: Any, from_tower: Any) -> Tensor:
        places = super()._places(history, layout, from_tower)
        if self.query is None:
            return places
        example, at = self.query.segments(), torch.zeros_like(self.query.segments())
        if self.place == "words":
            number = torch.arange(len(example)) - self.query.offsets[1:][example]  # -1 is the last
            at = 1 + history.lengths()[example] + number
        read = self.reader.dropout(self.of_query(self.query.values))  # [M, D]
        return places.index_put((example, at), read, accumulate=True)

    def code_log_probabilities(self, queries: JaggedBatch, codes: Tensor) -> tuple[Tensor, ...]:
        """Score the codes that may stand at each place of given IDs, with gradients.

        Args:
            queries: ``history`` (item rows, oldest first), B of them.
            codes: IDs of catalogue items, [B, W, L].

        Returns:
            Of each level, log-probabilities shared among the codes that lead to an item, -inf for
            others, [B, W, K].
        """
        history = self._history(queries, self.config.max_length)
        rows = history.values[:0]
        if self.config.items == "codes_tower":
            rows = torch.unique(history.values)
        inputs = self.item_inputs(rows)
        context, seen = self._training_context(history, rows, inputs), history.lengths()
        bias = self.reader.bias(seen, context.keys.shape[3])[:, :, None]  # [B, H, 1, T]
        carried = context.carried[torch.arange(len(seen), device=seen.device), seen][:, None]
        context = context._replace(bias=bias.to(context.keys.dtype), carried=carried)
        levels = range(codes.shape[2])
        tokens = [self._token(context, level, codes[..., max(0, level - 1)]) for level in levels]
        hidden = torch.stack(tokens, dim=2)  # [B, W, L, D]
        for index, block in enumerate(self.blocks()):
            hidden, _ = block.decode(hidden, context.block(index), None)
        hidden, found = self.decoder_norm(hidden), []
        prefixes = torch.zeros_like(codes[..., 0])
        for level in levels:
            live = self.code_children(prefixes.flatten(), level).view(*prefixes.shape, -1)
            logits = self._logits(hidden[:, :, level], level).float()
            found.append(torch.log_softmax(logits.masked_fill(~live, -torch.inf), dim=2))
            prefixes = self.tokens.step(prefixes, codes[..., level], level)
        return tuple(found)


class Texts:
    """One seed's text tower and what queries are made of."""

    def __init__(self, world: World, seed: int, steps: int) -> None:
        kept = kept_items(world.texts, seed)
        known = {one.item_row: one for one in world.texts if split(one.text)}
        self.kept = {row: one for row, one in known.items() if row in kept}
        self.taught = {row: one for row, one in known.items() if row not in kept}
        taught = list(self.taught.values())
        self.tower: TextTower = train_tower(taught, TextTowerConfig(num_steps=steps), seed)
        self.documents = [[], *(split(text.text) for text in world.texts)]

    @torch.no_grad()
    def read(self, texts: Sequence[str], place: Place) -> Jagged:
        """Encode queries, as one vector each or as one of each word."""
        words = [split(text) for text in texts]
        parts = [[one] if place == "start" else [[word] for word in one] for one in words]
        flat = [part for one in parts for part in one]
        vectors = self.tower(bags_of(flat, self.tower.config.num_buckets))
        return Jagged(vectors, offsets_of(torch.tensor([len(one) for one in parts])))


class Bench:
    """A workspace with one seed: the IDs, and trainings of the model with a query."""

    def __init__(self, world: World, texts: Texts, ids: str, seed: int, options: Any) -> None:
        self.world, self.texts, self.seed = world, texts, seed
        self.codes = item_codes(world, texts, ids, seed, options.workspace)
        self.settings = settings_of(GENERATIVE, world.config)
        # As in the tower's batches, what has no query stands against no label of one.
        self.able = {row for row in texts.taught if self.codes.codes[row, 0] >= 0}
        self.taught = CodeChildren(self.codes.codes[sorted(self.able)], self.codes.level_sizes)
        self.training = replace(world.config.generative_training, max_epochs=options.epochs)
        self.queries = evaluation_queries(world.inputs, "validation", world.config)
        events = world.inputs.sequences
        self.windows = training_windows(events, "train", self.settings.max_length)
        order = BatchOrder(len(self.windows), self.training.batch_size, seed)
        self.batch = lambda step: self.windows.batch(events, order.indices(step))
        self.run = TrainingRun(seed=seed)

    def query_loss(self, model: QueryModel, maker: QueryMaker, step: int) -> Tensor:
        """Negative log-probability of IDs behind histories and made queries of their items."""
        history, random = self.batch(step)["history"], np.random.default_rng([self.seed, step])
        seen, labels = [], []
        for one in torch.split(history.values, history.lengths().tolist()):
            able = [place for place in range(1, len(one)) if int(one[place]) in self.able]
            for place in random.permutation(able)[:1].tolist():
                seen.append(one[:place].tolist())
                labels.append(int(one[place]))
        made = [maker.make(self.texts.taught[row]).text for row in labels]
        features = {"history": Jagged.from_lists(seen), "query": self.texts.read(made, model.place)}
        codes = self.codes.codes[torch.tensor(labels)][:, None].long()  # [B, 1, L]
        with patch.object(model, "code_children", self.taught):
            levels = model.code_log_probabilities(JaggedBatch(features), codes)
        parts = [level.gather(2, codes[..., n : n + 1]) for n, level in enumerate(levels)]
        return -torch.stack(parts).sum(0).mean()

    def model(self, place: Place) -> QueryModel:
        inputs = self.world.inputs
        torch.manual_seed(self.seed)
        sizes, counts = generative_inputs(inputs.sizes, self.codes), inputs.item_counts("train")
        model = QueryModel(self.settings, sizes, self.codes.codes, inputs.catalogue, counts)
        model.of_query = nn.Linear(self.texts.tower.config.dim, self.settings.embedding_dim)
        model.place = place
        return model

    def fitted(self, place: Place, weight: float) -> QueryModel:
        """Train by both losses, or by the model's own alone, as the pipeline does."""
        model, maker = self.model(place), QueryMaker(self.seed + 1)

        def loss_at(step: int) -> Tensor:
            loss = model.loss(self.batch(step))
            return loss + weight * self.query_loss(model, maker, step) if weight else loss

        judge = self.queries.sample(self.training.validation_users, self.seed)
        source = self.source(model)
        fit_retriever(model, source, loss_at, len(self.windows), self.training, self.run, judge)
        return model.eval()

    def mapped(self, separate: QueryModel, place: Place) -> QueryModel:
        """Train the map alone beside a trained model."""
        model, maker = self.model(place), QueryMaker(self.seed + 1)
        own = {name: one for name, one in separate.state_dict().items() if "of_query" not in name}
        model.load_state_dict(own, strict=False)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("of_query" in name)
        steps = self.training.for_examples(len(self.windows))
        loss_at = partial(self.query_loss, model, maker)
        run_training(model, loss_at, self.training, steps, self.run, None)
        return model.eval()

    def source(self, model: QueryModel) -> Any:
        return generated_source(model, self.codes, HOME.beam_width)

    def lists(
        self, model: QueryModel, queries: EvaluationQueries, texts: Sequence[str] | None = None
    ) -> np.ndarray:
        """Generate a list for each query's history, and its text where given, [B, k]."""
        source, found = self.source(model), []
        for batch in queries.batches():
            features = dict(batch.queries.features)
            if texts is not None:
                own = [texts[row] for row in batch.rows.tolist()]
                features["query"] = self.texts.read(own, model.place)
            ranked = source(JaggedBatch(features), batch.allowed, queries.list_length)
            found.append(ranked.lists.item_rows.numpy())
        return np.concatenate(found)


def item_codes(world: World, texts: Texts, ids: str, seed: int, workspace: Path) -> ItemCodes:
    """Make IDs of the content or of the text tower's vectors, as large as the workspace's."""
    own = read_item_codes(workspace / "build_semantic_ids", "given")
    content = world.inputs.catalogue.content
    vectors = content if ids == "content" else texts.tower.encode(texts.documents)
    kmeans = KMeansConfig(balanced=True)
    config = ResidualKMeansConfig(level_sizes=own.level_sizes, kmeans=kmeans, seed=seed)
    made = behaviour_ids(vectors, content, config).ids
    return replace(own, codes=made.codes, level_sizes=made.level_sizes)


def gain_of(lists: np.ndarray, targets: Sequence[int]) -> float:
    """NDCG@10 of lists, of one wanted item each."""
    hits = lists[:, :K] == np.asarray(targets)[:, None]
    return float((hits / np.log2(2 + np.arange(K))).sum(1).mean())


class Searched:
    """The whole search of held-out queries, to which lists add a feature."""

    def __init__(self, bench: Bench) -> None:
        world, texts, seed = bench.world, bench.texts, bench.seed
        popularity = popularity_of(world.counts.numpy())
        titles = title_index(world.texts, popularity)
        vectors = texts.tower.encode(texts.documents)
        search = TextSearch(texts.tower, vectors, WordIndex.of(texts.documents), merging.START)
        judge = partial(Judged.of, bench.queries, texts.kept)
        self.by_kind = {kind: judge(seed + n, kind) for n, kind in enumerate(KINDS)}
        self.found: list[Candidates] = []
        self.features: list[np.ndarray] = []
        for judged in self.by_kind.values():
            found = judged.found(search, titles, popularity)
            orders = personal_orders(judged, found, world.sources, world.blend, world.counts)
            self.found += found
            self.features += [one.personal(order) for one, order in zip(found, orders, strict=True)]
        every = list(self.by_kind.values())
        targets = [target for one in every for target in one.targets]
        self.all = Judged(every[0].queries, tuple(targets), sum((one.made for one in every), ()))

    def measured(self, lists: Mapping[str, np.ndarray] | None) -> dict[str, float]:
        """Measure the search, with the places of each kind's lists as a feature or without."""
        features, start = self.features, merging.START
        if lists is not None:
            rows = np.concatenate([lists[kind] for kind in KINDS])
            features = [
                np.column_stack([own, places_of(one.item_rows, row)])
                for own, one, row in zip(features, self.found, rows, strict=True)
            ]
            start = (*start, 1.0)
        names = (*merging.FEATURES, "generated")[: len(start)]
        half = np.arange(len(self.all)) % (len(self.all) // len(KINDS)) % 2
        values = np.zeros(len(self.all))
        with patch.multiple(merging, START=start, FEATURES=names):
            for own in (0, 1):
                weights = weights_of(self.all, self.found, features, np.flatnonzero(half != own))
                values[half == own] = gains(self.all, self.found, features, weights)[half == own]
        parts = dict(zip(KINDS, np.split(values, len(KINDS)), strict=True))
        means = {f"{SHOWN[kind]}, search": float(parts[kind].mean()) for kind in SHOWN}
        return {**means, "all kinds, search": float(values.mean())}


def places_of(rows: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """Give the places of items in a list as the search's own features do, [K]."""
    place = {int(row): rank for rank, row in enumerate(ranked) if row > 0}
    ranks = np.array([place.get(int(row), np.inf) for row in rows])
    return (PERSONAL_SCALE / (PERSONAL_SCALE + ranks)).astype(np.float32)


def measured(bench: Bench, searched: Searched, model: QueryModel, name: str) -> dict[str, float]:
    """Measure one model: its lists alone, in the search, and without queries."""
    lists, found = {}, {}
    for kind, judged in searched.by_kind.items():
        texts = None if name == NO_QUERY else [one.text for one in judged.made]
        lists[kind] = bench.lists(model, judged.queries, texts)
        if kind in SHOWN:
            found[f"{SHOWN[kind]}, alone"] = gain_of(lists[kind], judged.targets)
    if name != NO_QUERY:
        some = bench.queries.sample(TRAINED, bench.seed)
        taught = Judged.of(some, bench.texts.taught, bench.seed, "title")
        own = bench.lists(model, taught.queries, [one.text for one in taught.made])
        found["titles of trained items, alone"] = gain_of(own, taught.targets)
    if "frozen" not in name:
        targets = bench.queries.held_out.targets
        first = targets.values[targets.offsets[:-1]].tolist()
        found[RECOMMENDS] = gain_of(bench.lists(model, bench.queries), first)
    return {**found, **searched.measured(lists)}


def one_seed(world: World, seed: int, options: Any) -> dict[str, dict[str, float]]:
    """Train and measure every way to read a query."""
    texts, found, searched = Texts(world, seed, options.steps), {}, None
    for ids in options.ids:
        bench = Bench(world, texts, ids, seed, options)
        searched = searched or Searched(bench)
        found[WITHOUT] = {**searched.measured(None), "queries": len(searched.by_kind["title"])}
        separate = bench.fitted("start", 0.0)
        ways: dict[str, Callable[[], QueryModel]] = {NO_QUERY: lambda separate=separate: separate}
        for place in options.query_places:
            ways[f"{place}, joint"] = partial(bench.fitted, place, WEIGHT)
            ways[f"{place}, frozen"] = partial(bench.mapped, separate, place)
        for name, train in ways.items():
            case = f"IDs of {ids}, {name}"
            found[case] = measured(bench, searched, train(), name)
            say(f"seed {seed} {case} {found[case]}")
    return found


def write_page(runs: Sequence[Mapping[str, Mapping[str, float]]], options: Any) -> None:
    """Average the seeds; recommendation stands beside the model of the same IDs without queries."""
    rows, single = [], []
    for case in runs[0]:
        for metric in [name for name in runs[0][case] if name != "queries"]:
            values, more = [run[case][metric] for run in runs], {}
            if metric == RECOMMENDS and NO_QUERY not in case:
                own = [run[f"{case.split(', ')[0]}, {NO_QUERY}"][metric] for run in runs]
                ratio = sum(values) / sum(own)
                more = {"ratio": ratio, "goal": f">= {GOAL:g}x", "met": ratio >= GOAL}
            rows.append(Row(name=f"{case}: N@10 {metric}", value=statistics.mean(values), **more))
        names = [name for name in SINGLE if name in runs[0][case]]
        shown = [", ".join(f"{run[case][name]:.3f}" for run in runs) for name in names]
        single.append(f"{case} {' and '.join(shown)}")
    queries = ", ".join(str(run[WITHOUT]["queries"]) for run in runs)
    notes = (
        f"Validation, means of seeds {options.seeds} with {queries} queries of each kind; "
        f"{options.epochs:g} passes, a loss weight of {WEIGHT:g}, a query a window and step. In "
        "the search a list's places are one more feature of the learned merge; the list without a "
        "query is of the history alone. With all but the map frozen recommendation is as without "
        f"queries. Single seeds, {' and '.join(SINGLE)}: {'; '.join(single)}."
    )
    write_results("query_generation", rows, notes=notes)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--ids", nargs="*", choices=IDS, default=list(IDS))
    parser.add_argument("--query-places", nargs="*", choices=PLACES, default=list(PLACES))
    parser.add_argument("--steps", type=int, default=TextTowerConfig().num_steps, help="of a tower")
    parser.add_argument("--epochs", type=float, default=5.0, help="of the generative model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    world = World(options.workspace)
    write_page([one_seed(world, seed, options) for seed in options.seeds], options)


if __name__ == "__main__":
    main()
