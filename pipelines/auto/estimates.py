"""What the trainings of a configuration cost on one and two H100, before they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipelines.config.run import RunConfig
from pipelines.inputs.tensors import read_inputs
from recsys.training.costs import Cost, Counts, ranker_cost, sequence_cost, two_tower_cost

EXAMPLE = "items=20e6,users=80e6,events=1e9"


def parse_sizes(text: str) -> Counts:
    """Read the sizes of a shop, written as ``EXAMPLE``."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return Counts(**{key.strip(): int(float(value)) for key, value in pairs})
    except (TypeError, ValueError, OverflowError) as error:
        why = str(error).rpartition("__init__() ")[2]
        raise ValueError(
            f"--shop is items=N,users=N,events=N[,rows=N], such as {EXAMPLE}; got {text!r}: {why}"
        ) from error


def count_shop(features: Path) -> Counts:
    """Count prepared data."""
    inputs = read_inputs(features, None)
    sizes, sequences = inputs.sizes, inputs.sequences
    return Counts(
        items=sizes.num_item_rows - 1,
        users=int(np.count_nonzero(np.diff(sequences.offsets))),
        events=sequences.num_events,
        rows=sum([*sizes.user_features.values(), *sizes.context_features.values()]),
    )


def estimate(config: RunConfig, shop: Counts) -> list[Cost]:
    """Estimate each enabled training on each machine; the generative model was not measured."""
    return [*on_gpus(config, shop, 1), *on_gpus(config, shop, 2)]


def on_gpus(config: RunConfig, shop: Counts, gpus: int) -> Iterator[Cost]:
    """Scale the steps that were measured on GPUs."""
    two_tower, sequence = config.two_tower_training, config.sequence_training
    if two_tower.enabled:
        yield two_tower_cost(config.two_tower, two_tower, shop, gpus, config.torchrun)
    if sequence.enabled:
        yield sequence_cost(config.sequence, sequence, shop, gpus)
    if config.ranker_training.enabled:
        ranker, dim = config.ranker_training, config.ranker.embedding_dim
        queries = min(ranker.max_queries, shop.events)
        yield ranker_cost(dim, ranker, shop, queries, gpus)
