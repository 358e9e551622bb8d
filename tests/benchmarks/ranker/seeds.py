"""Candidates of one seed of ``benchmark_trunks``, and rankers of any trunk over them.

Axes: U users, k candidates, T tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged
from recsys.data.dataset import Rows
from recsys.data.top_k import TopK, reranked_places
from recsys.evaluation.calibration import area_under_curve
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.fitting.blend import SourceLists as QueriedLists
from recsys.fitting.blend import default_device, learned_blend, learned_profile
from recsys.layers.moe.routing import expert_use
from recsys.models.ease import MAX_ITEMS
from recsys.models.ranker.batch import Candidates
from recsys.models.ranker.config import (
    RankerConfig,
    RankerInputs,
    Trunk,
    at_equal_compute,
    flops_of,
)
from recsys.models.ranker.model import Ranker
from recsys.retrieval.blend.candidate_features import BASE, CandidateBuilder, feature_names
from recsys.retrieval.blend.history_features import HISTORY_FEATURES, HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.training.loop import train
from recsys.training.optim import ScheduleConfig, adamw
from recsys.training.progress import SilentProgress, SilentTracker
from recsys.training.ranker_config import RankerFitConfig
from recsys.training.ranker_fit import fit_line, ranker_loss
from recsys.training.ranking_examples import (
    Outcomes,
    RankingExamples,
    labels_of,
    tasks_of,
)
from tests.benchmarks.ranker.sources import Data, SourceLists, stage
from tests.benchmarks.recipes.prepared import Prepared

TRUNKS: tuple[Trunk, ...] = ("dense", "shared_bottom", "sparse")
BLEND, EARLIER_BLEND, CORRECTION = "blend, served", "blend of earlier events", "straight line"
METRIC = "ndcg@10"
KEPT = 100
"""Places of a merged list."""
MOST_EVENTS = 200
QUERIES = 512
"""Merged and scored at a time."""


SPARSE = RankerConfig(
    trunk="sparse",
    embedding_dim=16,
    key_dim=16,
    hidden_dim=16,
    num_experts=8,
    top_k=2,
    num_cross_layers=1,
    max_history=20,
    dropout=0.1,
    id_dropout=0.95,
)


FIT = RankerFitConfig(
    precision="float32",
    schedule=ScheduleConfig(learning_rate=5e-4, decay="linear", final_share=0.02),
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How rankers are made and taught."""

    ranker: RankerConfig = field(default_factory=lambda: SPARSE)
    """The sparse trunk, to which the others are made equal."""
    fit: RankerFitConfig = field(default_factory=lambda: FIT)
    linear_items: int = MAX_ITEMS


def outcomes_of(data: Data, of: SourceLists) -> Outcomes:
    """Take the values of held-out events."""
    return Outcomes.of_values(data.values[torch.from_numpy(np.asarray(of.held_out.positions))])


def examples_of(
    data: Data,
    seen: SourceLists,
    blend: LearnedBlend,
    numbers: HistoryFeatures,
    tasks: Sequence[str],
    fit: RankerFitConfig,
    device: torch.device,
) -> RankingExamples:
    """Merge lists, number candidates, label them."""
    prepared, held_out = data.prepared, seen.held_out
    queries = data.sequences.queries(
        held_out.positions, max_history=MOST_EVENTS, user_features=prepared.user_features
    )
    there, counts = blend.to(device), seen.item_counts.to(device)
    builder = CandidateBuilder(
        blend=there, history_features=numbers.to(device), num_candidates=fit.num_candidates
    )
    parts = []
    for rows in torch.split(torch.arange(len(held_out.positions)), QUERIES):
        lists = {
            name: TopK(*(part[rows].to(device) for part in top)) for name, top in seen.lists.items()
        }
        history = queries["history"].take(rows).to(device)
        # Merging makes its tensors on the default device.
        with default_device(device):
            found = builder.candidates(lists, history, counts)
        parts.append([part.cpu() for part in found])
    item_rows, features = (torch.cat(part) for part in zip(*parts, strict=True))
    values = data.values[torch.from_numpy(np.asarray(held_out.positions))]
    labels = labels_of(
        item_rows, held_out.targets, Outcomes.of_values(values), tasks, fit.like_from
    )
    return RankingExamples(queries, held_out.targets, Candidates(item_rows, features), labels)


def per_user(item_rows: Tensor, targets: Jagged) -> Tensor:
    """Measure lists [U, k], [U]."""
    return per_user_metric(list_ranks(item_rows, targets), METRIC).nan_to_num(0)


def ordered(item_rows: Tensor, scores: Tensor) -> Tensor:
    """Order candidates by scores, [U, k]."""
    return item_rows.gather(1, reranked_places(scores, scores.shape[1]))


@torch.no_grad()
def logits_together(model: Ranker, examples: RankingExamples, chosen: Tensor) -> Tensor:
    """Predict candidates many queries at a time, [U, k, T]; nan at holes.

    What is served differs from this by rounding alone.
    """
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    there = examples.candidates.item_rows[chosen] > 0
    logits = torch.full((*there.shape, len(model.inputs.tasks)), torch.nan)
    for rows in torch.split(torch.arange(len(chosen)), QUERIES):
        batch = examples.whole_batch(chosen[rows]).to(device)
        part = torch.full((*there[rows].shape, logits.shape[2]), torch.nan)
        part[there[rows]] = model(batch).logits.cpu()
        logits[rows] = part
    model.train(was_training)
    return logits


def scores_together(model: Ranker, logits: Tensor) -> Tensor:
    """Join tasks, [U, k, T] -> [U, k]; -inf at holes."""
    there = ~logits[:, :, 0].isnan()
    scores = torch.full(there.shape, -torch.inf)
    device = next(model.parameters()).device
    with torch.no_grad():
        scores[there] = model.combined(model.calibrated(logits[there].to(device))).cpu()
    return scores


def inputs_of(prepared: Prepared, tasks: Sequence[str], sources: Sequence[str]) -> RankerInputs:
    """Sizes of what a ranker of a data set reads."""
    return RankerInputs(
        num_item_rows=prepared.num_item_rows,
        tasks=tuple(tasks),
        content_dim=prepared.catalogue.content.shape[1],
        num_categories=prepared.sizes.num_categories,
        user_features=prepared.sizes.user_features,
        candidate_dense=feature_names(tuple(sources)),
        base_feature=BASE,
    )


class Seed:
    """What rankers of one seed learn from and are judged by."""

    frozen_line = False

    def __init__(
        self,
        data: Data,
        seed: int,
        before: Mapping[str, SourceLists],
        now: Mapping[str, SourceLists],
        recipe: Recipe,
        device: torch.device,
    ) -> None:
        self.data, self.seed, self.device, self.recipe = data, seed, device, recipe
        self.before, self.now = before["earlier"], now
        with stage("blend of earlier events"):
            self.blend = self._learned(self.before)
        values = data.values[torch.from_numpy(np.asarray(self.before.held_out.positions))]
        self.tasks, _ = tasks_of(Outcomes.of_values(values), recipe.fit.like_from)
        with stage("numbers of candidates"):
            numbers = self._numbers(data.earlier_ends(), self.before)
            self.learned = self._examples(self.before, numbers)
            numbers = self._numbers(np.asarray(data.sequences.train_end), next(iter(now.values())))
            self.judged = {split: self._examples(one, numbers) for split, one in now.items()}

    def _learned(self, of: SourceLists) -> LearnedBlend:
        config = self.data.prepared.recipe.blend.learned()
        return learned_blend(self._beside_queries(of), config, self.device)

    def _beside_queries(self, of: SourceLists) -> QueriedLists:
        queries = replace(
            self.data.experiment("now", self.seed, self.device).queries("validation"),
            held_out=of.held_out,
        )
        return QueriedLists.of_queries(dict(of.lists), queries, of.item_counts, self.seed)

    def _numbers(self, ends: Rows, of: SourceLists) -> HistoryFeatures:
        linear = self.data.linear(ends, self.recipe.linear_items, self.device)
        return HistoryFeatures(self.data.prepared.catalogue, linear, of.vectors)

    def _examples(self, of: SourceLists, numbers: HistoryFeatures) -> RankingExamples:
        return examples_of(
            self.data, of, self.blend, numbers, self.tasks, self.recipe.fit, self.device
        )

    def blends(self) -> dict[str, dict[str, Tensor]]:
        """Measure both blends, by row and split."""
        served, earlier = {}, {}
        config = self.data.prepared.recipe.blend
        blend = learned_profile(self._beside_queries(self.now["validation"]), config, self.device)
        assert blend is not None, "too few validation users to learn a blend"
        for split, found in self.now.items():
            merged = blend.merged(
                self._beside_queries(found), KEPT, by_half=split == "validation", device=self.device
            )
            served[split] = per_user(merged.item_rows, found.held_out.targets)
            earlier[split] = per_user(
                self.judged[split].candidates.item_rows, found.held_out.targets
            )
        return {BLEND: served, EARLIER_BLEND: earlier}

    def ranker(self, trunk: Trunk | None) -> Ranker:
        """Build an untrained ranker; None for a trunk that learns nothing."""
        prepared = self.data.prepared
        sizes = inputs_of(prepared, self.tasks, self.blend.sources)
        torch.manual_seed(self.seed)
        config = at_equal_compute(self.recipe.ranker, sizes, trunk or "dense")
        model = Ranker(config, sizes, prepared.catalogue, self.before.item_counts)
        return model.to(self.device)

    def parts(self) -> tuple[Tensor, Tensor]:
        """Number the events of nine users of ten that teach, and those of the tenth."""
        aside = self.learned.queries["user"].values % 10 == 0
        found = torch.zeros(len(aside), dtype=torch.bool)
        found[self.learned.found()] = True
        return (found & ~aside).nonzero()[:, 0], aside.nonzero()[:, 0]

    def line_without(self, kinds: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Fit a straight line that does not see some kinds of numbers; measure it on validation.

        Returns:
            Its values [U], and those of the line that sees all.
        """
        values, (chosen, _) = [], self.parts()
        for hidden in (tuple(kinds), ()):
            model = self.ranker(None).eval()
            line, examples = model.correction, self.learned
            assert line is not None
            there = examples.candidates.item_rows[chosen] > 0
            line.fit_scale(examples.candidates.features[chosen][there])
            names = feature_names(self.blend.sources)
            of_history = len(names) - len(HISTORY_FEATURES)
            for column in range(of_history, len(names)):
                if names[column].partition(".")[0] in hidden:
                    line.scales[column] = 0
            fit_line(line, examples, chosen, self.recipe.fit)
            judged = self.judged["validation"]
            logits = logits_together(model, judged, torch.arange(len(judged.labels)))
            top = ordered(judged.candidates.item_rows, scores_together(model, logits))
            values.append(per_user(top, self.now["validation"].held_out.targets))
        return values[0], values[1]

    def fit(
        self, model: Ranker, loss_at: Callable[[int], Tensor], num_examples: int, held: Tensor
    ) -> None:
        """Train a ranker; the held-out users pick the pass."""
        examples, targets = self.learned, self.before.held_out.targets.take(held)
        rows = examples.candidates.item_rows[held]

        def evaluate(_: nn.Module) -> dict[str, float]:
            scores = scores_together(model, logits_together(model, examples, held))
            return {METRIC: float(per_user(ordered(rows, scores), targets).mean())}

        train(
            model,
            loss_at,
            adamw(model, self.recipe.fit.optimizer),
            self.recipe.fit.for_examples(num_examples),
            evaluate=evaluate,
            tracker=SilentTracker(),
            progress=SilentProgress(),
        )

    def trained(self, trunk: Trunk | None) -> tuple[Ranker, float]:
        """Train on nine users of ten; the tenth pick the pass."""
        model, fit = self.ranker(trunk), self.recipe.fit
        examples = self.learned
        chosen, held = self.parts()
        begin = time.perf_counter()
        loss_at = ranker_loss(model, examples, chosen, fit, self.seed, self.device)
        if self.frozen_line and model.correction is not None:
            model.correction.requires_grad_(False)
        if trunk is not None:
            self.fit(model, loss_at, len(chosen), held)
        logits = logits_together(model, examples, held)
        there = examples.candidates.present[held]
        model.eval().fit_calibration(
            logits[there].to(self.device), examples.labels[held][there].to(self.device)
        )
        return model, time.perf_counter() - begin

    def measured(self, model: Ranker) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Measure a ranker on every split, its probabilities and its experts."""
        values = {}
        diagnostics: dict[str, Any] = {"flops": flops_of(model.config, model.inputs)["total"]}
        for split, examples in self.judged.items():
            everyone = torch.arange(len(examples.labels))
            logits = logits_together(model, examples, everyone)
            top = ordered(examples.candidates.item_rows, scores_together(model, logits))
            values[split] = per_user(top, self.now[split].held_out.targets)
            there = examples.candidates.item_rows > 0
            diagnostics[f"auc/{split}"] = {
                name: area_under_curve(
                    logits[there][:, place], examples.labels[there][:, place].nan_to_num(0)
                )
                for place, name in enumerate(self.tasks)
            }
        examples = self.judged["validation"]
        some = torch.arange(min(1024, len(examples.labels)))
        batch = examples.whole_batch(some).to(self.device)
        with torch.no_grad():
            routing = model(batch).routing
        if routing is not None:
            use = expert_use(routing.experts, model.config.num_experts)
            diagnostics |= {"max_violation": use.max_violation, "dead_experts": use.dead_experts}
        return values, diagnostics


def recipe_with(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Change settings, named ``part.setting``."""
    for name, value in settings.items():
        part, _, setting = name.partition(".")
        changed = replace(getattr(recipe, part), **{setting: value})
        recipe = replace(recipe, **{part: changed})
    return recipe
