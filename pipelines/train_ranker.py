"""Stage train_ranker: learn in which order the first places of the blend are served.

It learns from each user's latest train events, asked of sources that were fitted on what came
before them. So validation, which nothing of it has seen, says whether its order or the blend's is
better: the blend's is served where that is ahead by more than noise, and ranker.json says so. It is
off unless ``ranker_training.enabled``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipelines.artifacts import to_json
from pipelines.blends import FAST, load_blends, profiles_of, served_blends
from pipelines.config import RunConfig
from pipelines.earlier_sources import Earlier, earlier_of, earlier_sources
from pipelines.fit_blend import (
    NOISE,
    Examples,
    collect_examples,
    examples_of,
    learned_blend,
    measured,
    standard_error,
)
from pipelines.fit_ranker import fit_ranker, make_ranker, values_of
from pipelines.fitted_sources import load_sources
from pipelines.model_inputs import HeldOut, ModelInputs, tie_orders
from pipelines.ranker_measures import measures_of
from pipelines.rankers import CALIBRATION, CANDIDATES, FILE, MEASURED, RANKED, RANKER
from pipelines.ranking_data import (
    Asked,
    Tasks,
    examples_for,
    linear_items,
    values_of_targets,
)
from pipelines.sources import Source
from pipelines.stage import StageContext, StageRows
from pipelines.training import Curve, ProgressBar, TrainingRun
from recsys.data.dataset import Rows
from recsys.retrieval.history_numbers import HistoryNumbers
from recsys.retrieval.learned_blend import LearnedBlend
from recsys.training.ranking_examples import RankingExamples, tasks_of
from serving.surfaces import HOME


class Setting(NamedTuple):
    """What a tie order's ranker is trained and judged with."""

    inputs: ModelInputs
    config: RunConfig
    blend: LearnedBlend
    tasks: Tasks

    def against_history(self, ends: Rows) -> HistoryNumbers:
        """Number candidates by each user's events before an end, [U]."""
        linear = linear_items(self.inputs, ends, self.config.ranker_training.linear)
        return HistoryNumbers(self.inputs.catalogue, linear)

    def examples(self, asked: Asked, numbers: HistoryNumbers, values: Tensor) -> RankingExamples:
        """Give queries the candidates that they would be served."""
        return examples_for(asked, self.blend, numbers, values, self.tasks, self.config)


def asked_of(inputs: ModelInputs, held_out: HeldOut, lists: Examples) -> Asked:
    """Put queries beside what sources say of them."""
    queries = inputs.queries(held_out.positions, max_history=HOME.max_history)
    return Asked(held_out, lists, queries)


def judged(values: Tensor, before: Tensor, metric: str) -> dict[str, Any]:
    """Compare the ranker's order with the blend's on validation users.

    Args:
        values: Of the ranker's order, [U]; NaN without a target.
        before: Of the blend's, each half by weights that were learned on the other.
        metric: What both are.
    """
    differences = before - values
    differences = differences[~differences.isnan()]
    difference, error = float(differences.mean()), standard_error(differences)
    wins = difference > NOISE * error
    return {
        "served": not wins,
        "reason": (
            f"against the blend's order the ranker has {-difference:+.4f} {metric} "
            f"(standard error {error:.4f})"
        ),
        "metric": metric,
        "ahead": -difference,
        "standard_error": error,
        "validation": {"blend": float(before.nanmean()), RANKED: float(values.nanmean())},
    }


def earlier_examples(
    context: StageContext, earlier: Earlier, order: str, names: tuple[str, ...], inputs: ModelInputs
) -> Examples:
    """Ask the earlier sources for the events that they have not seen."""
    sources: dict[str, Source] = earlier_sources(context, earlier, order, names)
    before = earlier.inputs.sequences
    counts = before.item_counts(before.train_end, inputs.sizes.num_item_rows)
    return examples_of(sources, inputs, earlier.held_out, counts, context.config)


def too_few(found: int, config: RunConfig) -> str | None:
    """Say why there is nothing to learn from; None where there is."""
    least = config.ranker_training.min_found
    if found >= least:
        return None
    return (
        f"{found} of the latest train events have their item in any list, fewer than "
        f"ranker_training.min_found = {least}"
    )


def train_order(context: StageContext, order: str) -> tuple[int, int]:
    """Train the ranker of a tie order, judge and write it; return events and validation users."""
    config, features = context.config, context.inputs["build_features"]
    training, output = config.ranker_training, context.output / order
    inputs = ModelInputs.load(features, context.inputs.get("embed_items"), order)
    output.mkdir()
    told: dict[str, Any] = {"num_candidates": training.num_candidates}

    def without(reason: str) -> tuple[int, int]:
        (output / FILE).write_text(to_json({**told, "served": False, "reason": reason}))
        return 0, 0

    blends = context.inputs["fit_blend"] / order
    if FAST not in served_blends(blends):
        return without("profile fast has no learned blend whose candidates could be ranked")
    fitted = load_sources(context, inputs, order)
    names = profiles_of(fitted)[FAST]
    earlier = earlier_of(inputs, training, config.seed)
    if (reason := too_few(len(earlier.held_out.positions), config)) is not None:
        return without(reason)
    lists = earlier_examples(context, earlier, order, names, inputs)
    if (reason := too_few(lists.num_found(), config)) is not None:
        return without(reason)

    values = values_of_targets(features, inputs, earlier.held_out)
    tasks = Tasks(*tasks_of(values, training.like_from))
    told |= {"tasks": list(tasks.names), "tasks_because": tasks.why}
    setting = Setting(inputs, config, learned_blend(lists, config), tasks)
    asked = asked_of(inputs, earlier.held_out, lists)
    examples = setting.examples(asked, setting.against_history(earlier.ends), values)
    model = make_ranker(inputs, lists.item_counts, config, tasks.names, setting.blend.sources)
    curve = Curve(context.run, order, context.checkpoints / f"{order}.jsonl")
    with ProgressBar(f"ranker ({order})", visible=context.show_progress) as progress:
        run = TrainingRun(context.checkpoints / order / "ranker", progress, curve)
        try:
            model = fit_ranker(model, examples, asked.held_out.targets, config, run)
        except ValueError as error:
            return without(str(error))

    held_out = HeldOut.of(inputs.sequences, "validation")
    held_out = held_out.sample(config.blend.max_queries, config.seed)
    found = collect_examples({name: fitted[name] for name in names}, inputs, config)
    numbers = setting.against_history(inputs.sequences.train_end)
    values = values_of_targets(features, inputs, held_out)
    examples = setting.examples(asked_of(inputs, held_out, found), numbers, values)
    metric, everyone = config.evaluation.primary_metric, torch.arange(len(found.folds))
    before = measured(load_blends(blends)[FAST], found, metric, by_half=True)
    ranked = values_of(model, examples, held_out.targets, everyone, metric)

    model.save(output / RANKER)
    setting.blend.save(output / RANKER)
    setting.against_history(inputs.sequences.offsets[1:]).linear.save(output / RANKER)
    numbers.linear.save(output / MEASURED)
    measures = measures_of(model, examples, inputs, features)
    (output / RANKER / CALIBRATION).write_text(to_json(measures))
    (output / RANKER / CANDIDATES).write_text(to_json({"num_candidates": training.num_candidates}))
    (output / FILE).write_text(to_json({**told, **judged(ranked, before, metric)}))
    curve.write(output / "curve.jsonl")
    return len(asked.held_out.positions), len(everyone)


def train_ranker(context: StageContext) -> StageRows:
    """Train once for each order of tied times, or write nothing where it is off."""
    if not context.config.ranker_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    counted = [
        train_order(context, order) for order in tie_orders(context.inputs["build_features"])
    ]
    return StageRows(rows_in=counted[0][0], rows_out=counted[0][1])
