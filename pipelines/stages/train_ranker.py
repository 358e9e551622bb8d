"""Stage train_ranker: train a ranker of the blend's candidates, and decide whether it is served.

It is trained on each user's latest train events, with candidates of retrievers refitted without
them, and on impressions if events have them (``filters.shown_types``). Validation,
which it has not seen, decides: the ranker is served if its order is better than the blend's by more
than noise, as ranker.json says. Off unless ``ranker_training.enabled``.

Axes: U users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from pipelines.candidates.blends import FAST, list_profiles, load_blends, served_blends
from pipelines.candidates.load import load_sources
from pipelines.engine.artifacts import to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs, tie_orders
from pipelines.ranking.artefact import CALIBRATION, FILE, MEASURED, RANKED, RANKER, TRUNKS
from pipelines.ranking.data import RankingData, TooLittleDataError, ranking_data
from pipelines.ranking.examples import candidate_builder
from pipelines.ranking.fit import fit_ranker, make_ranker, metric_by_query
from pipelines.ranking.measures import measure_ranker, trunk_summary
from pipelines.training.train import Curve, training_run
from recsys.fitting.blend import NUM_STANDARD_ERRORS, paired_difference
from recsys.fitting.queries import ModelInputs
from recsys.models.ranker.model import Ranker
from recsys.retrieval.sources import Source, behaviour_vectors
from recsys.training.loop import TrainResult
from recsys.training.shown_lists import usable


def decision(values: Tensor, blend_values: Tensor, metric: str) -> dict[str, Any]:
    """Compare the ranker's order with the blend's on validation.

    Args:
        values: Metric of the ranker's order, [U]; NaN without a target.
    """
    ahead, error, num_users = paired_difference(values, blend_values)
    low, high = (ahead + sign * NUM_STANDARD_ERRORS * error for sign in (-1, 1))
    return {
        "served": low > 0,
        "reason": (
            f"on validation the ranker's order has {ahead:+.4f} {metric} against the blend's (95% "
            f"interval {low:+.4f} to {high:+.4f}, {num_users} users); it is served only if "
            "the whole interval is above 0"
        ),
        "metric": metric,
        "ahead": ahead,
        "standard_error": error,
        "validation": {
            "blend": float(blend_values.nanmean()),
            RANKED: float(values.nanmean()),
        },
    }


def trained(
    context: StageContext, order: str, inputs: ModelInputs, data: RankingData
) -> tuple[Ranker, TrainResult, Curve]:
    """Train the ranker; a killed training resumes."""
    config, sources = context.config, data.builder.blend.sources
    trunk = config.ranker.trunk
    model = make_ranker(inputs, data.item_counts, config, data.tasks, sources, data.num_slots)
    with training_run(
        context,
        order,
        title=f"ranker ({order}, {trunk})",
        checkpoint_dir=context.checkpoints / order / trunk,
        curve_file=context.checkpoints / f"{order}.jsonl",
    ) as (run, curve):
        try:
            fitted, result = fit_ranker(model, data.train, data.impressions, config, run)
        except ValueError as error:
            raise TooLittleDataError(str(error)) from error
    return fitted, result, curve


def write(
    context: StageContext,
    order: str,
    inputs: ModelInputs,
    data: RankingData,
    model: Ranker,
    sources: Mapping[str, Source],
) -> None:
    """Write what a bundle carries, and the features that evaluation measures it with."""
    folder = context.output / order
    model.save(folder / RANKER)
    everything, vectors = inputs.sequences.offsets[1:], behaviour_vectors(sources)
    settings, blend = context.config.ranker_training, data.builder.blend
    candidate_builder(blend, inputs, everything, vectors, settings).save(folder / RANKER)
    data.builder.history_features.save(folder / MEASURED)


def train_order(context: StageContext, order: str) -> tuple[int, int]:
    """Train and judge the ranker of a tie order; return the queries of train and validation."""
    config, output = context.config, context.output / order
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"), order)
    output.mkdir()
    report: dict[str, Any] = {"num_candidates": config.ranker_training.num_candidates}

    def not_served(reason: str) -> tuple[int, int]:
        log.print(f"the blend's order is served: {reason}", style="dim", soft_wrap=True)
        (output / FILE).write_text(to_json({**report, "served": False, "reason": reason}))
        return 0, 0

    blends = context.inputs["fit_blend"] / order
    if FAST not in served_blends(blends):
        return not_served("profile fast has no learned blend whose candidates could be ranked")
    sources = load_sources(context, inputs, order)
    sources = {name: sources[name] for name in list_profiles(sources)[FAST]}
    blend = load_blends(blends)[FAST]
    try:
        reads = blend.served.demand is not None
        data = ranking_data(context, inputs, order, sources, reads_demand=reads)
        lists = 0 if data.impressions is None else len(usable(data.impressions))
        report |= {"tasks": data.tasks, "tasks_reason": data.tasks_reason, "shown_lists": lists}
        model, result, curve = trained(context, order, inputs, data)
    except TooLittleDataError as error:
        return not_served(str(error))
    metric, everyone = config.evaluation.primary_metric, torch.arange(len(data.validation.labels))
    values = metric_by_query(model, data.validation, everyone, metric)
    measures = measure_ranker(model, data.validation, inputs, context.inputs["build_features"])
    summary = trunk_summary(model, values, measures)
    by_blend = blend.measured(data.validation_lists, metric, by_half=True)
    judged = decision(values, by_blend, metric)
    write(context, order, inputs, data, model, sources)
    curve.write(output / "curve.jsonl")
    for name, document in {
        f"{RANKER}/{CALIBRATION}": summary,
        TRUNKS: {"trunks": [summary]},
        "training.json": asdict(result),
        FILE: {**report, **judged},
    }.items():
        (output / name).write_text(to_json(document))
    served = "the ranker's order" if judged["served"] else "the blend's order"
    log.print(f"{served} is served: {judged['reason']}", style="dim", soft_wrap=True)
    return len(data.train.labels), len(data.validation.labels)


def train_ranker(context: StageContext) -> StageRows:
    """Train once for each order of tied times, or write nothing where it is off."""
    if not context.config.ranker_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    counts = [train_order(context, order) for order in tie_orders(context.inputs["build_features"])]
    return StageRows(rows_in=counts[0][0], rows_out=counts[0][1])
