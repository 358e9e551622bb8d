"""What the trainings of a configuration cost on this CPU and on H100 GPUs, before they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipelines.auto.machine import this_machine
from pipelines.auto.plan import Costs
from pipelines.auto.shape import DataShape
from pipelines.config.run import RunConfig
from pipelines.engine.memory import GIB
from pipelines.inputs.tensors import read_inputs
from recsys.training.costs import (
    SEQUENCE,
    TWO_TOWER,
    Cost,
    Counts,
    count_windows,
    ranker_cost,
    sequence_cost,
    table_memory,
    two_tower_cost,
    whole_seconds,
)
from recsys.training.passes import AdamWConfig, ShardingConfig, TrainingConfig

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
    one, two = (list(on_gpus(config, shop, gpus)) for gpus in (1, 2))
    return [*on_cpu(config, shop, one), *one, *two]


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


def on_cpu(config: RunConfig, shop: Counts, on_one_gpu: list[Cost]) -> Iterator[Cost]:
    """Scale the seconds of an automatic plan by this machine's speed; a ranker has none there."""
    machine, length = this_machine("cpu"), shop.events / shop.users
    shape = DataShape(
        num_events=shop.events,
        num_users=shop.users,
        num_items=shop.items,
        mean_length=length,
        num_held_out=shop.users,
    )
    costs, dense = Costs(shape, machine), AdamWConfig(tables="dense")
    limit, process = machine.memory_bytes / GIB, costs.bytes_needed(num_sources=4) / GIB
    windows = count_windows(config.sequence, shop)
    passes = {
        TWO_TOWER: (costs.two_tower_pass(config.two_tower), shop.events, shop.items + shop.rows),
        SEQUENCE: (costs.sequence_pass(config.sequence), windows, shop.items),
    }
    for one in on_one_gpu:
        if one.training not in passes:
            continue
        seconds, examples, rows = passes[one.training]
        training: TrainingConfig = getattr(config, f"{one.training}_training")
        dim = getattr(config, one.training).embedding_dim
        tables, optimizer, _ = table_memory(rows * dim, dim, dense, ShardingConfig(), 1)
        ms = 1e3 * seconds * min(1.0, training.batch_size / examples)
        yield one._replace(
            on="this CPU",
            tables_gib=tables,
            optimizer_gib=optimizer,
            step_gib=one.step_gib + process,
            step_ms=ms,
            seconds=whole_seconds(training, one.num_steps, ms),
            limit_gib=limit,
            source="docs/machine.md, by a matrix product here",
        )
