"""Train and measure prepared arrays.

    python -m tests.benchmarks.reproduction.train FOLDER --out RUNS --seeds 0 1 2

Needs torch, numpy and safetensors alone, so it runs where the pipelines' packages are not. A call a
seed lets seeds share a device; what is finished is not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.recipe import REFITTED, ROWS, with_changes
from tests.benchmarks.recipes.run import RunSettings
from tests.benchmarks.reproduction.ranking_run import run_once


def parsed_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tests.benchmarks.reproduction.train", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="arrays, from --prepare of a card")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--orders", nargs="*", help="of tied times; all by default")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument(
        "--rows", nargs="*", choices=(*ROWS, *REFITTED), help="of the recipe; the arrays' own else"
    )
    parser.add_argument("--validation-only", action="store_true", help="never look at test")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="of the recipe")
    parser.add_argument(
        "--why",
        default="python -m tests.benchmarks.reproduction",
        help="noted with each look at test",
    )
    parser.add_argument("--progress", action="store_true", help="write the steps of trainings")
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace, order: str, seed: int) -> RunSettings:
    """Describe one run."""
    return RunSettings(
        order=order,
        seed=seed,
        splits=("validation",) if options.validation_only else ("validation", "test"),
        device=options.device,
        why=options.why,
        shows_progress=options.progress,
    )


def run_all(prepared: Prepared, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every order and seed in this process."""
    results = []
    for order in options.orders or prepared.orders:
        for seed in options.seeds:
            settings = settings_of(options, order, seed)
            results.append(run_once(prepared, options.out, settings))
            sys.stdout.write(summary_line(results[-1]))
            sys.stdout.flush()
    return results


def summary_line(result: dict[str, Any]) -> str:
    """Summarise a run in one line, with recall@10 and ndcg@10."""
    split = "test" if "test" in result["splits"] else "validation"
    metrics = (
        f"{name} {row[split]['recall@10']:.4f}/{row[split]['ndcg@10']:.4f}"
        for name, row in result["rows"].items()
    )
    head = f"{result['data_set']} {result['order']} seed {result['seed']} {split}"
    return f"{head}, {result['seconds']:.0f} s: {'  '.join(metrics)}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = parsed_arguments(arguments)
    prepared = Prepared.load(options.folder)
    recipe = prepared.recipe
    if options.rows:
        recipe = replace(recipe, rows=tuple(options.rows))
    prepared = replace(prepared, recipe=with_changes(recipe, options.set))
    run_all(prepared, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
