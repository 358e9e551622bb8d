"""Time a pass of preset auto's sequence model on a CPU, as each of three changes is added.

Before, gradients of pooled rows and dropout were torch's, and each label was ranked against all
items. Cases take turns. Memory that the C library keeps (mallopt) was a fourth: -4% to +2%.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import polars as pl
from torch import nn

from pipelines.auto.shape import sequence_recipe
from recsys.data.dataset import Sequences
from recsys.data.windows import num_windows
from recsys.fitting.queries import ModelInputs
from recsys.fitting.sequence import fit_sequence
from recsys.fitting.spec import Refit, TrainingRun
from recsys.layers.dropout import Dropout
from recsys.layers.embedding import collection
from recsys.layers.embedding.tables import summed_as_torch
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.strangers.sets import SETS

LOGS = ("sports-ids", "films-dated")
CASES = ("before", "sums for gradients", "dropout by words", "an eighth drawn")


def read_inputs(log: str) -> ModelInputs:
    """Lay out a log by ids alone."""
    events = SETS[log].make().events.sort("user", "time", maintain_order=True)
    rows = events["item"].cast(pl.String).rank("dense").to_numpy().astype(np.int64)
    lengths = events.group_by("user", maintain_order=True).len()["len"].to_numpy()
    ends = np.cumsum([0, 0, *lengths])
    sequences = Sequences(item_rows=rows, offsets=ends, train_end=ends[1:], validation_end=ends[1:])
    number = int(rows.max()) + 1
    sizes, catalogue = FeatureSizes(num_item_rows=number), ItemCatalogue.empty(number)
    return ModelInputs(sequences=sequences, catalogue=catalogue, sizes=sizes)


@contextmanager
def as_case(case: str) -> Iterator[None]:
    """Undo the changes that come after a case."""
    number = CASES.index(case)
    with ExitStack() as stack:
        if number < CASES.index("sums for gradients"):
            stack.enter_context(patch.object(collection, "summed_rows", summed_as_torch))
        if number < CASES.index("dropout by words"):
            stack.enter_context(patch.object(Dropout, "forward", nn.Dropout.forward))
        yield


def seconds(inputs: ModelInputs, case: str) -> float:
    """Train one pass of the recipe."""
    sequences, number = inputs.sequences, inputs.sizes.num_item_rows - 1
    users = len(sequences.offsets) - 2
    shape = {"num_users": users, "num_items": number}
    recipe = sequence_recipe(**shape, mean_history=sequences.num_events / users)
    model, training = recipe.model, recipe.training
    if CASES.index(case) < CASES.index("an eighth drawn"):
        model = replace(model, num_uniform_negatives=None)
    windows = num_windows(sequences, "all", model.max_length)
    steps = math.ceil(windows / training.batch_size)
    stop_by = Refit(best_step=steps, num_examples=windows, schedule_steps=steps)
    with as_case(case):
        begin = time.perf_counter()
        fit_sequence(inputs, model, training, TrainingRun(seed=0), stop_by, split="all")
        return time.perf_counter() - begin


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    turns, rows = parser.parse_args().turns, []
    inputs = {log: read_inputs(log) for log in LOGS}
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(turns):
        for log in LOGS:
            for case in CASES:
                taken.setdefault((log, case), []).append(seconds(inputs[log], case))
    for (log, case), times in taken.items():
        of_peer = {"peer": "before", "peer_value": statistics.median(taken[log, CASES[0]])}
        peer = {} if case == CASES[0] else of_peer
        rows.append(Row(name=f"{log}: {case}", value=statistics.median(times), unit="s", **peer))
    write_results("cpu_passes", rows)


if __name__ == "__main__":
    main()
