"""Adapt a released ranker to a domain: half of its validation users train, the others judge.

Its sources of candidates were fitted on train, so validation events are out of sample for them. The
ranker is released as it was trained, and so is its adapter: even validation users of the domain
train it, one in ``SELECT_ONE_IN`` of them selects its step, odd ones judge, and the judged adapter
is registered.

Axes: k candidates of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from pipelines.adapters.ranker_examples import domain_examples, workspace_ranker
from pipelines.adapters.task import DomainQueries, Judged, Task, TrainedAdapter
from pipelines.ranking.fit import metric_by_query
from recsys.data.batch import Jagged
from recsys.data.top_k import TopK, reranked_places
from recsys.evaluation.ranking import RankingResult, list_ranks
from recsys.layers.lora.linear import LoraAdapter
from recsys.models.adapted import AdaptedRanker, copy_layers, ranker_targets
from recsys.models.ranker.model import Ranker
from recsys.training.ranker_fit import StepLosses
from recsys.training.ranking_examples import RankingExamples
from serving.bundle.published import Link

SELECT_ONE_IN = 5
"""One in this number of the users that train selects the step instead."""
MIN_TRAIN_USERS = 10
"""Users with their item among the candidates, below which nothing is trained."""


class RankerAdaptation:
    """An adapter of the released ranker."""

    def __init__(self, task: Task, released: Link) -> None:
        """Load the workspace's ranker."""
        self.task, self.ranker = task, workspace_ranker(task, released)
        self._trained: TrainedAdapter | None = None

    def judge(self) -> Judged:
        """Train the adapter, and rank held-out queries with and without it."""
        learning, judging = self.task.halves()
        examples = domain_examples(self.task, self.ranker, learning, judging)
        self._trained = train_adapter(self.task, self.ranker.model, examples[0])
        adapters = {self.task.name: self._trained.adapter}
        own = torch.from_numpy(self.task.domains.own_items(judging.domain))

        def ranked(known: Mapping[str, LoraAdapter], within: Tensor | None) -> RankingResult:
            return ranked_by_domain(self.ranker.model, judging, examples[1], known, within)

        base, adapted = (ranked(known, None) for known in ({}, adapters))
        base_within, adapted_within = (ranked(known, own) for known in ({}, adapters))
        return Judged(judging, base, adapted, base_within, adapted_within)

    def final(self) -> TrainedAdapter:
        """Return the adapter that was judged."""
        assert self._trained is not None
        return self._trained


def train_adapter(task: Task, model: Ranker, examples: RankingExamples) -> TrainedAdapter:
    """Train an adapter over the frozen ranker."""
    config, device = task.config.adapter, task.device
    found = examples.found()
    selects = found % SELECT_ONE_IN == 0
    selecting, chosen = found[selects], found[~selects]
    if len(selecting) < 2 or len(chosen) < MIN_TRAIN_USERS:
        raise ValueError(
            f"domain {task.name!r} has {len(chosen)} held-out users to learn from whose item is "
            f"among the candidates, and {len(selecting)} to select a step by; it needs "
            f"{MIN_TRAIN_USERS} and 2: give more data, or adapt the model that retrieves"
        )
    model = model.to(device)
    torch.manual_seed(task.config.seed)
    lora = replace(config.lora(ranker_targets(model)), tables=())
    adapter = LoraAdapter(model, lora).attach()

    def evaluate(_: nn.Module) -> Mapping[str, float]:
        values = metric_by_query(model, examples, selecting, config.metric)
        return {config.metric: float(values.nanmean())}

    steps = replace(config.for_examples(len(chosen)), metric=config.metric)
    losses = frozen_losses(task, model, examples, chosen)
    result = task.fit(adapter, losses, steps, evaluate)
    adapter.detach()
    model.to("cpu").eval()
    return TrainedAdapter(adapter.to("cpu").eval(), result.best_step, len(chosen))


def frozen_losses(
    task: Task, model: Ranker, examples: RankingExamples, chosen: Tensor
) -> Callable[[int], Tensor]:
    """Return the ranker's loss of each step, a function of the step alone."""
    config = task.config
    training = replace(config.ranker_training, batch_size=config.adapter.batch_size)
    losses = StepLosses(model, examples, chosen, training, config.seed, task.device)

    def loss_at(step: int) -> Tensor:
        # In training mode the base would move its router's biases.
        model.eval()
        return losses(step)

    return loss_at


def ranked_by_domain(
    model: Ranker,
    queries: DomainQueries,
    examples: RankingExamples,
    adapters: Mapping[str, LoraAdapter],
    within: Tensor | None = None,
) -> RankingResult:
    """Rank each query's candidates as serving does, by the adapter of its domain.

    Args:
        within: Items of the adapted domain, [N] bool, to rank its queries alone among those of
            their candidates; None ranks every query among all of its candidates.
    """
    adapted = AdaptedRanker(copy_layers(model), adapters)
    chosen = torch.arange(len(queries))
    if within is not None:
        chosen = torch.from_numpy(queries.domain_of_query == queries.domain).nonzero()[:, 0]
    rows, targets = examples.candidates.item_rows[chosen], examples.targets.take(chosen)
    scores = torch.full(rows.shape, -torch.inf)
    for place, query in enumerate(chosen.tolist()):
        domain = queries.names[queries.domain_of_query[query]]
        batch = examples.whole_batch(torch.tensor([query]))
        reader, own = model.encode_reader(batch, 0), batch.candidates.values
        if adapted.knows(domain):
            found = adapted.score_candidates(reader, own, batch.candidate_dense, domain)
        else:
            found = model.score_candidates(reader, own, batch.candidate_dense)
        if within is not None:
            found = found.masked_fill(~within[own], -torch.inf)
        scores[place, rows[place] > 0] = found
    places = reranked_places(scores, rows.shape[1])
    top = TopK(scores.gather(1, places), rows.gather(1, places))
    return RankingResult(
        metrics={},
        num_users=len(chosen),
        user_rows=chosen,
        targets=targets,
        ranks=Jagged(list_ranks(top.item_rows, targets).values, targets.offsets),
        top_k=top,
    )
