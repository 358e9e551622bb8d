"""Losses of a ranker over the candidates of labelled queries, and the balance of its experts.

A training step draws the first candidates of a list more often than those after, and drops most
ids where users are few, so router biases that balance its batches leave served lists unbalanced.
They are settled on the whole lists, without id dropout, before every step.

Axes: U queries, k candidates of each, T tasks, B queries of a step, C candidates of a step, M
candidates, N distinct items.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recsys.data.windows import BatchOrder
from recsys.layers.moe.experts import SparseMoe
from recsys.layers.moe.router import BiasedRouter, without_autocast
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import Correction, Ranked, RankingBatch
from recsys.training.captured import FixedShapeLoss
from recsys.training.passes import RankerFitConfig
from recsys.training.ranking_examples import Drawn, FixedLists, RankingExamples, draw_places

RESETTLE_ROUNDS, RESETTLE_RATE = 15, 0.01
"""For biases that were settled a step ago."""
MAX_ITEMS = 1 << 14
"""Sample of items that biases are settled on, drawn as often as they are candidates."""


def item_router(model: Ranker) -> BiasedRouter | None:
    """Return the router that is balanced by biases; None without."""
    body = model.trunk.body
    if not isinstance(body, SparseMoe):
        return None
    return body.router


def served_items(item_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Count the distinct items of lists [U, k], rows and counts [N]; 0 where a list is short."""
    rows, counts = torch.unique(item_rows[item_rows > 0], return_counts=True)
    if len(rows) <= MAX_ITEMS:
        return rows, counts
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(counts.double(), MAX_ITEMS, replacement=True, generator=generator)
    places, counts = torch.unique(drawn, return_counts=True)
    return rows[places], counts


def settling(model: Ranker, item_rows: Tensor, device: torch.device) -> Callable[[int], None]:
    """Return what to call before each training step; does nothing where no bias balances items.

    From here on training batches no longer move biases.

    Args:
        item_rows: Candidates as served, [U, k], on the host; 0 where a list is short.
    """
    router = item_router(model)
    if router is None or not bool((item_rows > 0).any()):
        return lambda step: None
    router.moves_by_batch = False
    rows, counts = (part.to(device) for part in served_items(item_rows))

    @torch.no_grad()
    def before_step(step: int) -> None:
        was_training = model.training
        model.eval()
        with without_autocast(device.type):
            if rows.is_cuda and model.encodes_all(len(rows)):
                items = model.item_inputs_of_all()[1].index_select(0, rows)
            else:
                items = model.item_inputs(rows)
        if step:
            router.settle(items, counts, num_rounds=RESETTLE_ROUNDS, rate=RESETTLE_RATE)
        else:
            router.settle(items, counts)
        model.train(was_training)

    return before_step


BLOCK = 256
"""Queries scored at a time."""
TASK_SHARE = 0.1
"""Weight of the pointwise cross entropies, which make logits probabilities, next to the listwise
loss, which orders them."""
LINE_L2 = 20.0
"""L2 penalty of the linear correction that is fitted before the network; in queries."""
LINE_QUERIES = 8192
"""Queries that the linear correction is fitted on, evenly spaced."""
NEVER = -1e4
"""Logit where there is no candidate."""


def listwise_loss(logits: Tensor, drawn: Drawn) -> Tensor:
    """Softmax cross entropy of the first candidate, a positive, among its query's, a scalar.

    The mean over tasks of the mean over queries whose first candidate has the task's feedback.

    Args:
        logits: [B, C, T].
        drawn: The candidates; those without a label are left out of the list.
    """
    absent = drawn.labels[:, :, :1].isnan()
    among = (logits + drawn.log_weights[:, :, None]).masked_fill(absent, NEVER).log_softmax(1)
    wanted = (drawn.labels[:, 0] == 1).to(among.dtype)  # [B, T]
    return -((among[:, 0] * wanted).sum(0) / wanted.sum(0).clamp(min=1)).mean()


def ranker_loss(
    model: Ranker,
    examples: RankingExamples,
    chosen: Tensor,
    config: RankerFitConfig,
    seed: int,
    device: torch.device,
) -> Callable[[int], Tensor]:
    """Fit the linear correction of a base score, and return the loss of each training step.

    Experts are kept balanced over the queries' whole lists (``settling``).

    Args:
        chosen: Queries with a positive candidate, [U].
    """
    if model.correction is not None:
        candidates = examples.candidates.take(chosen)
        model.correction.fit_scale(candidates.features[candidates.present].to(device))
        fit_line(model.correction, examples, chosen)
    losses = StepLosses(model, examples, chosen, config, seed, device)
    settle = settling(model, examples.candidates.item_rows[chosen], device)

    def loss_at(step: int) -> Tensor:
        settle(step)
        return losses(step)

    fixes = device.type == "cuda" and has_one_shape(model, losses)
    return fixed_loss(loss_at, losses, settle) if fixes else loss_at


def has_one_shape(model: Ranker, losses: StepLosses) -> bool:
    """Whether a step needs no look at the data where all items are encoded."""
    same = model.num_item_rows == model.inputs.num_item_rows
    shape = losses.shape
    places = shape.num_queries * (shape.num_candidates + shape.max_history)
    return same and model.encodes_all(places)


def fixed_loss(
    loss_at: Callable[[int], Tensor], losses: StepLosses, settle: Callable[[int], None]
) -> FixedShapeLoss:
    """Pair the loss of each step with that of a step of one shape."""

    def inputs_at(step: int) -> Tensor | None:
        inputs = losses.shape.inputs(*losses.draw(step))
        if step == 0 and inputs is not None:
            settle(0)
        return inputs

    def loss_of(inputs: Tensor) -> Tensor:
        settle(1)
        return losses.of_inputs(inputs)

    return FixedShapeLoss(loss_at, inputs_at, loss_of)


def fit_line(
    correction: Correction, examples: RankingExamples, chosen: Tensor, l2: float = LINE_L2
) -> None:
    """Fit the linear correction of each task to whole lists by L-BFGS; the problem is convex.

    The softmax over a query's candidates is fitted to those with the task's feedback. The network
    then learns the rest, which is not linear.

    Args:
        chosen: Queries with a positive candidate, [U].
    """
    device, count = correction.weight.device, min(len(chosen), LINE_QUERIES)
    read = chosen[torch.linspace(0, len(chosen) - 1, count).long()]
    features = examples.candidates.features[read].to(device)  # [Q, k, F]
    base = correction.base(features)[..., 0].masked_fill(
        (examples.candidates.item_rows[read] < 1).to(device), NEVER
    )
    features = correction.standardised(features)
    for task in range(len(correction.weight)):
        wanted = (examples.labels[read][:, :, task] == 1).to(device)
        wanted = wanted / wanted.sum(1, keepdim=True).clamp(min=1)  # [Q, k]
        weight = _fitted_line(features, base, wanted, l2)
        with torch.no_grad():
            correction.weight[task] = weight


def _fitted_line(features: Tensor, base: Tensor, wanted: Tensor, l2: float) -> Tensor:
    """Maximise the likelihood of the wanted items [Q, k] by weights of features [Q, k, F], [F]."""
    weight = torch.zeros(features.shape[2], device=features.device, requires_grad=True)
    count = wanted.sum().clamp(min=1)

    def loss() -> Tensor:
        among = (base + features @ weight).log_softmax(1)
        return (l2 / 2 * weight.square().sum() - (among * wanted).sum()) / count

    minimise(loss, [weight], max_iter=50)
    return weight.detach()


def minimise(loss: Callable[[], Tensor], parameters: list[Tensor], *, max_iter: int) -> None:
    """Minimise a smooth scalar loss over its parameters by L-BFGS, in place."""
    optimizer = torch.optim.LBFGS(parameters, max_iter=max_iter, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]


class StepLosses:
    """The loss of each step, a function of the step alone."""

    def __init__(
        self,
        model: Ranker,
        examples: RankingExamples,
        chosen: Tensor,
        config: RankerFitConfig,
        seed: int,
        device: torch.device,
    ) -> None:
        self._model, self._examples, self._chosen = model, examples, chosen
        self._config, self._seed, self._device = config, seed, device
        num_queries = min(config.batch_size, len(chosen))
        self._order = BatchOrder(len(chosen), num_queries, seed)
        num_hard = min(config.num_hard, examples.labels.shape[1] - 1)
        num_candidates = 1 + num_hard + config.num_random
        max_history = model.config.max_history
        self.shape = FixedLists.of(model.inputs, num_queries, num_candidates, max_history)

    def draw(self, step: int) -> tuple[RankingBatch, Drawn]:
        """Draw a step, on the host."""
        queries = self._chosen[torch.from_numpy(self._order.indices(step))]
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        labels, config = self._examples.labels[queries], self._config
        drawn = draw_places(labels, config.num_hard, config.num_random, generator)
        return self._examples.batch(queries, drawn.places), drawn

    def __call__(self, step: int) -> Tensor:
        batch, drawn = self.draw(step)
        ranked = self._model(batch.to(self._device))
        drawn = Drawn(*(part.to(self._device) for part in drawn))
        return self._loss(ranked, drawn)

    def of_inputs(self, inputs: Tensor) -> Tensor:
        """Compute the loss of what ``shape`` laid out, on the device."""
        batch, drawn = self.shape.read(inputs)
        return self._loss(self._model.of_full_lists(batch), drawn)

    def _loss(self, ranked: Ranked, drawn: Drawn) -> Tensor:
        listwise = listwise_loss(ranked.logits.view(*drawn.labels.shape), drawn)
        tasks = self._model.loss_of(ranked, drawn.labels.flatten(0, 1))
        return listwise + TASK_SHARE * tasks


def predict_logits(ranker: Ranker, examples: RankingExamples, chosen: Tensor) -> Tensor:
    """Predict every candidate of queries as they are served, [M, T]."""
    device = next(ranker.parameters()).device
    parts = [
        ranker.logits(examples.whole_batch(part).to(device)).cpu()
        for part in torch.split(chosen, BLOCK)
    ]
    return torch.cat(parts)


def score_candidates(ranker: Ranker, examples: RankingExamples, chosen: Tensor) -> Tensor:
    """Score every candidate of queries as they are served, [U, k]; -inf where a list is short."""
    parts = [
        ranker.score_lists(examples.candidates.take(part), examples.queries_of(part))
        for part in torch.split(chosen, BLOCK)
    ]
    return torch.cat(parts)
