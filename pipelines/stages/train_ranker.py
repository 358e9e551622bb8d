"""Stage train_ranker: train a ranker of the blend's candidates, and decide whether it is served.

It is trained on each user's latest train events, with candidates of retrievers refitted without
them; again with experts (``ranker.trunk = "auto"``), and again on items shown and not chosen if
lists were logged. Validation, which it has not seen, decides which of these is kept, and that the
ranker is served if its order is better than the blend's by more than noise, as ranker.json says.
Off unless ``ranker_training.enabled``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from pipelines.candidates.blends import FAST, list_profiles, load_blends, save_values, served_blends
from pipelines.candidates.load import load_sources
from pipelines.engine.artifacts import to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs
from pipelines.ranking.artefact import (
    CALIBRATION,
    EXPERTS,
    FILE,
    IMPRESSIONS,
    MEASURED,
    RANKER,
    Choice,
)
from pipelines.ranking.data import RankingData, TooLittleDataError, ranking_data
from pipelines.ranking.fit import decision, fit_ranker, make_ranker, measure_ranker, split_by_user
from pipelines.training.train import Curve, training_run
from recsys.fitting.queries import GIVEN, ModelInputs
from recsys.fitting.ranker import Shared, best_share
from recsys.models.ranker.config import RankerConfig
from recsys.training.loop import TrainResult
from recsys.training.ranking_examples import RankingExamples


class Attempt(NamedTuple):
    """One trained ranker, judged on validation."""

    best: Shared
    result: TrainResult
    curve: Curve


class Trainings:
    """The trainings of one stage: the first, and those of what may be better."""

    def __init__(self, context: StageContext, inputs: ModelInputs, data: RankingData) -> None:
        self.context, self.inputs, self.data = context, inputs, data
        self.choices: list[Choice] = []

    def best(self) -> Attempt:
        """Train, then change one thing at a time; keep what validation prefers by an error."""
        ranker, data = self.context.config.ranker, self.data
        if ranker.trunk == "auto":
            sparse, ranker = ranker.with_trunk("sparse"), ranker.with_trunk("dense")
            words = f"{sparse.num_experts} experts against a dense trunk of as many operations"
            best = self.trained(ranker, data.train)
            if better := self.better(best, EXPERTS, words, sparse, data.train):
                best, ranker = better, sparse
        else:
            best = self.trained(ranker, data.train)
        if data.shown is not None:
            words = f"{data.num_shown:,} lists whose other items were shown and not chosen"
            best = self.better(best, IMPRESSIONS, words, ranker, data.shown) or best
        return best

    def better(
        self, best: Attempt, name: str, words: str, ranker: RankerConfig, examples: RankingExamples
    ) -> Attempt | None:
        """Train another ranker, and note what it came to; None if it is not better."""
        try:
            other = self.trained(ranker, examples, name)
        except TooLittleDataError as reason:
            self.choices.append(Choice(name, f"{words}; {reason}", False, 0.0, 0.0))
            return None
        metric = self.context.config.evaluation.primary_metric
        found = decision(other.best.values, best.best.values, metric, standard_errors=1.0)
        won = found["served"]
        self.choices.append(Choice(name, words, won, found["ahead"], found["standard_error"]))
        return other if won else None

    def trained(self, ranker: RankerConfig, examples: RankingExamples, name: str = "") -> Attempt:
        """Train and judge one ranker; a killed training resumes."""
        context, data, config = self.context, self.data, self.context.config
        sources, own = data.builder.blend.sources, f"{GIVEN}_{name}" if name else GIVEN
        users, metric = config.ranker_training.validation_users, config.evaluation.primary_metric
        split = split_by_user(examples, users, config.seed)
        model = make_ranker(self.inputs, data.item_counts, config, ranker, data.tasks, sources)
        with training_run(
            context,
            own,
            title=f"ranker ({ranker.trunk}{f', {name}' if name else ''})",
            checkpoint_dir=context.checkpoints / own,
            curve_file=context.checkpoints / f"{own}.jsonl",
        ) as (run, curve):
            try:
                fitted, result = fit_ranker(model, examples, split, config, run)
                judged, folds = data.validation, data.validation_lists.folds
                best = best_share(fitted, judged, folds, examples, split.held_out, metric)
            except ValueError as error:
                raise TooLittleDataError(str(error)) from error
        return Attempt(best, result, curve)


def train_ranker(context: StageContext) -> StageRows:
    """Train and judge the ranker, or write nothing where it is off."""
    config, output = context.config, context.output / GIVEN
    if not config.ranker_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"))
    output.mkdir()
    report: dict[str, Any] = {"num_candidates": config.ranker_training.num_candidates}

    def not_served(reason: str) -> StageRows:
        log.print(f"the blend's order is served: {reason}", style="dim", soft_wrap=True)
        (output / FILE).write_text(to_json({**report, "served": False, "reason": reason}))
        return StageRows(rows_in=0, rows_out=0)

    blends = context.inputs["fit_blend"] / GIVEN
    if FAST not in served_blends(blends):
        return not_served("profile fast has no learned blend whose candidates could be ranked")
    sources = load_sources(context, inputs)
    sources = {name: sources[name] for name in list_profiles(sources)[FAST]}
    blend = load_blends(blends)[FAST]
    try:
        data = ranking_data(context, inputs, sources, blend)
        report |= {"tasks": data.tasks, "tasks_reason": data.tasks_reason}
        trainings = Trainings(context, inputs, data)
        (model, share, values), result, curve = trainings.best()
    except TooLittleDataError as error:
        return not_served(str(error))
    metric = config.evaluation.primary_metric
    report["share"] = share
    report["choices"] = [one._asdict() for one in trainings.choices]
    summary = measure_ranker(model, data.validation)
    by_blend = blend.measured(data.validation_lists, metric, by_half=True)
    judged = decision(values, by_blend, metric, config.ranker_training.standard_errors)
    save_values(output, RANKER, values)
    model.save(output / RANKER)
    data.served_builder(inputs, sources, config).save(output / RANKER)
    data.builder.history_features.save(output / MEASURED)
    curve.write(output / "curve.jsonl")
    for name, document in {
        f"{RANKER}/{CALIBRATION}": summary,
        "training.json": asdict(result),
        FILE: {**report, **judged},
    }.items():
        (output / name).write_text(to_json(document))
    served = "the ranker's order" if judged["served"] else "the blend's order"
    log.print(f"{served} is served: {judged['reason']}", style="dim", soft_wrap=True)
    return StageRows(rows_in=len(data.train.labels), rows_out=len(data.validation.labels))
