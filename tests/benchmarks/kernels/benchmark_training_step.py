"""Time a whole training step of the two-tower, by how its embedding tables move.

Every variant gets the same batches, already on the device, and runs through the training loop:
forward, backward, clipping, the check of loss and gradient, AdamW on what is dense. ``before`` is
plain torch with dense gradients and AdamW over whole tables. Row updates are checked against plain
torch's first; a variant that disagrees is not timed. FBGEMM is left out where it is not installed.
"""

from __future__ import annotations

import math
import statistics
import time
from importlib.util import find_spec
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, RowUpdateConfig, TableConfig
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.two_tower import TwoTower
from recsys.training.loop import train
from recsys.training.optim import AdamWConfig, LoopConfig, ScheduleConfig, adamw
from recsys.training.progress import SilentProgress, SilentTracker
from tests.benchmarks.harness import Row, command_line, device_name, write_results
from tests.benchmarks.kernels.comparison import free_memory

NUM_BATCHES = 8
WARM_UP = 10


class Case(NamedTuple):
    name: str
    num_items: int
    dim: int
    num_categories: int
    content_dim: int
    batch_size: int
    history: int
    negatives: int


CASES = {
    "beauty": Case("Beauty's size, 12k x 128", 12_101, 128, 637, 384, 512, 9, 2_048),
    "1m": Case("1M x 64", 1_000_000, 64, 0, 0, 4_096, 50, 8_192),
    "10m": Case("10M x 64", 10_000_000, 64, 0, 0, 4_096, 50, 8_192),
}


class Variant(NamedTuple):
    name: str
    backend: str
    tables: str


VARIANTS = (
    Variant("before: torch, dense", "torch", "dense"),
    Variant("torch, rows", "torch", "adam"),
    Variant("FBGEMM, rows", "torchrec", "adam"),
    Variant("Triton, rows", "triton", "adam"),
    Variant("Triton, rows, row-wise squares", "triton", "rowwise_adam"),
)


def zipf(num_items: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw item rows >= 1 with frequency about 1 / rank, ranks scattered over the rows."""
    draws = torch.rand(count, generator=generator, dtype=torch.float64)
    rank = (draws * math.log(num_items)).exp().long().clamp(max=num_items) - 1
    return rank * 2_654_435_761 % num_items + 1


def batches_of(case: Case, device: torch.device) -> list[tuple[JaggedBatch, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(NUM_BATCHES):
        lengths = torch.randint(1, 2 * case.history, (case.batch_size,), generator=generator)
        lengths = lengths.clamp(max=50)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        history = Jagged(zipf(case.num_items, int(offsets[-1]), generator), offsets)
        labels = zipf(case.num_items, case.batch_size, generator)
        made.append((JaggedBatch({"history": history}).to(device), labels.to(device)))
    return made


def model_of(case: Case, backend: str, device: torch.device) -> TwoTower:
    torch.manual_seed(0)
    rows = case.num_items + 1
    catalogue = ItemCatalogue.empty(rows)
    if case.content_dim:
        lists = [[], *([1 + row % (case.num_categories - 1)] for row in range(case.num_items))]
        catalogue = ItemCatalogue(torch.randn(rows, case.content_dim), Jagged.from_lists(lists))
    config = TwoTowerConfig(
        embedding_dim=case.dim,
        hidden_dim=2 * case.dim,
        num_uniform_negatives=case.negatives,
        backend=backend,
    )
    inputs = FeatureSizes(
        num_item_rows=rows, content_dim=case.content_dim, num_categories=case.num_categories
    )
    counts = torch.ones(rows, dtype=torch.int64)
    return TwoTower(config, inputs, catalogue, counts).to(device)


def step_ms(
    case: Case, variant: Variant, num_steps: int, device: torch.device
) -> tuple[float, int]:
    """Train and take the median time from one step's start to the next's; and the peak memory."""
    batches = batches_of(case, device)
    model = model_of(case, variant.backend, device)
    clip = None if variant.backend == "torchrec" else 1.0
    optimizer = adamw(model, AdamWConfig(tables=variant.tables, max_row_norm=clip))
    begun: list[float] = []

    def loss_at(step: int) -> Tensor:
        # The loop has waited for the step before, so the device is idle here.
        begun.append(time.perf_counter())
        if step == WARM_UP and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        return model.loss(*batches[step % NUM_BATCHES])

    config = LoopConfig(
        num_steps=WARM_UP + num_steps,
        schedule=ScheduleConfig(learning_rate=1e-3),
        checkpoint_seconds=None,
        deterministic=False,
    )
    quiet = SilentTracker()
    train(model, loss_at, optimizer, config, tracker=quiet, progress=SilentProgress())
    gaps = [1e3 * (two - one) for one, two in pairwise(begun)]
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return statistics.median(gaps[WARM_UP:]), peak


def moved_tables(backend: str, device: torch.device) -> list[Tensor]:
    """Move two tables for three steps, with repeats, empty examples and a hot row."""
    tables = [
        TableConfig(name="item", num_rows=5_000, embedding_dim=64, features=("item", "history")),
        TableConfig(
            name="category", num_rows=40, embedding_dim=32, features=("category",), pooling="mean"
        ),
    ]
    torch.manual_seed(1)
    bags = EmbeddingBags(tables, backend).to(device)
    bags.update_rows(RowUpdateConfig(rule="adam"))
    generator = torch.Generator().manual_seed(2)

    def feature(num_rows: int, longest: int) -> Jagged:
        lengths = torch.randint(0, longest + 1, (512,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        ids = torch.randint(0, num_rows, (int(offsets[-1]),), generator=generator)
        return Jagged(torch.where(ids % 3 == 0, 7, ids), offsets)

    for _ in range(3):
        batch = JaggedBatch(
            {"item": feature(5_000, 1), "history": feature(5_000, 50), "category": feature(40, 3)}
        )
        bags.begin_step(0.01)
        pooled = bags(batch.to(device))
        loss = torch.zeros((), device=device)
        for value in pooled.values():
            direction = torch.randn(value.shape, generator=generator).to(device)
            loss = loss + (value * direction).sum()
        if bags.may_move(loss):
            loss.backward()  # type: ignore[no-untyped-call]
    return [bags.weight(table.name).detach().cpu().double() for table in tables]


def agrees(backend: str, device: torch.device) -> bool:
    """Compare row updates with plain torch's, by the norm of the difference."""
    pairs = zip(moved_tables(backend, device), moved_tables("torch", device), strict=True)
    return all(float((one - two).norm() / two.norm()) < 1e-5 for one, two in pairs)


def rows_of(case: Case, num_steps: int, device: torch.device) -> list[Row]:
    rows: list[Row] = []
    first = None
    for variant in VARIANTS:
        if variant.backend == "torchrec" and not (
            find_spec("fbgemm_gpu") and device.type == "cuda"
        ):
            continue
        if variant.backend == "triton" and device.type != "cuda":
            continue
        if variant.tables != "dense" and not agrees(variant.backend, device):
            rows.append(Row(name=f"{case.name}: {variant.name} DISAGREES", value=0, met=False))
            continue
        value, peak = step_ms(case, variant, num_steps, device)
        free_memory()
        first = first or value
        rows.append(
            Row(
                name=f"{case.name}: {variant.name}",
                value=value,
                unit="ms a step",
                peer=f"peak {peak / 2**30:.2f} GiB" if peak else None,
                ratio=first / value,
            )
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["beauty", "10m"])
    parser.add_argument("--steps", type=int, default=100, help="timed steps of each variant")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else device_name()
    rows = [
        row for case in arguments.cases for row in rows_of(CASES[case], arguments.steps, device)
    ]
    notes = (
        "Ratio: against `before`. Batches of 512 (Beauty) and 4,096 labels, 2,048 and 8,192 "
        "uniform negatives, histories of 9 and 37 items on average, at most 50. bfloat16 autocast "
        "on CUDA, float32 tables."
    )
    write_results(f"training_step_{device.type}", rows, notes=notes, device=name)


if __name__ == "__main__":
    main()
