"""What a generative model gains by rewards, and what the blend gains by it, on validation.

Arrays come from ``recsys reproduce CARD --prepare``. A piece is one seed of one data set; the page
is made of all pieces in a folder:

    python -m tests.benchmarks.training.benchmark_alignment ARRAYS --out PIECES --seeds 0 1 2
    python -m tests.benchmarks.training.benchmark_alignment --out PIECES --write

A phase starts from the same trained weights for every method, so its gain is that of the phase
alone. A blend's weights for a half of the users are learned on the other half. The test split is
not looked at.

Axes: U queries.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.data.windows import training_windows
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.fitting.alignment import AlignedEvents, align_generative
from recsys.fitting.blend import SourceLists, fit_blend
from recsys.fitting.generative import Guidance, SequenceTeacher, fit_generative
from recsys.fitting.queries import EvaluationQueries, rank_queries
from recsys.fitting.training import device_named
from recsys.models.generative.config import GenerativeConfig
from recsys.reproduction.experiment import FITTERS, Experiment, generated_ids
from recsys.reproduction.prepared import Prepared
from recsys.retrieval.sources import generated_source, source_name
from recsys.training.alignment import AlignmentConfig, RewardConfig
from recsys.training.code_distillation import TeachingConfig
from tests.benchmarks.harness import Row, command_line, device_name, write_results

METRICS = ("ndcg@10", "recall@10")
KINDS = ("untaught", "taught")
FEW_EVENTS = 5
"""Training events of a target up to which an item is called new."""
JUDGES = 2000
"""Validation users at least by whom weights are kept; of few, chance decides."""
FEWEST = 100
"""Queries of a slice below which it has no row."""
MODELS = ("popularity", "item_to_item", "ease", "content", "two_tower", "sequence")
GRPO = AlignmentConfig(method="grpo", learning_rate=1e-4)
METHODS = {
    "GRPO, hit": GRPO,
    "GRPO, hit, divided by std": replace(GRPO, divide_by_std=True),
    "GRPO, hit, 64 draws": replace(GRPO, group_size=64),
    "GRPO, hit and NDCG": replace(GRPO, rewards=RewardConfig(hit=1.0, ndcg=1.0)),
    "GRPO, hit and novelty": replace(GRPO, rewards=RewardConfig(hit=1.0, novelty=0.05)),
    "S-DPO": AlignmentConfig(method="dpo"),
}


class Ground:
    """A data set with what is in its blend, fitted once."""

    def __init__(self, experiment: Experiment, models: list[str]) -> None:
        self.experiment, self.fitted = experiment, {}
        self.queries = experiment.queries("validation")
        self.lists = {}
        for name in models:
            self.fitted[name] = FITTERS[name](experiment)
            ranked = rank_queries(self.fitted[name].source, self.queries, experiment.device)
            self.lists[source_name(name)] = ranked.lists
            say(f"{name} {self.measured(ranked.lists)['all']}")

    def slices(self) -> dict[str, Tensor]:
        """Name which queries each slice has, [U] bool."""
        targets, counts = self.queries.held_out.targets, self.experiment.item_counts()
        first = targets.values[targets.offsets[:-1].clamp(max=len(targets.values) - 1)]
        lengths = self.queries.history_lengths()
        return {
            "all": torch.ones(len(lengths), dtype=torch.bool),
            "new items": counts.cpu()[first] <= FEW_EVENTS,
            "shortest quarter": lengths <= lengths.float().quantile(0.25),
        }

    def measured(self, lists: Any) -> dict[str, dict[str, float]]:
        """Measure lists by slice."""
        targets = self.queries.targets()
        ranks = Jagged(list_ranks(lists.item_rows.cpu(), targets).values, targets.offsets)
        found = {metric: per_user_metric(ranks, metric) for metric in METRICS}
        return {
            name: {
                "queries": int(chosen.sum()),
                **{metric: float(values[chosen].nanmean()) for metric, values in found.items()},
            }
            for name, chosen in self.slices().items()
        }

    def blended(self, more: dict[str, Any]) -> dict[str, dict[str, float]]:
        """Merge the models' lists and others, and measure by slice."""
        return self.measured(blended_lists(self.experiment, self.queries, {**self.lists, **more}))


def blended_lists(
    experiment: Experiment, queries: EvaluationQueries, lists: dict[str, TopK]
) -> TopK:
    """Merge sources' lists; the weights for a half of the users are learned on the other half."""
    counts = experiment.item_counts().cpu()
    examples = SourceLists.of_queries(lists, queries, counts, experiment.seed)
    recipe = experiment.recipe
    drawn = queries.held_out.drawn(recipe.blend.max_queries, experiment.seed)
    weights = {name: recipe.fusion_weights.get(name, 1.0) for name in lists}
    chosen = examples.of(torch.from_numpy(drawn), tuple(lists))
    blend, _ = fit_blend(chosen, recipe.blend, weights, recipe.metric, experiment.device)
    return blend.merged(examples, 50, by_half=True, device=experiment.device)


def generative_settings(recipe: Any, *, taught: bool) -> tuple[GenerativeConfig, TeachingConfig]:
    """Take the recipe's model as it is taught; or one that reads no other model's vectors."""
    if taught:
        share = recipe.generative_teaching.share or 1.0
        # A window has an event more, and the teacher reads all of it.
        length = min(recipe.generative.max_length, recipe.sequence.max_length - 1)
        config = replace(recipe.generative, max_length=length)
        return config, replace(recipe.generative_teaching, share=share)
    config = recipe.generative
    if config.items == "codes_vectors":
        # As it was chosen on Beauty before there was a teacher.
        config = GenerativeConfig(max_length=config.max_length)
    return config, TeachingConfig()


def piece(
    ground: Ground, methods: list[str], *, taught: bool, epochs: float | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Train one generative model and run each second phase from its weights."""
    experiment, recipe = ground.experiment, ground.experiment.recipe
    sequence = ground.fitted["sequence"].model
    codes = generated_ids(experiment, sequence.all_item_vectors())
    config, teaching = generative_settings(recipe, taught=taught)
    training = recipe.generative_training
    if epochs is not None:
        training = replace(training, max_epochs=epochs)
    judges = max(JUDGES, training.validation_users)
    judge = experiment.queries("validation").sample(judges, experiment.seed)
    run, begin = experiment.run("none"), time.perf_counter()
    guidance = Guidance(SequenceTeacher(sequence, teaching) if taught else None)
    inputs = experiment.fitted_on
    trained = fit_generative(inputs, codes, config, training, run, judge, guidance=guidance)
    before = measured_source(ground, trained.model, codes, begin)
    say(f"before {before}")
    yield "before", before
    windows = training_windows(inputs.sequences, "train", config.max_length)
    events = AlignedEvents(inputs.sequences, windows, inputs.item_counts("train"))
    for name in methods:
        model, begin, method = copy.deepcopy(trained.model), time.perf_counter(), METHODS[name]
        source = generated_source(model, codes, recipe.retrieval.beam_width)
        result = align_generative(model, codes, events, method, run, judge, source, trained.result)
        found = measured_source(ground, model, codes, begin)
        say(f"{name} kept {result.aligned_steps} {found}")
        yield name, {**found, "steps kept": result.aligned_steps}


def measured_source(ground: Ground, model: Any, codes: Any, begin: float) -> dict[str, Any]:
    """Measure the model's lists alone and in the blend."""
    seconds = round(time.perf_counter() - begin, 1)
    source = generated_source(model.eval(), codes, ground.experiment.recipe.retrieval.beam_width)
    lists = rank_queries(source, ground.queries, ground.experiment.device).lists
    blend = ground.blended({"generative": lists})
    return {"seconds": seconds, "alone": ground.measured(lists), "blend": blend}


def computing(device: torch.device) -> str:
    """Name what the models are computed on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device_name()


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def experiments(options: Any) -> Iterator[Experiment]:
    """Set up the arrays' experiment with each seed."""
    prepared = Prepared.load(options.arrays)
    for seed in options.seeds:
        yield Experiment(
            prepared=prepared,
            inputs=prepared.inputs(next(iter(prepared.orders))),
            seed=seed,
            device=device_named(options.device),
        )


def measure(options: Any) -> None:
    """Measure and write a piece for each seed."""
    for experiment in experiments(options):
        name_of_set, seed = experiment.prepared.name, experiment.seed
        ground = Ground(experiment, options.models)
        found = {"blend": ground.blended({})}
        say(f"blend {found['blend']}")
        for name in options.kinds:
            found[name], taught = {}, name == "taught"
            for method, one in piece(ground, options.methods, taught=taught, epochs=options.epochs):
                found[name][method] = one
                document = {"set": name_of_set, "seed": seed, "note": options.note}
                document |= {"device": computing(experiment.device), **found}
                options.out.mkdir(parents=True, exist_ok=True)
                path = options.out / f"{name_of_set}-{seed}.json"
                path.write_text(json.dumps(document) + "\n")


def gains_of(pieces: list[dict[str, Any]], kind: str, method: str, part: str) -> list[float]:
    """Compare the blend with the model to the one without, for each seed."""
    return [
        one[kind][method]["blend"][part]["ndcg@10"] / one["blend"][part]["ndcg@10"] - 1
        for one in pieces
        if method in one.get(kind, {})
    ]


def rows_of(pieces: list[dict[str, Any]]) -> Iterator[Row]:
    """Average the seeds of one data set."""
    for kind in KINDS:
        for method in ("before", *METHODS):
            of_method = [one[kind][method] for one in pieces if method in one.get(kind, {})]
            if not of_method:
                continue
            case = f"{pieces[0]['set']}, {kind}, {method}"
            alone = statistics.mean(one["alone"]["all"]["ndcg@10"] for one in of_method)
            yield Row(name=f"{case}: N@10 alone", value=round(alone, 4))
            for part, base in pieces[0]["blend"].items():
                if base["queries"] < FEWEST:
                    continue
                gains = gains_of(pieces, kind, method, part)
                bar = {"all": 2.0, "new items": 20.0}.get(part)
                gain = round(100 * statistics.mean(gains), 2)
                yield Row(
                    name=f"{case}: blend's gain, {part}",
                    value=gain,
                    unit="%",
                    at_least=bar,
                )


def write_page(folder: Path, name: str) -> None:
    """Write the page of all pieces."""
    pieces = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    sets = sorted({one["set"] for one in pieces})
    rows, notes = [], []
    for data in sets:
        some = [one for one in pieces if one["set"] == data]
        rows += rows_of(some)
        base = ", ".join(f"{one['blend']['all']['ndcg@10']:.4f}" for one in some)
        new = some[0]["blend"]["new items"]
        kept = {
            f"{kind} {method}": [one[kind][method]["steps kept"] for one in some]
            for kind in KINDS
            for method in METHODS
            if all(method in one.get(kind, {}) for one in some)
        }
        steps = "; ".join(f"{method} {steps}" for method, steps in kept.items())
        single = "; ".join(
            f"{kind} {method} " + ", ".join(f"{gain:+.1%}" for gain in gains)
            for kind in KINDS
            for method in ("before", *METHODS)
            if (gains := gains_of(some, kind, method, "all"))
        )
        notes.append(
            f"{data}: {some[0]['device']}, seeds {[one['seed'] for one in some]}; the blend "
            f"without a generative model has N@10 {base}, of new items (up to {FEW_EVENTS} "
            f"training events, {new['queries']} queries) {new['ndcg@10']:.4f}. Steps of the "
            f"second phase that validation kept: {steps}. The blend's gain with single seeds: "
            f"{single}. {some[0]['note']}".rstrip()
        )
    devices = "; ".join(sorted({one["device"] for one in pieces}))
    write_results(name, rows, notes="\n\n".join(notes), device=devices)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("arrays", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--epochs", type=float, help="of the first phase; the recipe's without")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--note", default="", help="for the page, such as other settings")
    parser.add_argument("--page", default="alignment", help="name of the page")
    parser.add_argument("--write", action="store_true", help="write the page of the pieces")
    options = parser.parse_args()
    if options.write:
        write_page(options.out, options.page)
    else:
        measure(options)


if __name__ == "__main__":
    main()
