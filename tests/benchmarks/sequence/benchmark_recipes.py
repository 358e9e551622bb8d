"""Train variations of the sequence model's recipe, on whole sets and on small samples of users.

A sample is so many users drawn by a seed, without their last event, which is the test's of the
whole set; validation is then the last event that is left. Item-to-item is fitted on the same
events. Only validation is looked at.

    python -m tests.benchmarks.reproduction toys-ids --prepare arrays/toys-ids
    python -m tests.benchmarks.sequence.benchmark_recipes arrays/toys-ids --users 5000 --draws 7 8

Writes results/sequence/recipes_<set>.{json,md}; recipes.md holds what was chosen by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.auto.recipe import SequenceRecipe, sequence_recipe
from recsys.data.dataset import Sequences, concatenated_ranges
from recsys.evaluation.ranking import RankingConfig
from recsys.fitting.counted import fit_item_to_item
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import EvaluationQueries, RetrievalSettings, measure
from recsys.fitting.sequence import fit_sequence
from recsys.fitting.spec import TrainingRun, device_named
from recsys.models.configs import ItemToItemConfig
from recsys.retrieval.sources import ScoredSource
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.recipes.prepared import Prepared

MODEL_CASES: dict[str, dict[str, Any]] = {
    "recipe": {},
    "without neighbours": {"num_neighbours": 0},
    "neighbours x .5": {"neighbour_weight": 0.5},
    "neighbours x 2": {"neighbour_weight": 2.0},
    "dropout .3": {"dropout": 0.3},
    "dropout .5": {"dropout": 0.5},
    "temperature .07": {"temperature": 0.07},
    "temperature .1": {"temperature": 0.1},
    "label smoothing .1": {"label_smoothing": 0.1},
    "two blocks": {"num_blocks": 2},
    "HSTU": {"block": "hstu"},
    "width 64": {"embedding_dim": 64},
    "two members": {"embedding_dim": 256, "num_members": 2},
    "four members": {"embedding_dim": 512, "num_members": 4},
}
PASSES = {"half of the passes": 0.5, "twice the passes": 2.0}


def sample_of(whole: Sequences, num_users: int, draw: int) -> Sequences:
    """Draw users, without their last event; validation is the last that is left."""
    owners = np.flatnonzero(np.diff(whole.offsets) > 1)
    drawn = np.random.default_rng(draw).permutation(owners)[:num_users]
    chosen = np.sort(drawn)
    starts, ends = whole.offsets[:-1][chosen], whole.offsets[1:][chosen] - 1
    offsets = np.concatenate([[0, 0], np.cumsum(ends - starts)])
    places = concatenated_ranges(starts, ends)
    return Sequences(
        item_rows=np.asarray(whole.item_rows)[places],
        offsets=offsets,
        train_end=np.maximum(offsets[1:] - 1, offsets[:-1]),
        validation_end=offsets[1:],
        times=None if whole.times is None else np.asarray(whole.times)[places],
    )


def shape_of(inputs: ModelInputs) -> dict[str, Any]:
    """Count what models are fitted on."""
    sequences = inputs.sequences
    lengths = sequences.train_end - sequences.offsets[:-1]
    num_users = int((lengths > 0).sum())
    return {
        "num_users": num_users,
        "num_items": int((inputs.item_counts("train") > 0).sum()),
        "mean_history": float(lengths.sum()) / max(1, num_users),
        "has_text": inputs.sizes.content_dim > 0,
        "has_times": sequences.times is not None,
    }


def cases_of(recipe: SequenceRecipe) -> Iterator[tuple[str, SequenceRecipe]]:
    """Name the recipe and what differs from it in one thing."""
    for name, change in MODEL_CASES.items():
        yield name, recipe._replace(model=replace(recipe.model, **change))
    for name, share in PASSES.items():
        passes = share * recipe.training.max_epochs
        yield name, recipe._replace(training=replace(recipe.training, max_epochs=passes))


def rows_of(inputs: ModelInputs, options: Any, draw: str) -> Iterator[Row]:
    """Measure every case."""
    device = device_named(options.device)
    queries = EvaluationQueries.of(inputs, "validation", RetrievalSettings())
    ranking = RankingConfig(ks=(10,))
    counted = fit_item_to_item(inputs, ItemToItemConfig(), "train")
    metrics = measure(ScoredSource(counted.score), queries, ranking)
    yield Row(name=f"item-to-item{draw}: N@10", value=round(metrics["ndcg@10"], 4))
    for name, (model, training) in cases_of(sequence_recipe(**shape_of(inputs))):
        if options.cases and name not in options.cases:
            continue
        for seed in options.seeds:
            run = TrainingRun(seed=seed, device=device)
            fitted = fit_sequence(inputs, model, training, run, queries)
            metrics = measure(ScoredSource(fitted.model.score), queries, ranking, device)
            for metric, short in (("recall@10", "R@10"), ("ndcg@10", "N@10")):
                case = f"{name}{draw}, seed {seed}: {short}"
                yield Row(name=case, value=round(metrics[metric], 4))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "arrays", type=Path, help="from python -m tests.benchmarks.reproduction --prepare"
    )
    parser.add_argument("--users", type=int, help="of a sample; the whole set without")
    parser.add_argument("--draws", nargs="*", type=int, default=[7], help="seeds of samples")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--cases", nargs="*", default=[], help="only these")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    prepared = Prepared.load(options.arrays)
    whole = prepared.inputs(next(iter(prepared.orders)))
    rows: list[Row] = []
    if options.users is None:
        rows += rows_of(whole, options, "")
    else:
        for draw in options.draws:
            part = sample_of(whole.sequences, options.users, draw)
            rows += rows_of(replace(whole, sequences=part), options, f", draw {draw}")
    size = "" if options.users is None else f"_{options.users}"
    write_results(f"recipes_{prepared.name}{size}", rows)


if __name__ == "__main__":
    main()
