"""Training examples of a blend: queries with a target in some list, and the other candidates.

Axes: B queries, Q queries kept, S sources, F features of a source, P = S * F, L items of all lists
of a query together, C candidates kept, k list length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.retrieval.blend.source_features import merge_lists

BLOCK_QUERIES, GPU_BLOCK_QUERIES = 128, 4096
"""Queries whose features are looked at together: few enough to stay in a CPU's cache, and enough
for a GPU, which each launch keeps waiting."""
MAX_STEPS = 50
TOLERANCE = 1e-7
"""Steps end where the next would gain less than this share of the loss."""


class Choices(NamedTuple):
    """Candidates of each query, and the chosen ones."""

    features: Tensor
    """[Q, C, P] float32."""
    offsets: Tensor
    """[Q, C] float32, added to the weighted features; -inf where there is no candidate."""
    chosen: Tensor
    """[Q, C] float32, sums to 1 for each query; more for its next target than for later ones."""

    def of(self, queries: Tensor) -> Choices:
        """Pick queries by number."""
        return Choices(*(values[queries] for values in self))

    def by_kind(self, kinds: Tensor, num_kinds: int, weights: Tensor) -> Choices:
        """Return each kind of item features of its own.

        Args:
            kinds: Kind of each candidate, [Q, C] in [-1, I).
            weights: Hold for candidates of no kind (-1), [P].
        """
        num_queries, length, width = self.features.shape
        shape = (num_queries, length, num_kinds + 1, width)
        place = kinds.where(kinds >= 0, num_kinds)[:, :, None, None].expand(-1, -1, 1, width)
        apart = torch.zeros(shape).scatter_(2, place, self.features[:, :, None])
        known = apart[:, :, :num_kinds].reshape(num_queries, length, num_kinds * width)
        return self._replace(
            features=known, offsets=self.offsets + apart[:, :, num_kinds] @ weights
        )


class LossCurve(NamedTuple):
    """A loss and its first two derivatives at some weights."""

    value: float
    gradient: Tensor
    """[P] float64."""
    curvature: Tensor
    """[P, P] float64."""


class FittedWeights(NamedTuple):
    """The best weights and what they reach."""

    weights: Tensor
    """[P] float32."""
    loss: float
    """Mean negative log likelihood of the choices, nats; the penalty is left out."""
    num_steps: int


def negative_log_likelihood(choices: Choices, weights: Tensor) -> LossCurve:
    """Sum over all queries, at weights [P]."""
    width = choices.features.shape[2]
    value = torch.zeros((), dtype=torch.float64)
    gradient = torch.zeros(width, dtype=torch.float64)
    curvature = torch.zeros(width, width, dtype=torch.float64)
    size = GPU_BLOCK_QUERIES if choices.features.is_cuda else BLOCK_QUERIES
    for begin in range(0, len(choices.features), size):
        features, offsets, chosen = (part[begin : begin + size] for part in choices)
        logits = (features @ weights.float() + offsets).double()  # [q, C]
        total = logits.logsumexp(1, keepdim=True)
        value += torch.where(chosen > 0, chosen * (total - logits), 0.0).sum()
        share = (logits - total).exp().float()
        mean = (share[:, None] @ features).squeeze(1)  # [q, P]
        gradient += (mean - (chosen[:, None] @ features).squeeze(1)).sum(0).double()
        flat = features.reshape(-1, width)
        spread = (flat * share.reshape(-1, 1)).T @ flat - mean.T @ mean
        curvature += spread.double()
    return LossCurve(float(value), gradient, curvature)


def fit_weights(
    choices: Choices, prior: Tensor, precision: Tensor, *, non_negative: bool | Tensor = True
) -> FittedWeights:
    """Minimise the negative log likelihood + (w - prior)' precision (w - prior) / 2.

    Args:
        prior: Mean of the prior, and the start, [P].
        precision: Positive definite, [P, P].
        non_negative: Whether weights stay >= 0, all of them or each, [P] bool.
    """
    prior, precision = prior.double(), precision.double()
    signed = ~torch.as_tensor(non_negative).expand(len(prior))
    weights = prior.where(signed, prior.clamp_min(0))
    likelihood = negative_log_likelihood(choices, weights)
    curve, num_steps = _penalised(likelihood, weights - prior, precision), 0
    while num_steps < MAX_STEPS:
        # A weight that is 0 and would fall stays where it is.
        free = (weights > 0) | (curve.gradient < 0) | signed
        slope, direction = curve.gradient[free], torch.zeros_like(weights)
        direction[free] = -torch.linalg.solve(curve.curvature[free][:, free], slope)
        gain = -float(slope @ direction[free])
        if gain <= TOLERANCE * (1 + abs(curve.value)):
            break
        size = 1.0
        while size > 1e-6:
            trial = weights + size * direction
            trial = trial.where(signed, trial.clamp_min(0))
            likelihood_there = negative_log_likelihood(choices, trial)
            there = _penalised(likelihood_there, trial - prior, precision)
            if there.value <= curve.value + 1e-4 * float(curve.gradient @ (trial - weights)):
                break
            size /= 2
        else:
            break  # float32 features allow no further gain
        weights, curve, likelihood, num_steps = trial, there, likelihood_there, num_steps + 1
    return FittedWeights(
        weights.float(), likelihood.value / max(1, len(choices.features)), num_steps
    )


def _penalised(curve: LossCurve, apart: Tensor, precision: Tensor) -> LossCurve:
    """Add apart' precision apart / 2."""
    pull = precision @ apart
    value = curve.value + float(apart @ pull) / 2
    return LossCurve(value, curve.gradient + pull, curve.curvature + precision)


DRAWN_AT_ONCE = 256
"""Queries whose lists are merged together."""
MAX_CELLS = 1 << 22
"""Pairs of a query and an item that are marked at a time."""
UNKNOWN_KIND = -1


class DrawnChoices(NamedTuple):
    """Choices to fit on, and whose they are."""

    choices: Choices
    """Choices of Q queries."""
    queries: Tensor
    """[Q] int64, number of each query in the lists."""
    item_rows: Tensor
    """[Q, C] int64, -1 where there is no candidate."""


def draw_choices(
    lists: Mapping[str, TopK],
    targets: Jagged,
    scales: Tensor,
    *,
    max_queries: int,
    max_candidates: int,
) -> DrawnChoices:
    """Keep a bounded number of queries and candidates, the same each time.

    Of more than C candidates the first half by reciprocal rank stays, and of the rest an even
    sample that counts for all of it: targets far down then compete with as many as they did.
    """
    found = queries_found(lists, targets)
    if len(found) == 0:
        raise ValueError(
            f"none of the {targets.batch_size} queries has a target in the lists of "
            f"{sorted(lists)}, so there is nothing to learn; request longer lists, and check that "
            "lists and targets are of the same queries"
        )
    queries = evenly(found, max_queries)
    parts = []
    for block in torch.split(queries, DRAWN_AT_ONCE):
        merged = merge_lists({name: TopK(*(p[block] for p in top)) for name, top in lists.items()})
        weights = _target_weights(merged.item_rows, targets.take(block))
        is_target = weights > 0
        places, offsets = _kept(merged.item_rows > 0, is_target, max_candidates)
        features = merged.features(scales).flatten(2)  # [q, L, P]
        features = features.gather(1, places[:, :, None].expand(-1, -1, features.shape[2]))
        chosen = weights.gather(1, places)
        chosen /= chosen.sum(1, keepdim=True)
        parts.append((features, offsets, chosen, merged.item_rows.gather(1, places)))
    features, offsets, chosen, rows = (torch.cat(part) for part in zip(*parts, strict=True))
    return DrawnChoices(Choices(features, offsets, chosen), queries, rows)


def queries_found(lists: Mapping[str, TopK], targets: Jagged) -> Tensor:
    """Number the queries with a target in any list, ascending."""
    found = torch.zeros(targets.batch_size, dtype=torch.bool)
    for top in lists.values():
        found |= (_target_weights(top.item_rows, targets) > 0).any(1)
    return found.nonzero().squeeze(1)


def kinds_of(values: Tensor | None, bounds: Sequence[float], num_values: int) -> Tensor:
    """Return which kind each value is of, [num_values] int64.

    Values below the first bound are of kind 0, from it to below the second of kind 1, and so on;
    NaN and missing values are of `UNKNOWN_KIND`. Without bounds there is kind 0 alone.
    """
    if not bounds:
        return torch.zeros(num_values, dtype=torch.int64)
    if values is None:
        return torch.full((num_values,), UNKNOWN_KIND)
    numbers = values.double()
    cuts = torch.tensor(bounds, dtype=torch.float64)
    kinds = torch.bucketize(numbers, cuts, right=True)
    return kinds.masked_fill(numbers.isnan(), UNKNOWN_KIND)


def kinds_of_rows(kinds: Tensor, item_rows: Tensor) -> Tensor:
    """Look up the kind [N] of item rows of any shape; `UNKNOWN_KIND` outside [1, N)."""
    known = (item_rows > 0) & (item_rows < len(kinds))
    if len(kinds) == 0:
        return torch.full_like(item_rows, UNKNOWN_KIND)
    return kinds[item_rows.where(known, 0)].masked_fill(~known, UNKNOWN_KIND)


def evenly(values: Tensor, at_most: int) -> Tensor:
    """Keep at most this many values, evenly spaced, in order."""
    if len(values) <= at_most:
        return values
    return values[torch.arange(at_most) * len(values) // at_most]


def _target_weights(item_rows: Tensor, targets: Jagged) -> Tensor:
    """Weigh the places [B, k] that hold the n-th target of the query by 1 / n; 0 elsewhere."""
    parts = [item_rows.clamp_min(0), targets.values]
    width = 1 + max((int(part.max()) for part in parts if part.numel()), default=0)
    found = torch.zeros(item_rows.shape)
    # A table of all items: work by the sizes of both, however many targets one query has.
    for block in torch.split(torch.arange(len(item_rows)), max(1, MAX_CELLS // width)):
        own = targets.take(block)
        owners = own.segments()
        place = torch.arange(1, len(owners) + 1) - own.offsets[owners]
        weights = torch.zeros(len(block), width)
        weights[owners, own.values.clamp_min(0)] = 1 / place
        found[block] = weights.gather(1, item_rows[block].clamp_min(0))
    return found.where(item_rows > 0, 0.0)


def _kept(is_item: Tensor, is_target: Tensor, max_candidates: int) -> tuple[Tensor, Tensor]:
    """Choose places of [B, L] candidates, those first in the list coming first."""
    length = is_item.shape[1]
    if length <= max_candidates:
        places = torch.arange(length).expand(len(is_item), -1)
        return places, torch.zeros(is_item.shape).masked_fill(~is_item, -torch.inf)
    num_head = max_candidates // 2
    others = is_item & ~is_target
    place = others.long().cumsum(1) - 1  # [B, L] place among those that are no target
    num_sampled = (max_candidates - is_target.sum(1, keepdim=True) - num_head).clamp_min(1)
    num_tail = (others.sum(1, keepdim=True) - num_head).clamp_min(1)
    in_tail = others & (place >= num_head)
    # Exactly num_sampled of num_tail places pass, evenly spaced; all where they are fewer.
    passes = ((place - num_head) * num_sampled) % num_tail < num_sampled
    head = others & (place < num_head)
    kept = is_target | head | (in_tail & passes)
    order = (~kept).byte().sort(dim=1, stable=True).indices[:, :max_candidates]
    stands_for = (num_tail / num_sampled).clamp_min(1).log()
    offsets = torch.where(in_tail, stands_for, 0.0).masked_fill(~kept, -torch.inf)
    return order, offsets.gather(1, order)
