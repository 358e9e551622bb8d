"""Time the ranker on one CPU core: a request's candidates, beside trunks of equal cost.

What is timed is what a server does for a request once the catalogue is encoded: making the query
ready (``encode_reader``) and scoring its candidates by tiles (``score``), with random weights.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import get_args

import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import RankingBatch
from recsys.models.ranker.config import (
    RankerConfig,
    RankerInputs,
    Trunk,
    count_flops,
)
from recsys.models.ranker.model import Ranker
from tests.benchmarks.harness import Row, command_line, device_name, write_results
from tests.recsys.testing.experts import at_equal_compute

NUM_ITEMS = 20_000
INPUTS = RankerInputs(
    num_item_rows=NUM_ITEMS + 1,
    tasks=("click", "like", "purchase"),
    content_dim=384,
    user_features={"segment": 50, "country": 50},
    candidate_dense=("two_tower", "item_to_item", "popularity"),
)


def milliseconds(
    call: Callable[[], object],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    for _ in range(30):
        call()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = clock()
        call()
        took.append((clock() - begin) * 1e3)
    return took


def rows_of(trunk: Trunk, num_candidates: int, seconds: float) -> list[Row]:
    torch.manual_seed(0)
    base = RankerConfig(backend="torch")
    config = at_equal_compute(base, INPUTS, trunk)
    empty = ItemCatalogue.empty(NUM_ITEMS + 1)
    catalogue = ItemCatalogue(torch.randn(NUM_ITEMS + 1, 384), empty.categories)
    model = Ranker(config, INPUTS, catalogue).eval()
    candidates = torch.randint(1, NUM_ITEMS + 1, (num_candidates,))
    numbers = torch.randn(num_candidates, 3)
    history = torch.randint(1, NUM_ITEMS + 1, (config.max_history,)).tolist()
    queries = JaggedBatch(
        {
            "history": Jagged.from_lists([history]),
            "user.segment": Jagged.from_lists([[3]]),
            "user.country": Jagged.from_lists([[7]]),
        }
    )
    candidates_of = Jagged(candidates, torch.tensor([0, num_candidates]))
    batch = RankingBatch(queries, candidates_of, None, numbers)
    with torch.inference_mode():
        model.all_item_inputs()
        reader = model.encode_reader(batch, 0)
        scoring = milliseconds(lambda: model.score_candidates(reader, candidates, numbers), seconds)
        working = milliseconds(
            lambda: model.score_candidates(reader, candidates, numbers), seconds, time.thread_time
        )
        reading = milliseconds(lambda: model.encode_reader(batch, 0), seconds / 4)
    name = f"{trunk}, {num_candidates} candidates"
    cost = count_flops(config, INPUTS)["total"]
    median = statistics.median(scoring)
    aimed = num_candidates == 300
    return [
        Row(name=f"{name}: scoring, median", value=median, unit="ms", at_most=1 if aimed else None),
        Row(
            name=f"{name}: scoring, processor time, median",
            value=statistics.median(working),
            unit="ms",
        ),
        Row(
            name=f"{name}: scoring, p99", value=statistics.quantiles(scoring, n=100)[98], unit="ms"
        ),
        Row(name=f"{name}: scoring, fastest", value=min(scoring), unit="ms"),
        Row(name=f"{name}: query, median", value=statistics.median(reading), unit="ms"),
        Row(name=f"{name}: rate", value=cost * num_candidates / median / 1e6, unit="GFLOP/s"),
        Row(name=f"{name}: cost of a candidate", value=cost / 1e3, unit="kFLOP"),
    ]


def matmul_rate() -> float:
    """Measure float32 operations per second of one core on a product of a tile's size."""
    left, right = torch.randn(300, 128), torch.randn(128, 128)
    took = milliseconds(lambda: left @ right, 0.5)
    return 2 * 300 * 128 * 128 / (statistics.median(took) * 1e-3)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rows = [
        Row(
            name="float32 product [300, 128] x [128, 128]",
            value=matmul_rate() / 1e9,
            unit="GFLOP/s",
        )
    ]
    for trunk in get_args(Trunk):
        rows += rows_of(trunk, 300, arguments.seconds)
    rows += rows_of("sparse", 100, arguments.seconds)
    notes = (
        "One thread, plain PyTorch, not compiled. Defaults of RankerConfig: tiles of 320, so 100 "
        "candidates cost as much as 300; history of 50, full catalogue of 20,000 items encoded "
        "before. Processor time leaves out what other programs on the machine took. The query is "
        "made ready once a request, before its candidates. Sparse and dense trunks by folded "
        f"weights (`ranker_folded.py`). Load average before: {load:.1f}."
    )
    write_results("latency", rows, notes=notes, device=device_name())


if __name__ == "__main__":
    main()
