"""What generated lists add where others are weak, and what spreading or valuing them costs.

Arrays come from ``recsys reproduce CARD --prepare``. A piece is one seed of one data set; the page
is made of all pieces in a folder:

    python -m tests.benchmarks.training.benchmark_generation ARRAYS --out PIECES --seeds 0 1
    python -m tests.benchmarks.training.benchmark_generation --out PIECES --write

Validation alone; a blend's weights for a half of the users are learned on the other half. Values
are planted: drawn log-normal for each item, a tenth of them missing.

Axes: U queries, N item rows.
"""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.item_mask import ItemMask
from recsys.data.top_k import TopK
from recsys.data.windows import training_windows
from recsys.evaluation.beyond_accuracy import (
    catalogue_coverage,
    category_diversity,
    intra_list_diversity,
)
from recsys.evaluation.bootstrap import bootstrap_intervals
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.fitting.alignment import AlignedEvents, align_generative
from recsys.fitting.generative import Guidance, SequenceTeacher, fit_generative
from recsys.fitting.queries import EvaluationQueries, rank_queries
from recsys.reproduction.experiment import Experiment, generated_ids
from recsys.retrieval.sources import Source, generated_source, source_name
from recsys.training.alignment import AlignmentConfig, RewardConfig, value_of
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.training.benchmark_alignment import (
    JUDGES,
    MODELS,
    Ground,
    blended_lists,
    computing,
    experiments,
    generative_settings,
    say,
)

K = 10
SESSION = 5
"""Events of a history that is cut to its latest ones."""
FEW_EVENTS = 20
"""Training events of a target up to which an item is called new."""
LIMITS = (None, 4, 2, 1)
"""Items of a list that share their first code."""

GRPO = AlignmentConfig(method="grpo", learning_rate=1e-4)
VALUED = {
    f"weight {weight}, cost {cost}": replace(
        GRPO, rewards=RewardConfig(hit=1.0, value=weight), value_cost=cost
    )
    for weight, cost in ((0.01, 0.02), (0.01, 0.1), (0.03, 0.02), (0.03, 0.1))
}
"""Rewards of values, and the share of N@10 that may be lost."""


def gains_of(lists: TopK, queries: EvaluationQueries) -> Tensor:
    """Measure N@10 of each query, [U]."""
    targets = queries.targets()
    ranks = list_ranks(lists.item_rows.cpu(), targets)
    return per_user_metric(Jagged(ranks.values, targets.offsets), f"ndcg@{K}")


def spread_of(lists: TopK, experiment: Experiment, codes: Tensor) -> dict[str, float]:
    """Say of how many kinds the first ten items of lists are."""
    rows, catalogue = lists.item_rows[:, :K].cpu(), experiment.inputs.catalogue
    first = codes[rows.clamp(min=0), 0]
    distinct = [len(set(one.tolist()) - {-1}) for one in first]
    num_categories = int(catalogue.categories.values.max()) + 1
    shown = ItemMask((experiment.item_counts() > 0).cpu().numpy())
    of_category = category_diversity(rows, K, catalogue.categories, num_categories)
    return {
        "first codes": statistics.mean(distinct),
        "categories apart": float(of_category.nanmean()),
        "content apart": float(intra_list_diversity(rows, K, catalogue.content).nanmean()),
        "coverage": catalogue_coverage(rows, K, shown),
    }


class Trained:
    """One generative model and what it is measured beside."""

    def __init__(self, ground: Ground, *, taught: bool, epochs: float | None) -> None:
        self.ground, self.experiment = ground, ground.experiment
        experiment, recipe = self.experiment, self.experiment.recipe
        sequence = ground.fitted["sequence"].model
        self.codes = generated_ids(experiment, sequence.all_item_vectors())
        config, teaching = generative_settings(recipe, taught=taught)
        training = recipe.generative_training
        if epochs is not None:
            training = replace(training, max_epochs=epochs)
        judges = max(JUDGES, training.validation_users)
        self.judge = ground.queries.sample(judges, experiment.seed)
        self.run = experiment.run("none")
        guidance = Guidance(SequenceTeacher(sequence, teaching) if taught else None)
        inputs = experiment.fitted_on
        fitted = fit_generative(
            inputs, self.codes, config, training, self.run, self.judge, guidance=guidance
        )
        self.model, self.result = fitted.model.eval(), fitted.result
        self.windows = training_windows(inputs.sequences, "train", config.max_length)

    def source(self, limit: int | None = None) -> Source:
        """Search with the model, spread or not."""
        self.model.config = replace(self.model.config, first_code_limit=limit)
        return generated_source(self.model, self.codes, self.experiment.recipe.retrieval.beam_width)

    def lists(self, queries: EvaluationQueries, limit: int | None = None) -> TopK:
        return rank_queries(self.source(limit), queries, self.experiment.device).lists


def spread(trained: Trained) -> dict[str, Any]:
    """Measure lists and the blend by how many items may share a first code."""
    ground, experiment, found = trained.ground, trained.experiment, {}
    codes = trained.codes.codes
    for limit in LIMITS:
        own = trained.lists(ground.queries, limit)
        top = blended_lists(experiment, ground.queries, {**ground.lists, "generative": own})
        found[f"at most {limit}" if limit else "no limit"] = {
            "alone": float(gains_of(own, ground.queries).nanmean()),
            "blend": float(gains_of(top, ground.queries).nanmean()),
            **spread_of(own, experiment, codes),
            "blend's categories": spread_of(top, experiment, codes)["categories apart"],
        }
        say(f"limit {limit} {found}")
    return found


def weak_slices(trained: Trained) -> dict[str, Any]:
    """Measure each query's N@10 of the blend with and without generation, by slice."""
    ground, experiment = trained.ground, trained.experiment
    short = replace(ground.queries, settings=replace(ground.queries.settings, max_history=SESSION))
    cut = {
        source_name(name): rank_queries(fitted.source, short, experiment.device).lists
        for name, fitted in ground.fitted.items()
    }
    targets = ground.queries.held_out.targets
    first = targets.values[targets.offsets[:-1].clamp(max=len(targets.values) - 1)]
    is_new = experiment.item_counts().cpu()[first] <= FEW_EVENTS
    found = {}
    for name, queries, lists in (("whole", ground.queries, ground.lists), ("cut", short, cut)):
        own = trained.lists(queries)
        without = blended_lists(experiment, queries, lists)
        joined = blended_lists(experiment, queries, {**lists, "generative": own})
        values = {
            "generative": gains_of(own, queries),
            "two-tower": gains_of(lists["two_tower"], queries),
            "sequence": gains_of(lists["sequence"], queries),
            "without": gains_of(without, queries),
            "with": gains_of(joined, queries),
        }
        found[name] = {key: value.tolist() for key, value in values.items()}
        say(f"{name} { {key: float(value.nanmean()) for key, value in values.items()} }")
    return {**found, "is new": is_new.tolist()}


def valued(trained: Trained) -> dict[str, Any]:
    """Align a copy to planted values by each setting, and measure before and after."""
    experiment, counts = trained.experiment, trained.experiment.item_counts().cpu()
    random = np.random.default_rng(7)
    planted = random.lognormal(3.0, 1.0, len(counts))
    planted[random.random(len(counts)) < 0.1] = np.nan
    values = torch.from_numpy(planted).float()
    apart, real = value_of(values), values.nan_to_num(float(np.nanmean(planted)))
    found, sequences = {}, experiment.fitted_on.sequences
    for name, config in {"before": None, **VALUED}.items():
        model, steps = copy.deepcopy(trained.model), 0
        model.config = replace(model.config, first_code_limit=None)
        source = generated_source(model, trained.codes, experiment.recipe.retrieval.beam_width)
        if config is not None:
            events = AlignedEvents(sequences, trained.windows, counts, values)
            result = align_generative(
                model,
                trained.codes,
                events,
                config,
                trained.run,
                trained.judge,
                source,
                trained.result,
            )
            steps = result.aligned_steps
        queries = trained.ground.queries
        lists = rank_queries(source, queries, experiment.device).lists
        rows = lists.item_rows[:, :K].cpu()
        top = blended_lists(experiment, queries, {**trained.ground.lists, "generative": lists})
        shown = top.item_rows[:, :K].cpu()
        found[name] = {
            "alone": float(gains_of(lists, queries).nanmean()),
            "value": float(real[rows[rows > 0]].mean()),
            "deviations": float(apart[rows[rows > 0]].mean()),
            "blend": float(gains_of(top, queries).nanmean()),
            "blend's value": float(real[shown[shown > 0]].mean()),
            "steps": steps,
        }
        say(f"{name} {found[name]}")
    return found


def slices_of(one: dict[str, Any]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Cut a piece's measures into slices, [u] each."""
    is_new = torch.tensor(one["slices"]["is new"])
    for part, name in (("whole", "whole histories"), ("cut", f"{SESSION} events")):
        values = {key: torch.tensor(value) for key, value in one["slices"][part].items()}
        yield name, values
        yield f"{name}, new items", {key: value[is_new] for key, value in values.items()}


def rows_of(pieces: list[dict[str, Any]]) -> Iterator[Row]:
    """Average the seeds of one data set."""
    columns = {
        "alone": "N@10 alone",
        "blend": "N@10 of the blend",
        "first codes": "first codes",
        "categories apart": "distance by categories",
        "coverage": "coverage",
        "value": "value@10",
        "blend's value": "value@10 of the blend",
    }
    for part in ("spread", "value"):
        for case in pieces[0].get(part, {}):
            for key in [key for key in columns if key in pieces[0][part][case]]:
                mean = statistics.mean(one[part][case][key] for one in pieces)
                yield Row(name=f"{pieces[0]['set']}, {case}: {columns[key]}", value=round(mean, 4))
    if "slices" not in pieces[0]:
        return
    for parts in zip(*map(slices_of, pieces), strict=True):
        case = f"{pieces[0]['set']}, {parts[0][0]}"
        means = {
            key: statistics.mean(float(values[key].nanmean()) for _, values in parts)
            for key in parts[0][1]
        }
        yield Row(name=f"{case}: N@10 alone", value=round(means["generative"], 4))
        yield Row(name=f"{case}: N@10 of the blend", value=round(means["with"], 4))
        gain = round(100 * (means["with"] / means["without"] - 1), 1)
        yield Row(name=f"{case}: blend's gain", value=gain, unit="%")


def intervals_of(pieces: list[dict[str, Any]]) -> str:
    """Say where each slice's gain may lie: resampled users, each the mean of its seeds."""
    said = []
    for parts in zip(*map(slices_of, pieces), strict=True):
        apart = torch.stack([values["with"] - values["without"] for _, values in parts]).mean(0)
        base = statistics.mean(float(values["without"].nanmean()) for _, values in parts)
        tower = statistics.mean(float(values["two-tower"].nanmean()) for _, values in parts)
        found = bootstrap_intervals({"gain": apart.numpy()})["gain"]
        said.append(
            f"{parts[0][0]} {found.low / base:+.1%} to {found.high / base:+.1%} of {base:.4f} "
            f"({found.num_users} users, two-tower {tower:.4f})"
        )
    return "; ".join(said)


def write_page(folder: Path) -> None:
    """Write the page of all pieces."""
    pieces = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    rows, notes = [], []
    for data in sorted({one["set"] for one in pieces}):
        some = [one for one in pieces if one["set"] == data]
        rows += rows_of(some)
        note = f"{data}: {some[0]['device']}, seeds {[one['seed'] for one in some]}. "
        if "slices" in some[0]:
            note += f"Gain of the blend, 95%: {intervals_of(some)}. "
        if "value" in some[0]:
            steps = {
                name: [one["value"][name]["steps"] for one in some] for name in some[0]["value"]
            }
            note += f"Steps kept: {'; '.join(f'{name} {kept}' for name, kept in steps.items())}."
        notes.append(note.strip())
    notes.append(
        f"New items have up to {FEW_EVENTS} training events; histories of {SESSION} events are the "
        "latest of each user, whom nothing else is known of. Values are planted, log-normal."
    )
    devices = "; ".join(sorted({one["device"] for one in pieces}))
    write_results("generation", rows, notes="\n\n".join(notes), device=devices)


def measure(options: Any) -> None:
    """Measure and write a piece for each seed."""
    for experiment in experiments(options):
        name_of_set, seed = experiment.prepared.name, experiment.seed
        ground = Ground(experiment, list(MODELS))
        trained = Trained(ground, taught=options.taught, epochs=options.epochs)
        path = options.out / f"{name_of_set}-{seed}.json"
        document = json.loads(path.read_text()) if path.exists() else {}
        document |= {"set": name_of_set, "seed": seed, "device": computing(experiment.device)}
        for name in options.parts:
            document[name] = PARTS[name](trained)
            options.out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document) + "\n")


PARTS = {"spread": spread, "slices": weak_slices, "value": valued}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("arrays", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--taught", action="store_true", help="by the sequence model")
    parser.add_argument("--epochs", type=float, help="of the training; the recipe's without")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--write", action="store_true", help="write the page of the pieces")
    options = parser.parse_args()
    if options.write:
        write_page(options.out)
    else:
        measure(options)


if __name__ == "__main__":
    main()
