"""Measure popularity, item-to-item and two-tower on the Amazon sets, full catalogue.

The literature's protocol: leave one out, models fit on all but the last two events of each user,
the second last chooses the number of steps, the last is the test target, and at test time the
history holds the validation item. No user repeats an item, so the history is masked. Tied days are
ordered as the published sequences are (given) and by a seeded shuffle (shuffled); Toys has no
times, so it has one order.

Runs the pipeline's own stages with the pipeline's own presets. Each piece (data set, order, seed)
keeps its workspace, and finished pieces are not run again, so it can be called piece by piece:

    RECSYS_DATA_MIRROR=/data python -m tests.benchmarks.retrieval.benchmark_quality \
        --sets beauty --orders given --seeds 0 1 2

Each look at a test split adds a line to results/test_split_ledger.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from pipelines.config.run import RunConfig
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.inputs.tensors import read_inputs
from pipelines.presets import PRESETS
from pipelines.presets.resolve import with_dataset
from pipelines.stages.evaluate import evaluate_split
from pipelines.stages.list import STAGES
from recsys.models.item_to_item import ItemToItem
from recsys.models.popularity import Popularity
from recsys.models.two_tower import TwoTower
from recsys.retrieval.sources import ScoredSource
from tests.benchmarks.harness import RESULTS, Row, command_line, device_name, write_results

LEDGER = RESULTS / "test_split_ledger.jsonl"
METRICS = ("recall@10", "ndcg@10")
GOALS = {
    ("item_to_item", "recall@10"): {"beauty": 0.0725, "sports": 0.0366, "toys": 0.0851},
    ("item_to_item", "ndcg@10"): {"beauty": 0.0457, "sports": 0.0219, "toys": 0.0543},
    ("two_tower", "recall@10"): {"beauty": 0.060, "sports": 0.036, "toys": 0.065},
}
SASREC = {  # best SASRec in the literature: 256 negatives, tuned (eSASRec benchmark)
    "recall@10": {"beauty": 0.0921, "sports": 0.0569, "toys": 0.0970},
    "ndcg@10": {"beauty": 0.0531, "sports": 0.0314, "toys": 0.0580},
}
TRAINING_MINUTES = 10


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", default=["beauty", "sports", "toys"])
    parser.add_argument("--orders", nargs="*", default=["given", "shuffled"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0], help="of the two-tower")
    parser.add_argument("--baselines-only", action="store_true")
    parser.add_argument("--workspace", type=Path, default=Path("runs/retrieval-quality"))
    parser.add_argument("--why", default="benchmark", help="noted in the ledger of test looks")
    return parser.parse_args()


def config_of(name: str, order: str, seed: int, workspace: Path) -> RunConfig:
    preset = PRESETS[f"amazon_{name}"]()
    return with_dataset(
        replace(
            preset,
            workspace=workspace,
            seed=seed,
            splits=replace(preset.splits, tie_orders=(order,)),
        )
    )


def measure(
    name: str, order: str, seed: int, *, baselines_only: bool, root: Path, why: str
) -> None:
    """Run one piece and keep its numbers in <root>/<piece>/<model>.json."""
    workspace = root / f"{name}-{order}-{seed}"
    wanted = ["popularity", "item_to_item"] if baselines_only else ["two_tower"]
    if all((workspace / f"{model}.json").exists() for model in wanted):
        return
    config = config_of(name, order, seed, workspace)
    two_tower = ["enrich_items", "embed_items", "train_two_tower"]
    fit = ["enrich_items", "embed_items", "fit_baselines"] if baselines_only else two_tower
    outcomes = run_stages(pick_stages(STAGES, ["build_features", *fit], None), config)
    by_stage = {outcome.stage: outcome for outcome in outcomes}
    features = workspace / "build_features"
    content = None if baselines_only else workspace / "embed_items"
    inputs = read_inputs(features, content, order)
    if baselines_only:
        folder = workspace / "fit_baselines" / order
        sources = {
            "popularity": ScoredSource(Popularity.load(folder / "popularity").score),
            "item_to_item": ScoredSource(ItemToItem.load(folder / "item_to_item").score),
        }
    else:
        folder = workspace / "train_two_tower" / order / "two_tower"
        sources = {"two_tower": ScoredSource(TwoTower.load(folder, inputs.catalogue).score)}
    fitted = by_stage[fit[-1]]
    described = {
        "set": name,
        "order": order,
        "seed": seed,
        "seconds": fitted.seconds,
        "device": f"{device_name()}, {torch.get_num_threads()} threads",
        "config": fitted.manifest.making[:12],
        "data": by_stage["build_features"].manifest.output[:12],
    }
    with torch.no_grad():
        splits = {
            split: evaluate_split(sources, inputs, split, config)
            for split in ("validation", "test")
        }
    for model in sources:
        note_test_look({**described, "model": model}, why)
        metrics = {split: results[model].metrics for split, results in splits.items()}
        numbers = {
            split: {metric: values[metric] for metric in METRICS}
            for split, values in metrics.items()
        }
        document = {**described, "model": model, **numbers}
        (workspace / f"{model}.json").write_text(json.dumps(document, indent=2) + "\n")


def note_test_look(described: dict[str, Any], why: str) -> None:
    entry = {
        "date": datetime.now(UTC).date().isoformat(),
        "data_set": f"amazon-{described['set']}",
        "tie_order": described["order"],
        "model": described["model"],
        "seed": described["seed"],
        "config": described["config"],
        "why": why,
    }
    with LEDGER.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def rows_of(pieces: list[dict[str, Any]]) -> Iterable[Row]:
    """One row for each number of one model in one order, the mean where there are several seeds."""
    first = pieces[0]
    name, order, model = first["set"], first["order"], first["model"]
    label = f"{name}, {order} order, {model}"
    for metric in METRICS:
        values = [piece["test"][metric] for piece in pieces]
        value = statistics.mean(values)
        several = f" (mean of {len(values)} seeds)" if len(values) > 1 else ""
        goal = GOALS.get((model, metric), {}).get(name)
        peer = SASREC[metric][name] if model == "two_tower" and order == "given" else None
        yield Row(
            name=f"{label}: {metric}{several}",
            value=value,
            peer=None if peer is None else f"SASRec, 256 negatives, published: {peer}",
            ratio=None if peer is None else value / peer,
            goal=None if goal is None or order != "given" else f">= {goal}",
            met=None if goal is None or order != "given" else value >= goal,
        )
        if len(values) > 1:
            yield Row(
                name=f"{label}: {metric}, deviation over {len(values)} seeds",
                value=statistics.stdev(values),
            )
        validation = statistics.mean(piece["validation"][metric] for piece in pieces)
        yield Row(name=f"{label}: {metric} on validation", value=validation)
    if model == "two_tower":
        minutes = max(piece["seconds"] for piece in pieces) / 60
        yield Row(
            name=f"{label}: slowest training, validation included",
            value=minutes,
            unit="min",
            goal=f"<= {TRAINING_MINUTES} min on 2 cores",
            at_most=TRAINING_MINUTES,
        )


def write_all(root: Path) -> None:
    """Write the table of every piece that has been measured."""
    pieces = [json.loads(path.read_text()) for path in sorted(root.glob("*-*-*/*.json"))]
    pieces = [piece for piece in pieces if "model" in piece]
    order = {"given": 0, "shuffled": 1}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for piece in pieces:
        key = (piece["set"], order[piece["order"]], piece["model"])
        groups.setdefault(key, []).append(piece)
    rows = [row for key in sorted(groups) for row in rows_of(groups[key])]
    lines = ["Pieces: config and data are digests of the stages' manifests.", ""]
    lines += ["| set | order | model | seed | fit s | config | data |", "| --- " * 7 + "|"]
    for piece in pieces:
        cells = [piece["set"], piece["order"], piece["model"], str(piece["seed"])]
        cells += [f"{piece['seconds']:.1f}", piece["config"], piece["data"]]
        lines.append("| " + " | ".join(cells) + " |")
    write_results("quality", rows, notes="\n".join(lines))


def main() -> None:
    options = parsed_arguments()
    for name in options.sets:
        for order in options.orders:
            if name == "toys" and order == "shuffled":
                continue
            for seed in options.seeds:
                measure(
                    name,
                    order,
                    seed,
                    baselines_only=options.baselines_only,
                    root=options.workspace,
                    why=options.why,
                )
    write_all(options.workspace)


if __name__ == "__main__":
    main()
