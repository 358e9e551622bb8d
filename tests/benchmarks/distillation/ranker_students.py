"""Teacher and student rankers of a real data set, for ``benchmark_rankers.py``.

The teacher is several wide rankers of the sparse trunk, their logits averaged; students have the
dense trunk, a few thousand weights beside their tables. All rank what the blend lists and correct
its score, learn from the earlier events of nine users of ten, and have their pass picked on the
tenth (``ranker.seeds``).

Axes: U users, k candidates, T tasks.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.models.ranker.batch import RankingBatch
from recsys.models.ranker.config import RankerConfig
from recsys.models.ranker.model import Ranker
from recsys.training.distillation import DistillationConfig, taught_by_lists
from recsys.training.ranker_fit import ranker_loss
from tests.benchmarks.harness import alternating_ms
from tests.benchmarks.ranker.seeds import (
    BLEND,
    METRIC,
    Recipe,
    Seed,
    inputs_of,
    logits_together,
    ordered,
    per_user,
    scores_together,
)
from tests.benchmarks.ranker.sources import Data, lists_of

TEACHER = replace(Recipe().ranker, embedding_dim=48, key_dim=32, hidden_dim=64, head_dim=64)
STUDENT = replace(
    Recipe().ranker, trunk="dense", embedding_dim=8, key_dim=8, hidden_dim=16, head_dim=16
)
MEMBER_SEED = 100
Logits = Tensor
"""Logits of every query and candidate, [U, k, T]; nan at holes."""


def built(one: Seed, config: RankerConfig, seed: int) -> Ranker:
    """Build an untrained ranker of these settings."""
    other = copy.copy(one)
    other.recipe, other.seed = replace(one.recipe, ranker=config), seed
    trunk = None if config.trunk == "dense" else config.trunk
    model = other.ranker(trunk)
    assert model.config.hidden_dim == config.hidden_dim
    return model


def fitted(
    one: Seed, config: RankerConfig, seed: int, teacher: Logits | None, share: float
) -> Ranker:
    """Train on nine users of ten, on labels and a teacher's logits; the tenth picks the pass."""
    model, fit, examples = built(one, config, seed), one.recipe.fit, one.learned
    chosen, held = one.parts()
    aside = torch.zeros(len(examples.labels), dtype=torch.bool)
    aside[held] = True
    hard = ranker_loss(model, examples, chosen, fit, seed, one.device)
    soft = None
    if teacher is not None:
        some = examples.candidates.item_rows[:, 0] > 0
        everyone = (some & ~aside).nonzero()[:, 0]
        config_of = DistillationConfig(soft_share=share)
        soft = taught_by_lists(model, examples, everyone, teacher, config_of, fit.batch_size, seed)

    def loss_at(step: int) -> Tensor:
        of_labels = hard(step)
        return of_labels if soft is None else share * soft(step) + (1 - share) * of_labels

    one.fit(model, loss_at, len(chosen), held)
    return model.eval()


def measured(one: Seed, models: list[Ranker]) -> dict[str, Any]:
    """Measure models by the mean of their logits."""
    found: dict[str, Any] = {}
    for split, examples in one.judged.items():
        everyone = torch.arange(len(examples.labels))
        logits = mean_logits(models, examples, everyone)
        top = ordered(examples.candidates.item_rows, scores_together(models[0], logits))
        values = per_user(top, one.now[split].held_out.targets)
        found[f"{split} {METRIC}"] = found[METRIC] = float(values.mean())
    found["num_parameters"] = sum(
        weight.numel() for model in models for weight in model.parameters()
    )
    return found


def mean_logits(models: list[Ranker], examples: Any, chosen: Tensor) -> Logits:
    """Average the logits of models."""
    return torch.stack([logits_together(model, examples, chosen) for model in models]).mean(0)


def request_ms(data: Data, members: int) -> dict[str, float]:
    """Time one request's candidates by each, in turns, of untrained models; milliseconds."""
    torch.set_num_threads(1)
    prepared = data.prepared
    inputs = inputs_of(prepared, ("next", "like"), prepared.recipe.sources)
    count = Recipe().fit.num_candidates
    rows, numbers = torch.arange(count) + 1, torch.zeros(count, len(inputs.candidate_dense))
    whole = data.sequences.queries(
        data.sequences.label_positions("test")[:1],
        max_history=200,
        user_features=prepared.user_features,
    )
    batch = RankingBatch(whole, Jagged(rows, torch.tensor([0, count])), None, numbers)
    calls = {}
    for name, config, number in (("teacher", TEACHER, members), ("student", STUDENT, 1)):
        models = [Ranker(config, inputs, prepared.catalogue).eval() for _ in range(number)]
        calls[name] = lambda models=models: [
            model.score_candidates(model.reader_of(batch, 0), rows, numbers) for model in models
        ]
    with torch.inference_mode():
        return alternating_ms(calls, rounds=300, warmup=20, clock=time.process_time)


def run_real(
    data: Data, seed: int, splits: Sequence[str], members: int, shares: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """Train teacher and students over one seed's candidates; the blend is measured beside them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = lists_of(data, "before", seed, splits, device)
    now = lists_of(data, "now", seed, splits, device)
    one, rows = Seed(data, seed, before, now, Recipe(), device), {}
    rows["blend"] = {
        f"{split} {METRIC}": float(values.mean()) for split, values in one.blends()[BLEND].items()
    }
    rows["blend"][METRIC] = rows["blend"][f"{splits[-1]} {METRIC}"]

    def note(name: str, models: list[Ranker], begin: float) -> None:
        rows[name] = measured(one, models)
        rows[name]["seconds"] = round(time.perf_counter() - begin, 1)
        print(seed, name, rows[name], flush=True)

    begin, teachers = time.perf_counter(), []
    for number in range(members):
        member_seed = MEMBER_SEED + 10 * seed + number
        teachers.append(fitted(one, TEACHER, member_seed, None, 0.0))
    note("teacher", teachers, begin)
    note("one member of the teacher", teachers[:1], begin)
    of_teachers = mean_logits(teachers, one.learned, torch.arange(len(one.learned.labels)))
    begin = time.perf_counter()
    alone = fitted(one, STUDENT, seed, None, 0.0)
    note("student of labels alone", [alone], begin)
    for share in shares:
        begin = time.perf_counter()
        student = fitted(one, STUDENT, seed, of_teachers, share)
        note(f"student taught by the teacher ({share:g} soft)", [student], begin)
    by_itself = mean_logits([alone], one.learned, torch.arange(len(one.learned.labels)))
    begin = time.perf_counter()
    student = fitted(one, STUDENT, seed, by_itself, 0.3)
    note("student of its own first run (0.3 soft)", [student], begin)
    return rows
