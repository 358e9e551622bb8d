"""From a card's configuration to the arrays that its models train on: the data's side of a card.

The stages up to the semantic IDs run in a workspace of their own, so a second call finds them done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch

from pipelines.backtest.prepare import DIGITS, files_digest, only_training
from pipelines.config.run import RunConfig
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.inputs.tensors import read_inputs, retrieval_settings
from pipelines.presets.resolve import with_dataset
from pipelines.stages.list import STAGES
from pipelines.training.fitters import pick_settings
from recsys.data.dataset import Sequences
from recsys.models.names import GENERATIVE, SEQUENCE
from recsys.semantic_ids.codes import ItemCodes, SemanticIds
from serving.surfaces import HOME
from tests.benchmarks.recipes.prepared import VERSION, Prepared
from tests.benchmarks.recipes.recipe import Recipe

PREPARING = ("build_features", "enrich_items", "embed_items", "build_semantic_ids")
ORDER_COLUMNS = ("sequence_index", "event_time")


def events_digest(path: Path) -> str:
    """Hash the raw events by user, item and order, independent of their file format."""
    events = pl.read_parquet(path)
    order = [name for name in ORDER_COLUMNS if name in events.columns]
    kept = events.select("user_id", "item_id", *order).sort("user_id", *order, "item_id")
    text = kept.select(pl.all().cast(pl.String)).write_csv(include_header=False, null_value="")
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def recipe_of(config: RunConfig, rows: Sequence[str], sources: Sequence[str]) -> Recipe:
    """Take what shapes the models out of a run's configuration.

    Args:
        config: The run's.
        rows: What is shown.
        sources: What a blend merges.
    """
    return Recipe(
        rows=tuple(rows),
        sources=tuple(sources),
        popularity=config.popularity,
        item_to_item=config.item_to_item,
        ease=config.ease,
        content_similarity=config.content_similarity,
        two_tower=config.two_tower,
        two_tower_training=only_training(config.two_tower_training),
        sequence=pick_settings(SEQUENCE, config),
        sequence_training=only_training(config.sequence_training),
        generative=pick_settings(GENERATIVE, config),
        generative_training=only_training(config.generative_training),
        generative_ids=config.semantic_ids.source,
        generative_teaching=config.generative_training.teaching,
        blend=config.blend,
        fusion_weights=dict(HOME.weights),
        metric=config.evaluation.primary_metric,
        retrieval=retrieval_settings(config),
    )


def prepare(name: str, config: RunConfig, recipe: Recipe, *, show_progress: bool) -> Prepared:
    """Run the preparing stages and gather what they made.

    Args:
        name: Of the data set, as numbers are labelled.
        config: The card's; its workspace is where the stages write.
        recipe: What will be trained and measured.
        show_progress: Whether stages draw bars.
    """
    # IDs of behaviour come from the sequence model that is trained on the arrays.
    settings = replace(config.semantic_ids, source="content")
    config = with_dataset(replace(config, semantic_ids=settings))
    events = config.data.event_paths()
    run_stages(pick_stages(STAGES, PREPARING, None), config, show_progress=show_progress)
    features, content = (config.workspace / stage for stage in ("build_features", "embed_items"))
    inputs = read_inputs(features, content)
    encoder = json.loads((content / "content.json").read_text(encoding="utf-8"))["encoder"]
    return Prepared(
        name=name,
        data_digest=events_digest(events[0]) if config.data.dataset else files_digest(events),
        recipe=recipe,
        orders={
            "given": inputs.sequences,
            "shuffled": shuffled_ties(inputs.sequences, config.seed),
        },
        catalogue=inputs.catalogue,
        sizes=inputs.sizes,
        user_features={name: np.asarray(rows) for name, rows in inputs.user_features.items()},
        codes=read_codes(config),
        content_columns=config.semantic_ids.content_columns,
        about={"encoder": encoder, "split": config.splits.kind, "seed": config.seed},
    )


def shuffled_ties(sequences: Sequences, seed: int) -> Sequences:
    """Permute the events of one user and time, which files of days leave in an order of their own.

    Results that differ between the two orders rest on that order alone. Features of the moment do
    not depend on it.
    """
    if sequences.times is None:
        return sequences
    users = np.repeat(np.arange(len(sequences.offsets) - 1), np.diff(sequences.offsets))
    mixed = np.random.default_rng(seed).random(len(users))
    places = np.lexsort((mixed, sequences.times, users))
    types = None if sequences.event_types is None else sequences.event_types[places]
    return replace(sequences, item_rows=sequences.item_rows[places], event_types=types)


def read_codes(config: RunConfig) -> ItemCodes | None:
    """Lay a run's semantic IDs out by item row; None where there are none."""
    artefact = config.workspace / "build_semantic_ids"
    if not (artefact / "semantic_ids.json").exists():
        return None
    ids = SemanticIds.load(artefact)
    rows = torch.from_numpy(np.load(artefact / "id_rows.npy", allow_pickle=False))
    return replace(ids.by_item_row(rows), version=VERSION)
