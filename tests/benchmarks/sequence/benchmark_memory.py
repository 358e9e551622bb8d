"""Measure the peak memory of a training step over a large catalogue, on CPU.

One step of the sequence model (full softmax, or sampled with --negatives) with AdamW over a made
catalogue: batch x length positions against every item. The peak is the process's own, the model,
its optimizer and the catalogue included.

    python -m tests.benchmarks.sequence.benchmark_memory --items 1000000 --negatives 8192
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.training.optim import AdamWConfig, adamw
from tests.benchmarks.harness import Row, command_line, write_results

GOAL_GIB = 24


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--content-dim", type=int, default=0)
    parser.add_argument("--negatives", type=int, default=None, help="full softmax without")
    parser.add_argument("--steps", type=int, default=1)
    return parser.parse_args()


def made_batch(options: argparse.Namespace) -> JaggedBatch:
    """Draw full windows of distinct lengths' worst case: every sequence as long as allowed."""
    rows = torch.randint(1, options.items + 1, (options.batch * (options.length + 1),))
    offsets = torch.arange(options.batch + 1) * (options.length + 1)
    return JaggedBatch({"history": Jagged(rows, offsets)})


def main() -> None:
    options = parsed_arguments()
    torch.manual_seed(0)
    num_rows = options.items + 1
    catalogue = ItemCatalogue.empty(num_rows)
    if options.content_dim:
        catalogue = ItemCatalogue(torch.randn(num_rows, options.content_dim), catalogue.categories)
    config = SequenceConfig(
        embedding_dim=options.dim,
        max_length=options.length,
        num_uniform_negatives=options.negatives,
        backend="torch",
    )
    inputs = FeatureSizes(num_item_rows=num_rows, content_dim=options.content_dim)
    counts = torch.ones(num_rows, dtype=torch.int64)
    model = SequenceModel(config, inputs, catalogue, counts)
    optimizer = adamw(model, AdamWConfig(tables="dense"))
    seconds = 0.0
    for _ in range(options.steps):
        begin = time.perf_counter()
        loss = model.loss(made_batch(options))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    kind = "full softmax" if options.negatives is None else f"{options.negatives} uniform draws"
    label = f"{options.items} items x {options.dim}, {options.batch} x {options.length}, {kind}"
    rows = [
        Row(name=f"{label}: peak memory", value=peak, unit="GiB", at_most=GOAL_GIB),
        Row(name=f"{label}: last step", value=seconds, unit="s"),
    ]
    name = "memory" if options.negatives is None else "memory_sampled"
    write_results(
        name,
        rows,
        notes="The scores at once would take "
        f"{options.batch * options.length * options.items * 4 / 2**30:.0f} GiB.",
    )


if __name__ == "__main__":
    main()
