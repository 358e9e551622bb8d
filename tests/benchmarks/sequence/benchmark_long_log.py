"""Measure on a real log what longer histories are worth to one member of its sequence model.

Arrays come from ``--prepare`` of a card in benchmarks/reproduction. One run trains the first member
of their recipe, with other blocks or a longer history, and ranks validation. The page, of all runs:

    python -m tests.benchmarks.sequence.benchmark_long_log ARRAYS --model sparse --length 1000 \
        --seconds 300 --out runs.jsonl
    python -m tests.benchmarks.sequence.benchmark_long_log --report runs.jsonl

Test is never looked at. Slices are of users by their events before validation's.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recsys.data.batch import Jagged
from recsys.evaluation.ranking import per_user_metric
from recsys.fitting import sequence
from recsys.fitting.queries import EvaluationQueries, rank_queries
from recsys.fitting.training import TrainingRun, device_named
from recsys.models.sequence.config import SequenceConfig
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.recipe import Recipe
from recsys.retrieval.sources import ScoredSource
from tests.benchmarks.harness import Row, command_line, write_results

SLICES = {"all": (0, 10**9), "up to 200 events": (0, 200), "201 to 500": (201, 500)}
SLICES["over 500"] = (501, 10**9)


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("arrays", type=Path, nargs="?")
    parser.add_argument("--model", default="attention")
    parser.add_argument("--length", type=int, default=200, help="events that are read")
    parser.add_argument("--seconds", type=float, default=None, help="of training, at most")
    parser.add_argument("--batch", type=int, default=None, help="windows of a step")
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="appends a line of JSON")
    parser.add_argument("--report", type=Path, help="of such lines, in place of a run")
    parser.add_argument("--device", default="NVIDIA H200", help="that the report names")
    parser.add_argument("--notes", default="", help="below the report's table")
    return parser.parse_args()


def member_config(recipe: Recipe, model: Any, length: int) -> SequenceConfig:
    """Take the recipe's first member, with blocks of a kind."""
    whole = recipe.sequence
    return replace(
        whole,
        embedding_dim=whole.embedding_dim // whole.num_members,
        num_members=1,
        trained_apart=False,
        fast_members=None,
        member_blocks=(),
        block=model,
        max_length=length,
        absolute_positions=model in ("attention", "hstu"),
    )


def measured(model: Any, queries: EvaluationQueries, device: torch.device) -> dict[str, Any]:
    """N@10 by slice, with the standard error of its mean."""
    ranked = rank_queries(ScoredSource(model.score), queries, device)
    gains = per_user_metric(Jagged(ranked.ranks, queries.targets().offsets), "ndcg@10")
    lengths, found = queries.held_out.seen.lengths(), {}
    for name, (least, most) in SLICES.items():
        own = gains[(lengths >= least) & (lengths <= most)].double()
        if len(own) > 1:
            error = round(float(own.std() / len(own) ** 0.5), 4)
            found[name] = {"n": len(own), "mean": round(float(own.mean()), 4), "error": error}
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train and measure once."""
    prepared = Prepared.load(options.arrays)
    recipe, device = prepared.recipe, device_named("auto")
    inputs = prepared.inputs(next(iter(prepared.orders)))
    config = member_config(recipe, options.model, options.length)
    training = replace(recipe.sequence_training, max_seconds=options.seconds)
    if options.batch:
        training = replace(training, batch_size=options.batch)
    if options.rate:
        schedule = replace(training.schedule, learning_rate=options.rate)
        training = replace(training, schedule=schedule)
    settings = replace(recipe.retrieval, max_history=options.length, max_scores=1 << 19)
    queries = EvaluationQueries.of(inputs, "validation", settings)
    judges = queries.sample(1_000, options.seed)
    begin = time.perf_counter()
    fitted = sequence.fit_sequence(
        inputs, config, training, TrainingRun(seed=options.seed, device=device), judges
    )
    seconds = time.perf_counter() - begin
    return {
        "model": options.model,
        "length": options.length,
        "seed": options.seed,
        "steps": fitted.result.num_steps,
        "best": fitted.result.best_step,
        "seconds": round(seconds),
        "data_digest": prepared.data_digest,
        "slices": measured(fitted.model.eval(), queries, device),
    }


def report(options: argparse.Namespace) -> None:
    """Write finished runs as a table."""
    rows = []
    for line in options.report.read_text().splitlines():
        one = json.loads(line)
        name = (
            f"{one['model']}, {one['length']} events, seed {one['seed']}, best of {one['steps']} "
            f"steps at {one['best']}, {one['seconds']} s"
        )
        for users, found in one["slices"].items():
            count = f"{users} ({found['n']} users)"
            rows.append(Row(name=f"{name}: {count}", value=found["mean"]))
            rows.append(Row(name=f"{name}: {users}, standard error", value=found["error"]))
    write_results("long_log", rows, notes=options.notes, device=options.device)


def main() -> None:
    options = parsed_arguments()
    if options.report:
        report(options)
        return
    found = run(options)
    print(json.dumps(found), flush=True)
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
