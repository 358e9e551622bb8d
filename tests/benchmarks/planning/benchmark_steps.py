"""Time training steps of the two-tower over sizes: what ``recsys plan`` computes with.

The batches are made beforehand; a step is that of the training loop (forward, backward, clipping,
check, optimizer), tables by rows on CUDA and dense on a CPU, as ``optimizer.tables = "auto"``
chooses for the sizes at hand. Prints a JSON line a case; ``check_plan`` fits and checks them.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.tables import filled_later
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.two_tower import TwoTower
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.passes import AdamWConfig, LoopConfig, ScheduleConfig
from recsys.training.progress import SilentProgress, SilentTracker
from tests.benchmarks.harness import command_line

WARM_UP = 6
NUM_BATCHES = 4


class Case(NamedTuple):
    items: int
    dim: int
    batch: int
    history: int
    negatives: int


ON_CPU = [
    Case(10_000, 64, 256, 25, 1_024),
    Case(10_000, 64, 512, 10, 2_048),
    Case(10_000, 64, 512, 50, 2_048),
    Case(100_000, 64, 512, 25, 2_048),
    Case(10_000, 128, 512, 25, 2_048),
    Case(10_000, 64, 1_024, 10, 4_096),
    Case(300_000, 32, 512, 25, 2_048),
    Case(10_000, 32, 512, 25, 512),
    Case(100_000, 128, 512, 25, 2_048),
    Case(30_000, 64, 512, 25, 4_096),
    Case(200_000, 64, 256, 50, 1_024),
    Case(10_000, 96, 384, 40, 1_536),
    Case(50_000, 128, 256, 10, 2_048),
]

HELD_OUT = [
    Case(60_000, 64, 384, 30, 2_048),
    Case(150_000, 96, 256, 20, 1_024),
    Case(25_000, 48, 768, 15, 3_072),
    Case(250_000, 64, 512, 40, 1_024),
    Case(5_000, 64, 1_024, 20, 2_048),
    Case(80_000, 128, 512, 15, 1_536),
]
"""Sizes that no constant is fitted to."""


def zipf(num_items: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw item rows >= 1 with frequency about 1 / rank, ranks scattered over the rows."""
    draws = torch.rand(count, generator=generator, dtype=torch.float64)
    rank = (draws * math.log(num_items)).exp().long().clamp(max=num_items) - 1
    return rank * 2_654_435_761 % num_items + 1


def batches_of(case: Case, device: torch.device) -> tuple[list[tuple[JaggedBatch, Tensor]], float]:
    """Draw batches, and say how many history values an example has on average."""
    generator, made, values = torch.Generator().manual_seed(0), [], 0
    for _ in range(NUM_BATCHES):
        lengths = torch.randint(1, 2 * case.history, (case.batch,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        values += int(offsets[-1])
        history = Jagged(zipf(case.items, int(offsets[-1]), generator), offsets)
        labels = zipf(case.items, case.batch, generator)
        made.append((JaggedBatch({"history": history}).to(device), labels.to(device)))
    return made, values / NUM_BATCHES / case.batch


def measured(case: Case, device: torch.device, num_steps: int) -> dict[str, Any]:
    """Train and take the time between the starts of two steps that a quarter stays below.

    Not the median: on a machine with neighbours what is added to a step is theirs.
    """
    batches, history = batches_of(case, device)
    tables = "rowwise_adam" if device.type == "cuda" else "auto"
    config = TwoTowerConfig(
        embedding_dim=case.dim,
        hidden_dim=2 * case.dim,
        max_history=2 * case.history,
        num_uniform_negatives=case.negatives,
    )
    rows = case.items + 1
    counts = torch.ones(rows, dtype=torch.int64)
    with filled_later():
        model = TwoTower(
            config, FeatureSizes(num_item_rows=rows), ItemCatalogue.empty(rows), counts
        )
    model = model.to(device)
    with torch.no_grad():
        model.item_tower.tables.weight("item").normal_(std=0.1)
    optimizer = adamw(model, AdamWConfig(tables=tables))
    begun: list[float] = []

    def loss_at(step: int) -> Tensor:
        begun.append(time.perf_counter())
        return model.loss(*batches[step % NUM_BATCHES])

    settings = LoopConfig(
        num_steps=WARM_UP + num_steps,
        schedule=ScheduleConfig(learning_rate=1e-3),
        checkpoint_seconds=None,
        deterministic=False,
    )
    quiet = SilentTracker()
    train(model, loss_at, optimizer, settings, tracker=quiet, progress=SilentProgress())
    gaps = [1e3 * (two - one) for one, two in pairwise(begun)]
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    tables = "rowwise_adam" if device.type == "cuda" else "dense"
    return {
        **case._asdict(),
        "history": history,
        "tables": tables,
        "gpus": 1 if device.type == "cuda" else 0,
        "ms": statistics.quantiles(gaps[WARM_UP:], n=4)[0],
        "peak_gib": peak,
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each case")
    parser.add_argument("--held-out", action="store_true", help="sizes that are not fitted to")
    parser.add_argument("--rounds", type=int, default=3, help="of all cases; the quickest counts")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the measurements")
    arguments = parser.parse_args()
    found: dict[Case, dict[str, Any]] = {}
    for _ in range(arguments.rounds):
        for case in HELD_OUT if arguments.held_out else ON_CPU:
            one = measured(case, torch.device("cpu"), arguments.steps)
            found[case] = min(found.get(case, one), one, key=lambda each: each["ms"])
            print(json.dumps(one), flush=True)
            gc.collect()
    arguments.out.write_text(json.dumps({"steps": list(found.values())}, indent=1))


if __name__ == "__main__":
    main()
