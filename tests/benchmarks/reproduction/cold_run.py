"""Run the cold-start protocol with one seed: fit on warm items, append the cold ones, measure.

Axes: N item rows, U queries, k list length.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from recsys.fitting.queries import EvaluationQueries, rank_queries
from recsys.fitting.spec import device_named
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.model import GenerativeModel
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.retrieval.generated import generated_source
from recsys.retrieval.sources import ScoredSource, Source
from tests.benchmarks.recipes.fit import Experiment, FittedSource
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.recipe import BLENDS
from tests.benchmarks.recipes.run import (
    LEDGER,
    RESULT,
    RunSettings,
    described,
    finished_result,
    metrics_of,
    note_test_look,
    write_json,
)
from tests.benchmarks.reproduction.cold_blend import Key, RankedSettings, blended
from tests.benchmarks.reproduction.cold_start import (
    ColdStartConfig,
    ColdWorld,
    cold_evaluation,
    cold_world,
    with_best_warm,
)
from tests.benchmarks.reproduction.fitters import FITTERS

SETTINGS = (
    "cold only",
    "oracle-cold",
    "oracle-cold warm",
    "blind",
    "blind warm",
    "with counts",
    "with counts warm",
)
"""Each setting is also measured on the last events of warm items, to show what it costs. Only
blends read counts."""
QUERIES_OF = {"with counts": "blind", "with counts warm": "blind warm"}
"""Settings with the queries of another one."""


def run_cold(
    prepared: Prepared,
    directory: Path,
    settings: RunSettings,
    config: ColdStartConfig | None = None,
) -> dict[str, Any]:
    """Measure every source and the blends on cold items, or read what an earlier call left."""
    config = config or ColdStartConfig()
    folder = directory / f"cold-{settings.name}"
    if (done := finished_result(folder, prepared, settings)) is not None:
        return done
    folder.mkdir(parents=True, exist_ok=True)
    if "test" in settings.splits:
        note_test_look(directory / LEDGER, prepared, settings)
    begin = time.perf_counter()
    world = cold_world(prepared, settings.order, settings.seed, config)
    experiment = Experiment(
        prepared=world.warm,
        inputs=world.warm.inputs(settings.order),
        seed=settings.seed,
        device=device_named(settings.device),
        checkpoints=folder / "checkpoints",
        shows_progress=settings.shows_progress,
        keeps_ids=True,
    )
    sources = {
        name: grown_source(name, FITTERS[name](experiment), experiment, world)
        for name in prepared.recipe.models()
    }
    queries = blind_queries(world, experiment, settings)
    ranked = {name: rank_each(source, queries, experiment) for name, source in sources.items()}
    anchor = ranked["sequence" if "sequence" in ranked else next(iter(ranked))]
    oracle = oracle_queries(world, queries, anchor, settings, config)
    for name, source in sources.items():
        ranked[name] |= rank_each(source, oracle, experiment)
    queries |= oracle
    for name in BLENDS:
        if name in prepared.recipe.rows:
            parts = {part: ranked[part] for part in prepared.recipe.parts(name)}
            ranked[name] = blended(parts, queries, experiment)
    result = {
        **described(prepared, settings),
        "seconds": round(time.perf_counter() - begin, 1),
        "num_cold": {split: int(rows.sum()) for split, rows in world.cold.items()},
        "num_targets": {split: len(users) for split, users in world.users.items()},
        "rows": {
            name: table(ranked[name], queries, settings)
            for name in ranked
            if name in prepared.recipe.rows
        },
    }
    write_json(folder / RESULT, result)
    return result


def rank_each(
    source: Source, queries: Mapping[Key, EvaluationQueries], experiment: Experiment
) -> RankedSettings:
    """Rank the queries of every setting and split."""
    return {key: rank_queries(source, one, experiment.device) for key, one in queries.items()}


def blind_queries(
    world: ColdWorld, experiment: Experiment, settings: RunSettings
) -> dict[Key, EvaluationQueries]:
    """Query the full catalogue for cold items and for each user's last warm events."""
    grown = replace(experiment, inputs=world.grown.inputs(settings.order))
    queries: dict[Key, EvaluationQueries] = {}
    for split in settings.splits:
        queries["blind", split] = cold_evaluation(world, split)
        queries["blind warm", split] = grown.queries(split)
    return queries


def oracle_queries(
    world: ColdWorld,
    blind: Mapping[Key, EvaluationQueries],
    anchor: RankedSettings,
    settings: RunSettings,
    config: ColdStartConfig,
) -> dict[Key, EvaluationQueries]:
    """Query the cold items alone, and with the anchor's best warm ones."""
    cold = torch.stack(list(world.cold.values())).any(0)
    queries: dict[Key, EvaluationQueries] = {}
    for split in settings.splits:
        eligible = world.cold[split]
        queries["cold only", split] = replace(blind["blind", split], eligible=eligible)
        for oracle, setting in (("oracle-cold", "blind"), ("oracle-cold warm", "blind warm")):
            best = with_best_warm(cold, anchor[setting, split].lists.item_rows, config.num_warm)
            queries[oracle, split] = replace(blind[setting, split], eligible=eligible, extra=best)
    return queries


def grown_source(
    name: str, fitted: FittedSource, experiment: Experiment, world: ColdWorld
) -> Source:
    """Let a model that was fitted on warm items rank the grown catalogue."""
    catalogue, device = world.grown.catalogue, experiment.device
    if name == "content_similarity":
        return ScoredSource(grown_content(experiment, world).to(device).score)
    if fitted.model is None:
        return fitted.source
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if name == "generative":
            codes = world.grown.item_codes()
            cast("GenerativeModel", fitted.model).cpu().save(folder)
            model = GenerativeModel.load(
                folder, catalogue, codes.codes, semantic_ids=codes.version
            ).to(device)
            return generated_source(model, codes, experiment.recipe.retrieval.beam_width)
        kind = SequenceModel if name == "sequence" else TwoTower
        cast("SequenceModel | TwoTower", fitted.model).cpu().save(folder)
        return ScoredSource(kind.load(folder, catalogue).to(device).score)


def grown_content(experiment: Experiment, world: ColdWorld) -> ContentSimilarity:
    """Whiten the cold items' content as that of the warm ones."""
    warm = ContentSimilarity(experiment.recipe.content_similarity, world.warm.catalogue.content)
    with tempfile.TemporaryDirectory() as place:
        warm.save(Path(place))
        return ContentSimilarity.load(Path(place), world.grown.catalogue.content)


def table(
    ranked: RankedSettings, queries: Mapping[Key, EvaluationQueries], settings: RunSettings
) -> dict[str, dict[str, float]]:
    """Lay metrics out by split, each named ``<setting>/<metric>``."""
    tables: dict[str, dict[str, float]] = {split: {} for split in settings.splits}
    for setting in SETTINGS:
        for split in settings.splits:
            if (setting, split) in ranked:
                targets = queries[QUERIES_OF.get(setting, setting), split].targets()
                metrics = metrics_of(ranked[setting, split].ranks, targets)
                tables[split] |= {f"{setting}/{name}": value for name, value in metrics.items()}
    return tables
