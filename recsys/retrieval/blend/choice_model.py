"""Fit weights under which what users chose stands out among what they could have chosen.

Conditional logit (McFadden, 1974): a candidate is chosen with the softmax of its weighted features
over the query's candidates. Its log likelihood is concave, so projected Newton steps (Bertsekas,
SIAM J. Control Optim. 1982) find the one best set of weights >= 0, whatever the start.

Axes: Q queries, C candidates of a query, P features, I kinds of items.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK_QUERIES = 128
"""Queries whose features are looked at together; small enough to stay in cache."""
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
    """[Q, C] float32, sums to 1 for each query."""

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


class Curve(NamedTuple):
    """A loss and its first two derivatives at some weights."""

    value: float
    gradient: Tensor
    """[P] float64."""
    curvature: Tensor
    """[P, P] float64."""


class Fitted(NamedTuple):
    """The best weights and what they reach."""

    weights: Tensor
    """[P] float32."""
    loss: float
    """Mean negative log likelihood of the choices, nats; the penalty is left out."""
    num_steps: int


def negative_log_likelihood(choices: Choices, weights: Tensor) -> Curve:
    """Sum over all queries, at weights [P]."""
    width = choices.features.shape[2]
    value, gradient = 0.0, torch.zeros(width, dtype=torch.float64)
    curvature = torch.zeros(width, width, dtype=torch.float64)
    for begin in range(0, len(choices.features), BLOCK_QUERIES):
        features, offsets, chosen = (part[begin : begin + BLOCK_QUERIES] for part in choices)
        logits = (features @ weights.float() + offsets).double()  # [q, C]
        total = logits.logsumexp(1, keepdim=True)
        value += float(torch.where(chosen > 0, chosen * (total - logits), 0.0).sum())
        share = (logits - total).exp().float()
        mean = (share[:, None] @ features).squeeze(1)  # [q, P]
        gradient += (mean - (chosen[:, None] @ features).squeeze(1)).sum(0).double()
        flat = features.reshape(-1, width)
        spread = (flat * share.reshape(-1, 1)).T @ flat - mean.T @ mean
        curvature += spread.double()
    return Curve(value, gradient, curvature)


def fit_weights(
    choices: Choices, prior: Tensor, precision: Tensor, *, non_negative: bool | Tensor = True
) -> Fitted:
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
    return Fitted(weights.float(), likelihood.value / max(1, len(choices.features)), num_steps)


def _penalised(curve: Curve, apart: Tensor, precision: Tensor) -> Curve:
    """Add apart' precision apart / 2."""
    pull = precision @ apart
    value = curve.value + float(apart @ pull) / 2
    return Curve(value, curve.gradient + pull, curve.curvature + precision)
