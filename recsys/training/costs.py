"""Memory and time of a training on GPUs before it is run, scaled from steps that were measured.

The constants reproduce docs/how-many-gpus.md within 9% (a test allows 15%). A step takes the longer
of the host's launches and the device's work; time is in proportion to labels, scores, width and the
rows that are read. The batch is that of all GPUs, as in a run.

Axes: N item rows, D width, B labels of a step over all GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from recsys.data.bounds import check_bounds
from recsys.models.configs import TwoTowerConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.training.passes import (
    ROWS_PAY_FROM,
    AdamWConfig,
    RankerFitConfig,
    ShardingConfig,
    TrainingConfig,
)

TWO_TOWER, SEQUENCE, RANKER = "two_tower", "sequence", "ranker"
GIB, FLOAT = 1 << 30, 4
H100_GIB = 76.0
"""Memory of an H100 of 80 GB that a training can take."""
LABEL_MS, ROWS_OF_A_LABEL = 4.18e-4, 22
"""Device time of a two-tower's label at width 64, and the rows that it reads: 20 events, itself and
its user."""
SCORE_MS, EXCHANGE_MS = 3.37e-10, 6.3e-5
"""Device time of a score of its softmax; time to send a label's rows between two GPUs."""
TABLE_MS, RANKS_MS = {True: 7.7, False: 6.3}, 11.1
"""Least step of a two-tower on one GPU, if tables move by rows or as dense weights; on two."""
LABEL_BYTES, STEP_GIB = 42_000, 0.06
"""Memory of a step by label of a GPU, at width 64 and those rows, and besides."""
EVENT_ITEM_MS, EVENT_BLOCK_MS, SAMPLED_EVENT_MS = 6.8e-9, 8.7e-5, 1.07e-3
"""A sequence model's event at width 64: by item that is ranked, by block, and if some are drawn."""
SEQUENCE_MS, SEQUENCE_RANKS_MS = 3.6, 15.0
"""Least step of a sequence model: captured, and launched kernel by kernel as by two GPUs."""
RANKER_MS, RANKER_ITEM_MS = 2.6, 5.1e-5
"""Step of the default ranker, more by item."""
SLOTS = {"dense": 3.0, "adam": 2.0, "rowwise_adam": 1.0, "rowwise_adagrad": 0.0}
"""Optimizer's numbers (and gradients that are kept) for each weight of a table."""
PAGE = "tests/benchmarks/results/{}.md"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The size of a shop."""

    items: int
    users: int
    events: int
    rows: int = 0
    """Rows of the tables of users' and contexts' features."""

    def __post_init__(self) -> None:
        check_bounds(self, items=">= 1", users=">= 1", events=">= 1", rows=">= 0")


class Cost(NamedTuple):
    """What one training takes on each of some devices."""

    training: str
    on: str
    tables_gib: float
    optimizer_gib: float
    step_gib: float
    """Activations and their gradients."""
    step_ms: float
    num_steps: int
    """Steps of all passes; validation may end a training before."""
    seconds: float
    """Time of all passes and the refit."""
    limit_gib: float
    """Memory that a device has."""
    source: str
    """Page of the measurement that the step is scaled from."""

    @property
    def gib(self) -> float:
        return self.tables_gib + self.optimizer_gib + self.step_gib


def whole_seconds(training: TrainingConfig, num_steps: int, step_ms: float) -> float:
    """Time a training and its refit on all events."""
    one = num_steps * step_ms / 1e3
    refit = min(1.0, (training.refit_epochs or training.max_epochs) / training.max_epochs)
    return min(one, training.max_seconds or one) * (1 + refit)


def cost_on_gpus(
    name: str,
    gpus: int,
    training: TrainingConfig,
    examples: int,
    memory: tuple[float, float, float],
    step_ms: float,
    page: str,
) -> Cost:
    """Put a cost together, of a pass's examples and the GiB of tables, optimizer and a step."""
    steps = training.for_examples(examples).num_steps
    seconds, on = whole_seconds(training, steps, step_ms), f"{gpus} H100"
    return Cost(name, on, *memory, step_ms, steps, seconds, H100_GIB, PAGE.format(page))


def table_memory(
    elements: int, dim: int, optimizer: AdamWConfig, sharding: ShardingConfig, gpus: int
) -> tuple[float, float, bool]:
    """Count weights and optimizer of a model's tables on each GPU, GiB; say whether rows move."""
    rule = optimizer.tables
    if rule == "auto":
        rule = "adam" if elements >= ROWS_PAY_FROM else "dense"
    by_rows = rule != "dense"
    parts = gpus if by_rows and elements >= sharding.shard_from else 1
    word_a_row = 1 / dim if rule.startswith("rowwise") else 0.0
    weights = FLOAT * elements / GIB / parts
    return weights, (SLOTS[rule] + word_a_row) * weights, by_rows


def two_tower_cost(
    config: TwoTowerConfig,
    training: TrainingConfig,
    shop: Counts,
    gpus: int,
    sharding: ShardingConfig | None = None,
) -> Cost:
    """Scale the step of a two-tower of 100M rows on one and two H100."""
    dim, batch = config.embedding_dim, training.batch_size
    tables, optimizer, by_rows = table_memory(
        (shop.items + shop.rows) * dim, dim, training.optimizer, sharding or ShardingConfig(), gpus
    )
    history, own = min(config.max_history, shop.events / shop.users), batch / gpus
    width, rows = dim / 64, (history + 2) / ROWS_OF_A_LABEL
    scores = batch + config.num_uniform_negatives
    label = (LABEL_MS + (EXCHANGE_MS if gpus > 1 else 0.0)) * rows + SCORE_MS * scores
    least = RANKS_MS if gpus > 1 else TABLE_MS[by_rows]
    memory = tables, optimizer, STEP_GIB + LABEL_BYTES * own * width * rows / GIB
    ms, page = max(least, own * width * label), "distributed/two_tower_ranks"
    return cost_on_gpus(TWO_TOWER, gpus, training, shop.events, memory, ms, page)


def count_windows(config: SequenceConfig, shop: Counts) -> int:
    """Expect the windows of histories of the mean length."""
    return round(shop.users * max(1.0, shop.events / shop.users / config.max_length))


def sequence_cost(
    config: SequenceConfig, training: TrainingConfig, shop: Counts, gpus: int
) -> Cost:
    """Scale a pass over 10M events on one H100; on two GPUs only a large model was measured."""
    dim, windows = config.embedding_dim, count_windows(config, shop)
    events = min(training.batch_size, windows) * shop.events / windows / gpus
    tables, optimizer, _ = table_memory(
        shop.items * dim, dim, training.optimizer, ShardingConfig(), 1
    )
    drawn, width = config.num_uniform_negatives, dim / 64
    is_sampled = drawn is not None and drawn < shop.items
    ranked = SAMPLED_EVENT_MS if is_sampled else EVENT_ITEM_MS * shop.items
    event = (ranked + EVENT_BLOCK_MS * config.num_blocks) * width
    # Weights, gradients and moments of the blocks; a dozen vectors an event and block.
    blocks = config.num_blocks * (4 * dim * dim + 2 * dim * config.hidden_dim) * FLOAT
    busy = 12 * config.num_blocks * events * (dim + config.hidden_dim) * FLOAT
    members = config.num_members if config.trained_apart else 1
    least = SEQUENCE_MS if gpus == 1 else SEQUENCE_RANKS_MS
    memory = tables, optimizer + 3 * blocks / GIB, STEP_GIB + (blocks + busy) / GIB
    ms, page = max(least * members, events * event), "training/a_pass_beside_rectools"
    return cost_on_gpus(SEQUENCE, gpus, training, windows, memory, ms, page)


def ranker_cost(dim: int, training: RankerFitConfig, shop: Counts, queries: int, gpus: int) -> Cost:
    """Scale the step of the default ranker on one H200; of several GPUs each trains the whole."""
    ms, sharding = RANKER_MS + RANKER_ITEM_MS * shop.items, ShardingConfig()
    elements = (shop.items + shop.rows) * dim
    tables, optimizer, _ = table_memory(elements, dim, training.optimizer, sharding, 1)
    candidates = training.batch_size * (1 + training.num_hard + training.num_random)
    memory = tables, optimizer, STEP_GIB + 64 * candidates * dim * FLOAT / GIB
    return cost_on_gpus(RANKER, gpus, training, queries, memory, ms, "training/ranker_steps")
