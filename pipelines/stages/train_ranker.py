"""Stage train_ranker: train a ranker of the blend's candidates, and decide whether it is served.

It is trained on each user's latest train events, with candidates of retrievers refitted without
them. Validation, which it has not seen, decides: the ranker is served if its order is better than
the blend's by more than noise, as ranker.json says. Off unless ``ranker_training.enabled``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from pipelines.candidates.blends import FAST, list_profiles, load_blends, save_values, served_blends
from pipelines.candidates.load import load_sources
from pipelines.engine.artifacts import to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs
from pipelines.ranking.artefact import CALIBRATION, FILE, MEASURED, RANKER
from pipelines.ranking.data import RankingData, TooLittleDataError, ranking_data
from pipelines.ranking.fit import decision, fit_ranker, make_ranker, measure_ranker, metric_by_query
from pipelines.training.train import Curve, training_run
from recsys.fitting.queries import GIVEN, ModelInputs
from recsys.models.ranker.model import Ranker
from recsys.training.loop import TrainResult


def trained(
    context: StageContext, inputs: ModelInputs, data: RankingData
) -> tuple[Ranker, TrainResult, Curve]:
    """Train the ranker; a killed training resumes."""
    config, sources = context.config, data.builder.blend.sources
    trunk = config.ranker.trunk
    model = make_ranker(inputs, data.item_counts, config, data.tasks, sources)
    with training_run(
        context,
        GIVEN,
        title=f"ranker ({trunk})",
        checkpoint_dir=context.checkpoints / GIVEN / trunk,
        curve_file=context.checkpoints / f"{GIVEN}.jsonl",
    ) as (run, curve):
        try:
            fitted, result = fit_ranker(model, data.train, config, run)
        except ValueError as error:
            raise TooLittleDataError(str(error)) from error
    return fitted, result, curve


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
        reads = blend.served.demand is not None
        data = ranking_data(context, inputs, sources, reads_demand=reads)
        report |= {"tasks": data.tasks, "tasks_reason": data.tasks_reason}
        model, result, curve = trained(context, inputs, data)
    except TooLittleDataError as error:
        return not_served(str(error))
    metric, everyone = config.evaluation.primary_metric, torch.arange(len(data.validation.labels))
    values = metric_by_query(model, data.validation, everyone, metric)
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
