"""Stage train_ranker: learn on validation in which order the first places of the blend are served.

As in fit_blend each half of the users is judged by a ranker, and a blend, that it had no part in;
the served ranker learns from everyone. Where the blend's own order is better by more than noise
that is served, and ranker.json says so. It is off unless ``ranker_training.enabled``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.artifacts import to_json
from pipelines.blends import FAST, NUM_FOLDS, ProfileBlend, load_blends, profiles_of, served_blends
from pipelines.config import RunConfig
from pipelines.fit_blend import NOISE, collect_examples, standard_error
from pipelines.fit_ranker import (
    Setting,
    Tasks,
    fit_ranker,
    logits_of,
    scores_of,
    validation_users,
)
from pipelines.fitted_sources import load_sources
from pipelines.model_inputs import ModelInputs, tie_orders
from pipelines.rankers import CALIBRATION, CANDIDATES, FILE, RANKED, RANKER, reordered
from pipelines.ranking_data import RankingExamples, tasks_of, values_of_targets
from pipelines.stage import StageContext, StageRows
from pipelines.training import Curve, ProgressBar, TrainingRun
from recsys.data.top_k import TopK
from recsys.evaluation.calibration import expected_calibration_error, reliability_curve
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.models.ranker import Ranker


class Fold:
    """A ranker with the users it had no part in, or nobody."""

    def __init__(self, ranker: Ranker, examples: RankingExamples, unknown: Tensor) -> None:
        self.ranker, self.examples, self.unknown = ranker, examples, unknown
        there = examples.candidates.top.item_rows[unknown] > 0
        self.logits = logits_of(ranker, examples, unknown)
        self.labels = examples.labels[unknown][there]


def trained(
    setting: Setting, blend: ProfileBlend, tasks: Tasks, context: StageContext, order: str
) -> tuple[Ranker, list[Fold], Curve]:
    """Train a ranker without each half, and one on everyone; calibrate each by what it is not of.

    Raises:
        ValueError: If a ranker has learned nothing that could be calibrated.
    """
    curve = Curve(context.run, order, context.checkpoints / f"{order}.jsonl")

    def one(fold: int | None) -> tuple[Ranker, RankingExamples]:
        examples = setting.examples(blend, fold, tasks)
        users = examples.found()
        if fold is not None:
            users = users[setting.found.folds[users] != fold]
        name = "everyone" if fold is None else f"without half {fold}"
        with ProgressBar(f"ranker ({order}, {name})", visible=context.show_progress) as progress:
            kept = context.checkpoints / order / ("served" if fold is None else f"fold_{fold}")
            own = curve if fold is None else Curve(context.run, f"{order}/fold_{fold}")
            run = TrainingRun(kept, progress, own)
            return fit_ranker(setting, examples, users, tasks, run), examples

    folds = []
    for fold in range(NUM_FOLDS):
        unknown = (setting.found.folds == fold).nonzero()[:, 0]
        folds.append(Fold(*one(fold), unknown))
    served, _ = one(None)
    served.fit_calibration(
        torch.cat([fold.logits for fold in folds]),
        torch.cat([fold.labels for fold in folds]),
        "platt",
    )
    for half, other in zip(folds, reversed(folds), strict=True):
        # By the users of the other half, so that none is measured by what it taught.
        half.ranker.fit_calibration(other.logits, other.labels, "platt")
    return served, folds, curve


def judged(folds: Sequence[Fold], setting: Setting) -> dict[str, Any]:
    """Compare the rankers' order with the blend's on users that neither learned from."""
    metric = setting.config.evaluation.primary_metric
    ahead: list[Tensor] = []
    values: dict[str, list[Tensor]] = {"blend": [], RANKED: []}
    for fold in folds:
        users = fold.unknown
        scores = scores_of(fold.ranker, fold.examples, users)
        top = fold.examples.candidates.top
        before = TopK(top.scores[users], top.item_rows[users])
        targets = setting.targets.take(users)
        ways = {"blend": before, RANKED: reordered(before, scores)}
        found = {
            name: per_user_metric(list_ranks(way.item_rows, targets), metric)
            for name, way in ways.items()
        }
        ahead.append(found["blend"] - found[RANKED])
        for name, value in found.items():
            values[name].append(value)
    differences = torch.cat(ahead)
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
        "validation": {name: float(torch.cat(value).nanmean()) for name, value in values.items()},
    }


def calibration_of(folds: Sequence[Fold], tasks: Sequence[str]) -> dict[str, Any]:
    """Tell how far probabilities are off for users that calibration did not see, by task."""
    found = {}
    labels = torch.cat([fold.labels for fold in folds])
    chances = torch.cat([fold.ranker.calibrated(fold.logits) for fold in folds])
    for place, name in enumerate(tasks):
        known = ~labels[:, place].isnan()
        own, truth = chances[known, place], labels[known, place]
        curve = reliability_curve(own, truth, equal_counts=True)
        found[name] = {
            "predicted": float(own.double().mean()),
            "observed": float(truth.double().mean()),
            "calibration_error": expected_calibration_error(curve),
            "num_labels": int(known.sum()),
        }
    return {"method": "platt", "tasks": found}


def reason_not_to(setting: Setting, blend_folder: Path, config: RunConfig) -> str | None:
    """Say why there is nothing to train; None where there is something."""
    if FAST not in served_blends(blend_folder):
        return "profile fast has no learned blend whose candidates could be ranked"
    halves = [setting.found.folds != fold for fold in range(NUM_FOLDS)]
    everyone = torch.arange(len(setting.found.folds))
    sources = tuple(setting.found.lists)
    least = min(setting.found.of(everyone[half], sources).num_found() for half in halves)
    if least < config.ranker_training.min_found:
        return (
            f"{least} validation users of a half have their item in any list, fewer than "
            f"ranker_training.min_found = {config.ranker_training.min_found}"
        )
    return None


def train_order(context: StageContext, order: str) -> tuple[int, int]:
    """Train the rankers of a tie order and write them; return users and candidates."""
    config, features = context.config, context.inputs["build_features"]
    inputs = ModelInputs.load(features, context.inputs.get("embed_items"), order)
    blend_folder, output = context.inputs["fit_blend"] / order, context.output / order
    most = min(config.blend.max_queries, config.ranker_training.max_queries)
    config = replace(config, blend=replace(config.blend, max_queries=most))
    sources = load_sources(context, inputs, order)
    fast = profiles_of(sources)[FAST]
    asked = {name: sources[name] for name in fast}
    setting = Setting(inputs, collect_examples(asked, inputs, config), config)
    output.mkdir()
    told: dict[str, Any] = {"num_candidates": config.ranker_training.num_candidates}
    if (reason := reason_not_to(setting, blend_folder, config)) is not None:
        (output / FILE).write_text(to_json({**told, "served": False, "reason": reason}))
        return len(setting.found.folds), 0
    values = values_of_targets(features, inputs, validation_users(inputs, config))
    tasks = Tasks(*tasks_of(values, config.ranker_training), values)
    told |= {"tasks": list(tasks.names), "tasks_because": tasks.why}
    blend = load_blends(blend_folder)[FAST]
    try:
        ranker, folds, curve = trained(setting, blend, tasks, context, order)
    except ValueError as error:
        (output / FILE).write_text(to_json({**told, "served": False, "reason": str(error)}))
        return len(setting.found.folds), 0
    ranker.save(output / RANKER)
    (output / RANKER / CALIBRATION).write_text(to_json(calibration_of(folds, tasks.names)))
    (output / RANKER / CANDIDATES).write_text(
        to_json({"num_candidates": config.ranker_training.num_candidates})
    )
    for number, fold in enumerate(folds):
        fold.ranker.save(output / "folds" / str(number))
    (output / FILE).write_text(to_json({**told, **judged(folds, setting)}))
    curve.write(output / "curve.jsonl")
    return len(setting.found.folds), len(torch.cat([fold.labels for fold in folds]))


def train_ranker(context: StageContext) -> StageRows:
    """Train once for each order of tied times, or write nothing where it is off."""
    if not context.config.ranker_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    counted = [
        train_order(context, order) for order in tie_orders(context.inputs["build_features"])
    ]
    return StageRows(rows_in=counted[0][0], rows_out=counted[0][1])
