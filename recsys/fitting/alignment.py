"""Align a trained generative model by rewards of what it generates: its second phase.

Each step cuts windows at a place drawn for each, has the model generate items for what came
before, and moves it by a loss of ``recsys.training.alignment``. Validation decides whether anything
is kept.

Axes: B contexts, G items of a context, L levels, N item rows.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.data.order import BatchOrder
from recsys.data.windows import Windows
from recsys.evaluation.ranking import RankingConfig, mean_metrics
from recsys.fitting.queries import EvaluationQueries, measure, rank_queries
from recsys.fitting.training import Refit, StopBy, TrainingRun, run_training
from recsys.models.generative.model import GenerativeModel
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.sampling import sample_items
from recsys.retrieval.sources import Source
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.trie import Trie
from recsys.training.alignment import (
    AlignmentConfig,
    ItemRewards,
    advantages,
    divergence,
    grpo_loss,
    id_sums,
    item_rewards,
    novelty_of,
    sdpo_loss,
    value_of,
)
from recsys.training.code_distillation import with_dropped_events
from recsys.training.loop import TrainResult
from recsys.training.optim import ScheduleConfig
from recsys.training.passes import TrainingConfig

CANDIDATES_EACH = 4
"""Items of a context's beams for each one that DPO rejects."""
WARMUP_SHARE = 0.05
CUT = 10
METRIC, WORTH = f"ndcg@{CUT}", f"value@{CUT}"
"""What validation chooses weights by, without and with a reward of values."""


class AlignedEvents(NamedTuple):
    """What contexts are cut from."""

    sequences: Sequences
    windows: Windows
    item_counts: Tensor
    """[N]"""
    item_values: Tensor | None = None
    """[N], NaN where an item's is not known; None where values are not rewarded."""


class Contexts(NamedTuple):
    """Histories, each with the item that came next."""

    queries: JaggedBatch
    labels: Tensor
    """[B]"""

    def to(self, device: torch.device) -> Contexts:
        return Contexts(self.queries.to(device), self.labels.to(device))


def contexts_of(history: Jagged, dropped_events: float = 0.0) -> Contexts:
    """Cut each sequence before an event of it, drawn evenly among all but the first; on the CPU.

    Args:
        history: B sequences of at least two events.
        dropped_events: Most that a context loses at random, as a share.
    """
    lengths, of_sequence = history.lengths(), history.segments()
    place = 1 + (torch.rand(len(lengths)) * (lengths - 1)).long().clamp(max=lengths - 2)  # [B]
    labels = history.values[history.offsets[:-1] + place]
    number = torch.arange(len(of_sequence)) - history.offsets[of_sequence]
    offsets = torch.cat([place.new_zeros(1), place.cumsum(0)])
    before = Jagged(history.values[number < place[of_sequence]], offsets)
    queries = JaggedBatch({"history": before})
    return Contexts(with_dropped_events(queries, dropped_events), labels)


class Aligner:
    """The loss of contexts, against the model as it was when this was made."""

    def __init__(
        self,
        model: GenerativeModel,
        item_codes: ItemCodes,
        item_counts: Tensor,
        config: AlignmentConfig,
        item_values: Tensor | None = None,
    ) -> None:
        """Keep a frozen copy of a trained model as the reference.

        Raises:
            ValueError: Values are rewarded, and there are none.
        """
        if config.rewards.value and item_values is None:
            raise ValueError(
                f"rewards.value = {config.rewards.value}, but no item values are given: name their "
                "column as generative_training.value_column, or set rewards.value = 0"
            )
        self.model, self.config = model, config
        device = model.codes.device
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)
        self.trie = Trie.of_items(item_codes).to(device)
        self.some_id = model.codes[int((model.codes[:, 0] >= 0).nonzero()[0])]
        value = None if item_values is None else value_of(item_values).to(device)
        self.about = ItemRewards(novelty_of(item_counts).to(device), value)

    def loss(self, contexts: Contexts) -> Tensor:
        """Compute the configured loss, a scalar; labels without an ID weigh nothing."""
        # Draws and gradient are of the same distribution only without dropout.
        self.model.eval()
        weights = (self.model.codes[contexts.labels, 0] >= 0).float()
        if self.config.method == "grpo":
            return self._grpo(contexts, weights)
        return self._dpo(contexts, weights)

    def _levels(self, queries: JaggedBatch, codes: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Score codes [B, G, L] by the model and by the reference."""
        with torch.no_grad():
            reference = self.reference.code_log_probabilities(queries, codes)
        return list(self.model.code_log_probabilities(queries, codes)), list(reference)

    def _grpo(self, contexts: Contexts, weights: Tensor) -> Tensor:
        config, model = self.config, self.model
        context = model.context(contexts.queries)
        drawn = sample_items(model.decode_step, context, self.trie, config.group_size)
        reward = item_rewards(config.rewards, *drawn, contexts.labels, self.about)
        codes = model.codes[drawn.item_rows]  # [B, G, L]
        own, reference = self._levels(contexts.queries, codes)
        advantage = advantages(reward, divide_by_std=config.divide_by_std)
        apart = divergence(own, reference)
        return grpo_loss(advantage, id_sums(own, codes), apart, weights, config.kl_weight)

    def _dpo(self, contexts: Contexts, weights: Tensor) -> Tensor:
        rejected, is_rejected = self._rejected(contexts)
        rows = torch.cat([contexts.labels[:, None], rejected], dim=1)
        # What has no ID weighs nothing, and another item's ID stands in: none is NaN.
        has_id = self.model.codes[rows][..., :1] >= 0
        codes = torch.where(has_id, self.model.codes[rows], self.some_id)  # [B, 1 + G, L]
        own, reference = self._levels(contexts.queries, codes)
        ratio = id_sums(own, codes) - id_sums(reference, codes)
        beta = self.config.dpo_beta
        return sdpo_loss(ratio[:, 0], ratio[:, 1:], is_rejected, weights, beta)

    @torch.no_grad()
    def _rejected(self, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Draw items of each context's beams other than its label, and say which there are."""
        length = CANDIDATES_EACH * self.config.group_size
        search = BeamSearch(
            self.model.decode_step,
            self.trie,
            beam_width=length,
            semantic_ids_version=self.model.inputs.semantic_ids,
        )
        found = search.lists(self.model.context(contexts.queries), length).item_rows
        usable = (found > 0) & (found != contexts.labels[:, None])
        order = torch.rand(found.shape, device=found.device).masked_fill(~usable, -1.0)
        places = order.topk(min(self.config.group_size, length), dim=1).indices
        return found.gather(1, places).clamp(min=0), usable.gather(1, places)


def alignment_training(config: AlignmentConfig) -> TrainingConfig:
    """Describe the second phase as a training."""
    return TrainingConfig(
        batch_size=config.batch_size,
        warmup_share=WARMUP_SHARE,
        patience=config.evaluations,
        schedule=ScheduleConfig(
            learning_rate=config.learning_rate, decay="linear", final_share=0.05
        ),
        precision="float32",
    )


def align_generative(
    model: GenerativeModel,
    item_codes: ItemCodes,
    events: AlignedEvents,
    config: AlignmentConfig,
    run: TrainingRun,
    stop_by: StopBy,
    source: Source,
    trained: TrainResult,
) -> TrainResult:
    """Run the second phase of a trained model, in place.

    Args:
        model: With the weights that the first phase ended with.
        item_codes: Its semantic IDs.
        events: What contexts are cut from.
        config: Method, rewards, steps.
        run: Of the first phase; checkpoints go to a folder in its own.
        stop_by: Validation queries choose among the weights, those before included; a refit takes
            the steps that they chose.
        source: Ranks with the model.
        trained: How the first phase ended.

    Returns:
        That, with the steps that were kept and their metric.
    """
    queries = stop_by if isinstance(stop_by, EvaluationQueries) else None
    num_steps = stop_by.aligned_steps if isinstance(stop_by, Refit) else config.num_steps
    if num_steps == 0:
        return trained
    aligner = Aligner(model, item_codes, events.item_counts, config, events.item_values)
    order = BatchOrder(len(events.windows), config.batch_size, run.seed)
    torch.manual_seed(run.seed)

    def loss_at(step: int) -> Tensor:
        history = events.windows.batch(events.sequences, order.indices(step))["history"]
        contexts = contexts_of(history, config.dropped_events)
        return aligner.loss(contexts.to(run.device))

    value = aligner.about.value if config.rewards.value else None
    metric, before = METRIC, trained.best_metric
    measured: dict[str, float] = {}

    def evaluate(_: nn.Module) -> dict[str, float]:
        assert queries is not None
        if value is None:
            return measure(source, queries, RankingConfig(ks=(10,)), run.device)
        found = value_metrics(source, queries, value, run.device)
        least = (1 - config.value_cost) * measured[METRIC]
        # NaN is never the best.
        return found if found[METRIC] >= least else {**found, WORTH: float("nan")}

    if value is not None and queries is not None:
        model.eval()
        measured = value_metrics(source, queries, value, run.device)
        metric, before = WORTH, measured[WORTH]
    folder = run.checkpoint_dir and run.checkpoint_dir / "alignment"
    every = max(1, config.num_steps // config.evaluations)
    settings = alignment_training(config)
    result = run_training(
        model,
        loss_at,
        settings,
        replace(settings.for_steps(num_steps, every, decay_steps=config.num_steps), metric=metric),
        replace(run, checkpoint_dir=folder),
        None if queries is None else evaluate,
    )
    best = result.best_metric
    if before is not None and (best is None or best <= before) and queries is not None:
        model.load_state_dict(aligner.reference.state_dict())
        return trained
    if value is not None and queries is not None:
        best = value_metrics(source, queries, value, run.device)[METRIC]
    return replace(trained, best_metric=best or before, aligned_steps=result.best_step)


@torch.no_grad()
def value_metrics(
    source: Source, queries: EvaluationQueries, value: Tensor, device: torch.device
) -> dict[str, float]:
    """Measure N@10, and what the first ten items are worth: the mean of ``value`` [N]."""
    ranked, targets = rank_queries(source, queries, device), queries.targets()
    ranks = Jagged(ranked.ranks, targets.offsets)
    rows = ranked.lists.item_rows[:, :CUT]
    return {
        METRIC: mean_metrics(ranks, RankingConfig(ks=(CUT,)))[METRIC],
        WORTH: float(value.cpu()[rows[rows > 0]].mean()),
    }
