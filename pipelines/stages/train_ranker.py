"""Stage train_ranker: learn in which order the first places of the blend are served.

It learns from each user's latest train events, asked of sources that were fitted on what came
before them. So validation, which nothing of it has seen, says whether its order or the blend's is
better: the blend's is served where that is ahead by more than noise, and ranker.json says so. Where
the events say what was shown (``filters.shown_types``) it also learns what was seen and left, and
how often each place of a list is looked at. It is off unless ``ranker_training.enabled``.

Axes: U users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from torch import Tensor

from pipelines.candidates.blends import FAST, load_blends, profiles_of, served_blends
from pipelines.candidates.examples import (
    NOISE,
    Examples,
    collect_examples,
    examples_of,
    learned_blend,
    measured,
    standard_error,
)
from pipelines.candidates.load import load_sources
from pipelines.candidates.sources import behaviour_vectors
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import HeldOut, read_inputs, tie_orders
from pipelines.ranking.artefact import (
    CALIBRATION,
    CANDIDATES,
    FILE,
    MEASURED,
    RANKED,
    RANKER,
    TRUNKS,
)
from pipelines.ranking.compare import Bench, Task, row_of
from pipelines.ranking.earlier_sources import Earlier, earlier_of, earlier_sources
from pipelines.ranking.examples import (
    Asked,
    Tasks,
    candidates_for,
    fit_ease,
    outcomes_of,
)
from pipelines.ranking.fit import can_be_calibrated
from pipelines.ranking.shown_lists import shown_before
from pipelines.training.run import Curve, ProgressBar, TrainingRun
from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Rows
from recsys.fitting.inputs import ModelInputs
from recsys.models.ranker.model import Ranker
from recsys.retrieval.blend.history_features import HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.training.loop import TrainResult
from recsys.training.ranking_examples import Candidates, RankingExamples, labels_of, tasks_of
from recsys.training.shown_lists import ShownLists
from serving.surfaces import HOME

Ask = Callable[[HeldOut], Examples]


class Setting(NamedTuple):
    """What gives events their candidates."""

    inputs: ModelInputs
    config: RunConfig
    blend: LearnedBlend
    tasks: Tasks

    def against_history(self, ends: Rows, vectors: Tensor | None) -> HistoryFeatures:
        """Number candidates by each user's events before an end, [U], and by item vectors."""
        linear = fit_ease(self.inputs, ends, self.config.ranker_training.linear)
        return HistoryFeatures(self.inputs.catalogue, linear, vectors)

    def candidates(
        self, held_out: HeldOut, lists: Examples, numbers: HistoryFeatures
    ) -> tuple[JaggedBatch, Candidates]:
        """Give events the candidates that they would be served."""
        queries = self.inputs.queries(held_out.positions, max_history=HOME.max_history)
        asked = Asked(held_out, lists, queries)
        most = self.config.ranker_training.num_candidates
        return queries, candidates_for(asked, self.blend, numbers, most)

    def examples(
        self, held_out: HeldOut, lists: Examples, numbers: HistoryFeatures
    ) -> RankingExamples:
        """Give events their candidates, and say what came of them."""
        queries, candidates = self.candidates(held_out, lists, numbers)
        rows, tasks = candidates.top.item_rows, self.tasks
        like_from = self.config.ranker_training.like_from
        labels = labels_of(rows, held_out.targets, tasks.outcomes, tasks.names, like_from)
        return RankingExamples(queries, candidates, labels)


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


def earlier_asker(
    context: StageContext, inputs: ModelInputs, earlier: Earlier, order: str, names: tuple[str, ...]
) -> tuple[Ask, Tensor | None]:
    """Fit the earlier sources, to be asked for events that they have not seen.

    Returns:
        What asks them, and items as their sequence model knows them, [N, F].
    """
    sources = earlier_sources(context, earlier, order, names)
    before = earlier.inputs.sequences
    counts = before.item_counts(before.train_end, inputs.sizes.num_item_rows)

    def ask(held_out: HeldOut) -> Examples:
        return examples_of(sources, inputs, held_out, counts, context.config)

    return ask, behaviour_vectors(sources)


class Evidence(NamedTuple):
    """What is known before a ranker is made."""

    earlier: Earlier
    ask: Ask
    lists: Examples
    """What sources that have not seen them say of the earlier events."""
    of_validation: Examples
    """What sources say of validation."""
    vectors_before: Tensor | None
    """Items as the earlier sequence model knows them, [N, F]."""
    vectors: Tensor | None
    """Items as the one that is fitted on train does."""


def with_tasks_that_can_be_calibrated(
    setting: Setting, learned: RankingExamples
) -> tuple[Setting, RankingExamples]:
    """Leave out tasks of one class only among those that calibrate; the first one stays."""
    names, why, outcomes = setting.tasks
    can = can_be_calibrated(learned, setting.config)
    kept = [place for place, fine in enumerate(can) if fine or place == 0]
    for place, name in enumerate(names):
        if place not in kept:
            why += f"; {name} has one class only among the users that calibrate, so it is left out"
    tasks = Tasks(tuple(names[place] for place in kept), why, outcomes)
    return setting._replace(tasks=tasks), learned._replace(labels=learned.labels[:, :, kept])


def bench_of(
    context: StageContext, inputs: ModelInputs, evidence: Evidence
) -> tuple[Bench, Setting]:
    """Gather what rankers learn from, the earlier events and lists, and what judges: validation."""
    config, features = context.config, context.inputs["build_features"]
    training, (earlier, ask, lists, found, *_) = config.ranker_training, evidence
    held_out = HeldOut.of(inputs.sequences, "validation")
    held_out = held_out.sample(config.blend.max_queries, config.seed)
    known = [outcomes_of(features, inputs, one) for one in (earlier.held_out, held_out)]
    names, why = tasks_of(known[0], training.like_from)
    blend = learned_blend(lists, config)
    setting = Setting(inputs, config, blend, Tasks(names, why, known[0]))
    numbers = setting.against_history(earlier.ends, evidence.vectors_before)
    learned = setting.examples(earlier.held_out, lists, numbers)
    setting, learned = with_tasks_that_can_be_calibrated(setting, learned)
    names, why = setting.tasks.names, setting.tasks.why
    shown = shown_before(
        features, inputs, earlier.ends, names, training.like_from, training.max_queries, config.seed
    )
    seen = None
    if shown is not None:
        asked = setting.candidates(shown.held_out, ask(shown.held_out), numbers)
        seen = ShownLists.of(*asked, shown.shown)
    of_validation = setting._replace(tasks=Tasks(names, why, known[1]))
    numbers = setting.against_history(inputs.sequences.train_end, evidence.vectors)
    judging = of_validation.examples(held_out, found, numbers)
    bench = Bench(
        inputs=inputs,
        config=config,
        sources=blend.sources,
        item_counts=lists.item_counts,
        features=features,
        learned=Task(learned, earlier.held_out.targets),
        judged=Task(judging, held_out.targets),
        shown=seen,
        num_slots=0 if shown is None else shown.num_slots,
    )
    return bench, setting


def trained(
    context: StageContext, order: str, bench: Bench, tasks: Tasks, curve: Curve
) -> tuple[Ranker, TrainResult]:
    """Train a ranker with the bench's trunk; it goes on after a kill.

    Raises:
        ValueError: If it has learned nothing that could be calibrated.
    """
    trunk = bench.config.ranker.trunk
    with ProgressBar(f"ranker ({order}, {trunk})", visible=context.show_progress) as progress:
        run = TrainingRun(context.checkpoints / order / trunk, progress, curve)
        return bench.fit(bench.ranker(tasks.names), run)


def compared(
    context: StageContext, order: str, bench: Bench, model: Ranker, tasks: Tasks
) -> list[dict[str, Any]]:
    """Describe the ranker, and others of equal compute that the configuration names."""
    values = bench.values(model)
    rows = [row_of(bench, model, values, values)]
    for trunk in bench.config.ranker_training.compared:
        if trunk != model.config.trunk:
            other = bench.with_trunk(model, trunk)
            rival, _ = trained(context, order, other, tasks, Curve(context.run, f"{order}/{trunk}"))
            rows.append(row_of(other, rival, other.values(rival), values))
    return rows


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
    config, output = context.config, context.output / order
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"), order)
    output.mkdir()
    told: dict[str, Any] = {"num_candidates": config.ranker_training.num_candidates}

    def without(reason: str) -> tuple[int, int]:
        log.print(f"the blend's order is served: {reason}", style="dim", soft_wrap=True)
        (output / FILE).write_text(to_json({**told, "served": False, "reason": reason}))
        return 0, 0

    blends = context.inputs["fit_blend"] / order
    if FAST not in served_blends(blends):
        return without("profile fast has no learned blend whose candidates could be ranked")
    fitted = load_sources(context, inputs, order)
    names = profiles_of(fitted)[FAST]
    earlier = earlier_of(inputs, config.ranker_training, config.seed)
    if (reason := too_few(len(earlier.held_out.positions), config)) is not None:
        return without(reason)
    ask, vectors_before = earlier_asker(context, inputs, earlier, order, names)
    lists = ask(earlier.held_out)
    if (reason := too_few(lists.num_found(), config)) is not None:
        return without(reason)

    found = collect_examples({name: fitted[name] for name in names}, inputs, config)
    vectors = behaviour_vectors({name: fitted[name] for name in names})
    evidence = Evidence(earlier, ask, lists, found, vectors_before, vectors)
    bench, setting = bench_of(context, inputs, evidence)
    told |= {"tasks": list(setting.tasks.names), "tasks_because": setting.tasks.why}
    told["shown_lists"] = 0 if bench.shown is None else len(bench.shown.usable())
    curve = Curve(context.run, order, context.checkpoints / f"{order}.jsonl")
    try:
        model, result = trained(context, order, bench, setting.tasks, curve)
    except ValueError as error:
        return without(str(error))
    metric = config.evaluation.primary_metric
    before = measured(load_blends(blends)[FAST], found, metric, by_half=True)
    verdict = judged(bench.values(model), before, metric)
    rows = compared(context, order, bench, model, setting.tasks)
    write(context, order, model, setting, vectors, rows)
    curve.write(output / "curve.jsonl")
    (output / "training.json").write_text(to_json(asdict(result)))
    (output / FILE).write_text(to_json({**told, **verdict}))
    served = "the ranker's order" if verdict["served"] else "the blend's order"
    log.print(f"{served} is served: {verdict['reason']}", style="dim", soft_wrap=True)
    return len(earlier.held_out.positions), len(found.folds)


def write(
    context: StageContext,
    order: str,
    model: Ranker,
    setting: Setting,
    vectors: Tensor | None,
    rows: list[dict[str, Any]],
) -> None:
    """Write what is served, what it is measured with, and what became of each trunk."""
    output, sequences = context.output / order, setting.inputs.sequences
    model.save(output / RANKER)
    setting.blend.save(output / RANKER)
    setting.against_history(sequences.offsets[1:], vectors).save(output / RANKER)
    setting.against_history(sequences.train_end, vectors).save(output / MEASURED)
    (output / RANKER / CALIBRATION).write_text(to_json(rows[0]))
    (output / RANKER / CANDIDATES).write_text(
        to_json({"num_candidates": setting.config.ranker_training.num_candidates})
    )
    (output / TRUNKS).write_text(to_json({"trunks": rows}))


def train_ranker(context: StageContext) -> StageRows:
    """Train once for each order of tied times, or write nothing where it is off."""
    if not context.config.ranker_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    counted = [
        train_order(context, order) for order in tie_orders(context.inputs["build_features"])
    ]
    return StageRows(rows_in=counted[0][0], rows_out=counted[0][1])
