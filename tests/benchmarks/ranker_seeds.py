"""One seed of ``benchmark_ranker``: sources before and now, candidates, rankers of any trunk.

Axes: U users, E events, k candidates.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged
from recsys.data.dataset import Rows, Sequences, concatenated_ranges
from recsys.data.held_out import HeldOut, concatenated, ragged
from recsys.data.top_k import TopK
from recsys.evaluation.auc import area_under_curve
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.layers.moe_routing import expert_use
from recsys.models.linear_items import LinearItems, LinearItemsConfig
from recsys.models.ranker import Ranker
from recsys.models.ranker_config import (
    RankerConfig,
    RankerInputs,
    Trunk,
    at_equal_compute,
    flops_of,
)
from recsys.reproduction.fitting import FITTERS, Experiment, QuietProgress
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking import rank_all
from recsys.reproduction.recipe import SOURCES
from recsys.reproduction.run import blended_by_halves
from recsys.retrieval.candidate_numbers import BASE, number_names, ranking_candidates
from recsys.retrieval.history_numbers import HistoryNumbers
from recsys.retrieval.learned_blend import LearnedBlend
from recsys.retrieval.source_lists import blended_lists, fitted_blend
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.progress import SilentTracker
from recsys.training.ranker_fit import RankerFitConfig, logits_of, ranker_loss, scores_of
from recsys.training.ranking_examples import (
    Candidates,
    RankingExamples,
    labels_of,
    tasks_of,
)

TRUNKS: tuple[Trunk, ...] = ("dense", "shared_bottom", "mmoe", "ple", "sparse")
BLEND, EARLIER_BLEND, CORRECTION = "blend, served", "blend of earlier events", "straight line"
METRIC = "ndcg@10"
MOST_EVENTS = 200
RANKER = RankerConfig(
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
"""The sparse trunk, to which the others are made equal."""


FIT = RankerFitConfig()


@dataclass(frozen=True, kw_only=True)
class Data:
    """A prepared data set, with the value of each event."""

    prepared: Prepared
    values: Tensor
    """[E], NaN where there is none."""
    held_back: int
    max_queries: int

    @property
    def sequences(self) -> Sequences:
        return self.prepared.order("given")

    def with_epochs(self, most: float) -> Data:
        """Let sources train for at most so many passes."""
        recipe = self.prepared.recipe
        two_tower, sequence = (
            replace(training, max_epochs=min(most, training.max_epochs))
            for training in (recipe.two_tower_training, recipe.sequence_training)
        )
        recipe = replace(recipe, two_tower_training=two_tower, sequence_training=sequence)
        return replace(self, prepared=replace(self.prepared, recipe=recipe))

    def earlier_ends(self) -> Rows:
        """Where train ends once each user's latest events are held back, [U]."""
        lengths = self.sequences.train_end - self.sequences.offsets[:-1]
        held = np.minimum(self.held_back, (lengths * 0.2).astype(np.int64))
        held = np.where(lengths >= 3, np.maximum(held, 1), 0)
        return np.asarray(self.sequences.train_end - held)

    def earlier(self, seed: int) -> HeldOut:
        """One query for each event that is held back."""
        sequences = self.sequences
        positions = concatenated_ranges(self.earlier_ends(), np.asarray(sequences.train_end))
        if len(positions) > self.max_queries:
            rng = np.random.default_rng([seed, len(positions)])
            positions = np.sort(rng.choice(positions, self.max_queries, replace=False))
        users = sequences.users_of(positions)
        lengths = positions - sequences.offsets[users]
        seen = concatenated(sequences.offsets[users], lengths)
        return HeldOut(
            positions=positions,
            targets=ragged(np.asarray(sequences.item_rows[positions]), np.ones_like(positions)),
            seen=ragged(np.asarray(sequences.item_rows[seen]), lengths),
        )

    def linear(self, ends: Rows) -> LinearItems:
        visible = concatenated_ranges(np.asarray(self.sequences.offsets[:-1]), ends)
        return LinearItems.fit(
            self.sequences.users_of(visible),
            np.asarray(self.sequences.item_rows[visible]),
            self.prepared.num_item_rows,
            LinearItemsConfig(),
        )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Queries with every source's list."""

    held_out: HeldOut
    lists: Mapping[str, TopK]
    lengths: Tensor
    item_counts: Tensor


def asked(
    experiment: Experiment, sources: Mapping[str, Any], held_out: HeldOut, item_counts: Tensor
) -> Asked:
    """Ask sources about held-out events."""
    question = experiment.question("validation")._replace(held_out=held_out)
    k = min(experiment.recipe.num_candidates, experiment.prepared.num_item_rows - 1)
    lists = {
        SOURCES.get(name, name): rank_all(source, question, k, experiment.device).lists
        for name, source in sources.items()
    }
    return Asked(
        held_out=held_out,
        lists=lists,
        lengths=question.history_lengths(),
        item_counts=item_counts,
    )


def examples_of(
    data: Data, seen: Asked, blend: LearnedBlend, numbers: HistoryNumbers, tasks: Sequence[str]
) -> RankingExamples:
    """Merge lists, number candidates, label them."""
    prepared, held_out = data.prepared, seen.held_out
    queries = data.sequences.queries(
        held_out.positions, max_history=MOST_EVENTS, user_features=prepared.user_features
    )
    parts = []
    for rows in torch.split(torch.arange(len(held_out.positions)), 512):
        lists = {name: TopK(*(part[rows] for part in top)) for name, top in seen.lists.items()}
        found = ranking_candidates(
            blend, lists, queries["history"].take(rows), seen.item_counts,
            FIT.num_candidates, numbers,
        )  # fmt: skip
        parts.append((found.blended.scores, found.blended.item_rows, found.numbers))
    scores, item_rows, of_candidates = (torch.cat(part) for part in zip(*parts, strict=True))
    values = data.values[torch.from_numpy(np.asarray(held_out.positions))]
    labels = labels_of(item_rows, held_out.targets, values, tasks, FIT.like_from)
    return RankingExamples(queries, Candidates(TopK(scores, item_rows), of_candidates), labels)


def per_user(top: TopK, targets: Jagged) -> Tensor:
    """Measure lists, [U]."""
    return per_user_metric(list_ranks(top.item_rows, targets), METRIC).nan_to_num(0)


def ordered(examples: RankingExamples, scores: Tensor) -> TopK:
    """Order candidates by scores."""
    order = scores.sort(dim=1, descending=True, stable=True).indices
    top = examples.candidates.top
    return TopK(top.scores.gather(1, order), top.item_rows.gather(1, order))


class Seed:
    """Everything one seed needs: lists before and now, examples."""

    def __init__(self, data: Data, seed: int, splits: Sequence[str], device: torch.device) -> None:
        self.data, self.seed, self.device = data, seed, device
        prepared, sequences = data.prepared, data.sequences
        ends = data.earlier_ends()
        whole = Experiment(prepared=prepared, sequences=sequences, seed=seed, device=device)
        # Validated by the first event that was held back, so that steps are chosen as in a run.
        cut = replace(
            sequences,
            train_end=ends,
            validation_end=np.minimum(ends + 1, np.asarray(sequences.train_end)),
        )
        before = replace(whole, sequences=cut)
        names = [name for name in prepared.recipe.sources if name != "generative"]
        fitted = {name: FITTERS[name](before).source for name in names}
        self.before = asked(before, fitted, data.earlier(seed), before.item_counts())
        fitted = {name: FITTERS[name](whole).source for name in names}
        self.now = {
            split: asked(whole, fitted, whole.question(split).held_out, whole.item_counts())  # type: ignore[arg-type]
            for split in splits
        }
        self.whole = whole
        config = prepared.recipe.blend
        self.blend = fitted_blend(
            self.before.lists, self.before.held_out.targets, self.before.lengths,
            self.before.item_counts, config,
        )  # fmt: skip
        values = data.values[torch.from_numpy(np.asarray(self.before.held_out.positions))]
        self.tasks, _ = tasks_of(values, FIT.like_from)
        numbers = HistoryNumbers(prepared.catalogue, data.linear(ends))
        self.learned = examples_of(data, self.before, self.blend, numbers, self.tasks)
        numbers = HistoryNumbers(prepared.catalogue, data.linear(np.asarray(sequences.train_end)))
        self.judged = {
            split: examples_of(data, found, self.blend, numbers, self.tasks)
            for split, found in self.now.items()
        }

    def blends(self) -> dict[str, dict[str, Tensor]]:
        """Measure both blends, by row and split."""
        served, earlier = {}, {}
        for split, found in self.now.items():
            lists = dict(found.lists)
            if split == "validation":
                question = self.whole.question("validation")
                merged = blended_by_halves(self.whole, lists, question)
            else:
                of = self.now["validation"]
                config = self.data.prepared.recipe.blend
                blend = fitted_blend(
                    of.lists, of.held_out.targets, of.lengths, of.item_counts, config
                )
                made = blended_lists(blend, lists, found.lengths, found.item_counts, 50)
                merged = TopK(made.scores, made.item_rows)
            served[split] = per_user(merged, found.held_out.targets)
            earlier[split] = per_user(self.judged[split].candidates.top, found.held_out.targets)
        return {BLEND: served, EARLIER_BLEND: earlier}

    def ranker(self, trunk: Trunk | None) -> Ranker:
        """Build an untrained ranker; None for a trunk that learns nothing."""
        prepared = self.data.prepared
        sizes = RankerInputs(
            num_item_rows=prepared.num_item_rows,
            tasks=self.tasks,
            content_dim=prepared.catalogue.content.shape[1],
            num_categories=prepared.num_categories,
            user_features=dict(prepared.cardinalities),
            candidate_dense=number_names(self.blend.sources),
            base_number=BASE,
        )
        torch.manual_seed(self.seed)
        config = at_equal_compute(RANKER, sizes, trunk or "dense")
        return Ranker(config, sizes, prepared.catalogue, self.before.item_counts)

    def trained(self, trunk: Trunk | None) -> tuple[Ranker, float]:
        """Train on nine users of ten; the tenth pick the pass."""
        model = self.ranker(trunk)
        examples, targets = self.learned, self.before.held_out.targets
        aside = examples.queries["user"].values % 10 == 0
        found = torch.zeros(len(aside), dtype=torch.bool)
        found[examples.found()] = True
        chosen, held = (found & ~aside).nonzero()[:, 0], aside.nonzero()[:, 0][:500]
        loss_at = ranker_loss(model, examples, chosen, FIT, self.seed, torch.device("cpu"))
        if trunk is None:
            for name, weight in model.named_parameters():
                weight.requires_grad_(name.startswith("correction"))

        def evaluate(_: nn.Module) -> dict[str, float]:
            scores = scores_of(model, examples, held)
            part = RankingExamples(
                examples.queries,
                Candidates(TopK(*(one[held] for one in examples.candidates.top)), scores),
                examples.labels,
            )
            return {METRIC: float(per_user(ordered(part, scores), targets.take(held)).mean())}

        begin = time.perf_counter()
        train(
            model,
            loss_at,
            adamw(model, FIT.optimizer),
            FIT.for_examples(len(chosen)),
            evaluate=evaluate,
            tracker=SilentTracker(),
            progress=QuietProgress(),
        )
        logits = logits_of(model, examples, held)
        there = examples.candidates.top.item_rows[held] > 0
        model.eval().fit_calibration(logits, examples.labels[held][there], "platt")
        return model, time.perf_counter() - begin

    def measured(self, model: Ranker) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Measure a ranker on every split; tell of its probabilities and experts."""
        values = {}
        for split, examples in self.judged.items():
            everyone = torch.arange(len(examples.labels))
            top = ordered(examples, scores_of(model, examples, everyone))
            values[split] = per_user(top, self.now[split].held_out.targets)
        examples = self.judged["validation"]
        everyone = torch.arange(len(examples.labels))
        logits = logits_of(model, examples, everyone)
        labels = examples.labels[examples.candidates.top.item_rows > 0]
        told: dict[str, Any] = {
            "flops": flops_of(model.config, model.inputs)["total"],
            "auc": {
                name: area_under_curve(logits[:, place], labels[:, place].nan_to_num(0))
                for place, name in enumerate(self.tasks)
            },
        }
        with torch.no_grad():
            routing = model(examples.whole_batch(everyone[:128])).routing
        if routing is not None:
            use = expert_use(routing.experts, model.config.num_experts)
            told |= {"max_violation": use.max_violation, "dead_experts": use.dead_experts}
        return values, told
