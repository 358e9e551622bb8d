"""Does the evaluation of 1M users x 100k items fit into 24 GiB, and how long would it take.

Two parts, each in a fresh process with its own peak of resident memory:

score     users x 100k items through evaluate_ranking: time per user, memory of a batch. As many
          users as the time allows; the time for 1M is carried on from them.
results   all 1M users through the same evaluate_ranking for each of four models, but over a
          catalogue of 256 items: result arrays, lists of 100 and joins have their full size, only
          a batch of scores is small. Then the per-user table and the whole analysis of them:
          intervals, slices, paired tests, and measures beyond accuracy over 100k items.

    python -m tests.benchmarks.evaluation.benchmark_scale
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.config.run import EvaluationConfig
from pipelines.evaluation.analyse import Background, analyse_split
from pipelines.stages.evaluate import per_user_table
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.evaluation.ranking import RankingResult, evaluate_ranking
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import RetrievalSettings
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from tests.benchmarks.harness import Row, command_line, write_results

HISTORY = 20
DIM = 16
SMALL_CATALOGUE = 256
CONTENT_DIM = 384
NUM_CATEGORIES = 20
MODELS = ("popularity", "item_to_item", "two_tower", "blend")
CONFIG = EvaluationConfig()


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--all-users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--few-users", type=int, default=2_048, help="for the time per user")
    parser.add_argument("--score-seconds", type=float, default=50, help="for the part score")
    parser.add_argument("--part", choices=sorted(PARTS), help="run one part, print JSON, stop")
    parser.add_argument("--users", type=int, help="of that part")
    return parser.parse_args()


def peak_gib() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def drawn_rows(num_users: int, num_items: int) -> Tensor:
    """Draw HISTORY + 1 item rows for each user, [U, HISTORY + 1]; the last is held out."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, num_items + 1, (num_users, HISTORY + 1), generator=generator)


def ranked(rows: Tensor, num_items: int, seed: int) -> RankingResult:
    """Evaluate a factor model of random vectors, as the stage evaluate does.

    Args:
        rows: History and held-out item of each user, [U, HISTORY + 1].
    """
    num_users = len(rows)
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(num_users + 1, DIM, generator=generator)
    items = torch.randn(num_items + 1, DIM, generator=generator)
    size = RetrievalSettings(max_scores=CONFIG.max_scores).batch_size(num_items)
    batches = (
        JaggedBatch({"user": Jagged.one_each(part)})
        for part in torch.split(torch.arange(1, num_users + 1), size)
    )
    return evaluate_ranking(
        lambda batch: queries[batch["user"].values] @ items.T,
        batches,
        Jagged.one_each(rows[:, -1].contiguous()),
        CONFIG,
        exclude=Jagged(rows[:, :-1].reshape(-1), HISTORY * torch.arange(num_users + 1)),
    )


def score_part(num_users: int, num_items: int) -> dict[str, float]:
    """Evaluate one model over the whole catalogue."""
    rows = drawn_rows(num_users, num_items)
    begin = time.perf_counter()
    result = ranked(rows, num_items, seed=1)
    seconds = time.perf_counter() - begin
    assert result.num_users == num_users
    return {"seconds": seconds, "peak_gib": peak_gib()}


def background(rows: Tensor, num_items: int) -> Background:
    """Make the histories, contents and categories that lists are held against."""
    num_users = len(rows)
    generator = torch.Generator().manual_seed(2)
    content = torch.randn(num_items + 1, CONTENT_DIM, generator=generator)
    category = torch.randint(1, NUM_CATEGORIES + 1, (num_items + 1,), generator=generator)
    ends = (HISTORY + 1) * np.arange(1, num_users + 1)
    sequences = Sequences(
        item_rows=rows.reshape(-1).numpy(),
        # User row 0 is padding.
        offsets=np.array([0, 0, *ends]),
        train_end=np.array([0, *(ends - 1)]),
        validation_end=np.array([0, *ends]),
    )
    inputs = ModelInputs(
        sequences=sequences,
        catalogue=ItemCatalogue(content, Jagged.one_each(category)),
        sizes=FeatureSizes(
            num_item_rows=num_items + 1,
            content_dim=CONTENT_DIM,
            num_categories=NUM_CATEGORIES + 1,
        ),
        user_features={},
    )
    names = pl.DataFrame({"row": range(1, NUM_CATEGORIES + 1)})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocabularies").mkdir()
        names.with_columns(id=pl.col("row").cast(str)).write_parquet(
            Path(folder) / "vocabularies" / "categories.parquet"
        )
        return Background.of(inputs, Path(folder), "benchmark")


def results_part(num_users: int, num_items: int) -> dict[str, float]:
    """Hold the results of all models, lay them out and analyse them; their lists are of few items.

    Args:
        num_items: Of the catalogue that lists are held against.
    """
    rows = drawn_rows(num_users, SMALL_CATALOGUE)
    begin = time.perf_counter()
    results = {
        name: ranked(rows, SMALL_CATALOGUE, seed) for seed, name in enumerate(MODELS, start=1)
    }
    found = {"ranking_seconds": time.perf_counter() - begin, "ranking_gib": peak_gib()}
    begin = time.perf_counter()
    table = per_user_table(results, CONFIG.listed, "benchmark")
    with tempfile.TemporaryDirectory() as folder:
        table.write_parquet(Path(folder) / "per_user.parquet")
    del table
    found |= {"table_seconds": time.perf_counter() - begin, "table_gib": peak_gib()}
    known = background(rows, num_items)
    lengths = torch.full((num_users,), HISTORY)
    begin = time.perf_counter()
    analysis = analyse_split(results, known, CONFIG, lengths=lengths, baseline="two_tower", seed=0)
    assert len(analysis.models) == len(MODELS)
    return found | {"analysis_seconds": time.perf_counter() - begin, "peak_gib": peak_gib()}


PARTS: dict[str, Callable[[int, int], dict[str, float]]] = {
    "score": score_part,
    "results": results_part,
}


def in_fresh_process(part: str, num_users: int, num_items: int) -> dict[str, float]:
    """Run one part and read what it measured."""
    options = ["--part", part, "--users", str(num_users), "--items", str(num_items)]
    command = [sys.executable, "-m", __spec__.name, *options]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(answer.stdout)
    print(part, num_users, found, flush=True)
    return found


def rows_of(
    options: argparse.Namespace, measured: dict[str, dict[str, float]], num_scored: int
) -> list[Row]:
    """Lay out what was measured and, named so, what is carried on."""
    few, score, results = (measured[name] for name in ("few", "score", "results"))
    everyone, items = f"{options.all_users:,} users", f"{options.items:,} items"
    per_user = (score["seconds"] - few["seconds"]) / (num_scored - options.few_users)
    minutes = (score["seconds"] + per_user * (options.all_users - num_scored)) / 60
    peak = results["peak_gib"] + few["peak_gib"]
    four = f"{everyone}, {len(MODELS)} models"
    values = [
        (f"measured: time, {num_scored:,} users x {items}, one model", score["seconds"], "s"),
        (f"extrapolated: time, {everyone} x {items}, one model", minutes, "min"),
        (f"measured: peak memory, {options.few_users:,} users x {items}", few["peak_gib"], "GiB"),
        (f"measured: peak memory, {num_scored:,} users x {items}", score["peak_gib"], "GiB"),
        (f"measured: peak memory, results of {four}", results["ranking_gib"], "GiB"),
        ("measured: the same with the per-user table", results["table_gib"], "GiB"),
        ("measured: the same with the whole analysis", results["peak_gib"], "GiB"),
        (f"measured: time of the per-user table, {four}", results["table_seconds"], "s"),
        (f"measured: time of the whole analysis, {four}", results["analysis_seconds"], "s"),
    ]
    return [
        *(Row(name=name, value=value, unit=unit) for name, value, unit in values),
        Row(name=f"sum of measured peaks: {four} x {items}", value=peak, unit="GiB", at_most=24),
    ]


def main() -> None:
    options = parsed_arguments()
    if options.part:
        print(json.dumps(PARTS[options.part](options.users, options.items)))
        return

    few = in_fresh_process("score", options.few_users, options.items)
    num_scored = int(options.few_users * options.score_seconds / few["seconds"]) // 1000 * 1000
    num_scored = max(2 * options.few_users, min(options.all_users, num_scored))
    measured = {
        "few": few,
        "score": in_fresh_process("score", num_scored, options.items),
        "results": in_fresh_process("results", options.all_users, options.items),
    }
    write_results(
        "scale",
        rows_of(options, measured, num_scored),
        notes=f"Random factors of width {DIM}, scored in batches; {HISTORY} excluded items and one "
        f"target a user, top {max(CONFIG.ks)} kept, {CONFIG.num_resamples} resamples. The time for "
        "all users is a linear extrapolation, not a run. The results of all users were measured "
        f"with the same code over a catalogue of {SMALL_CATALOGUE} items, on which their size does "
        "not depend; the sum adds to that the whole peak of a small run over all items, so the "
        "interpreter and torch count twice. No user is left out by sampling. Not in it: the models "
        "and the features that the stage loads; histories are.",
    )


if __name__ == "__main__":
    main()
