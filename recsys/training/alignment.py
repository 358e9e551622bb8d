"""Rewards of generated items and the losses that raise them: a generative model's second phase.

Every reward is computed from data, none is judged by a model. ``grpo_loss`` follows GRPO (Shao et
al. 2024, arXiv:2402.03300) as corrected by Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): an
advantage is the reward less the group's mean, not divided by the group's deviation, which would
weigh contexts by how rarely they are rewarded, and an ID's log-probability is a sum over its codes.
``sdpo_loss`` is the softmax form of DPO with several rejected items (S-DPO, arXiv:2406.09215).

Axes: B contexts, G items of a context, L levels, K codes of a level, N item rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

MOST_VALUE = 3.0
"""Deviations beyond which a value counts no more, so that one dear item does not lead all."""


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """How much each reward counts.

    Raises:
        ValueError: If a weight is below 0, or all are 0.
    """

    hit: float = 1.0
    """1 for the item that came next, 0 for others."""
    ndcg: float = 0.0
    """What the list of the group's items, ordered by the model's probability, would lose of its
    NDCG without the item: above 0 for the item that came next, below 0 for those ranked before
    it."""
    novelty: float = 0.0
    """Inverse popularity: from 0 for the most frequent item to 1 for one without events, by the
    logarithm of its events."""
    value: float = 0.0
    """The item's value, in deviations from the mean of all items, within 3; 0 where it is unknown.
    A deviation moves an item's log-probability by up to this weight over ``kl_weight``."""

    def __post_init__(self) -> None:
        weights = (self.hit, self.ndcg, self.novelty, self.value)
        if min(weights) < 0 or max(weights) == 0:
            raise ValueError(f"weights of rewards must be >= 0 and one above 0, got {weights}")


@dataclass(frozen=True, kw_only=True)
class AlignmentConfig:
    """A second phase of training, by rewards, that validation keeps only where it is better.

    Raises:
        ValueError: If a number is out of its range.
    """

    method: Literal["off", "grpo", "dpo"] = "off"
    """``grpo`` draws items from the model and raises those of a reward above their group's mean;
    ``dpo`` raises the item that came next above items that the model's beams rank high, and reads
    no rewards."""
    rewards: RewardConfig = field(default_factory=RewardConfig)
    group_size: int = 16
    """Items drawn, or rejected, for a context."""
    kl_weight: float = 0.02
    """Of the divergence from the model before this phase, in GRPO's loss."""
    dpo_beta: float = 3.0
    """Factor of the log-ratios in DPO's loss; higher stays closer to the model before."""
    divide_by_std: bool = False
    """Whether advantages are divided by their group's deviation, as GRPO was published; it biases
    the gradient to contexts that are rewarded nearly always or nearly never."""
    dropped_events: float = 0.0
    """Contexts lose events at random, each its own share of at most this."""
    batch_size: int = 128
    """Contexts of a step: one place drawn from each of so many windows."""
    num_steps: int = 300
    """Of the phase; validation may keep fewer."""
    evaluations: int = 6
    """Looks at validation, evenly over the steps; the best weights are kept, or those before."""
    learning_rate: float = 3e-5
    """Peak; it decays linearly."""
    value_cost: float = 0.02
    """Share of validation's N@10 that may be lost for value: with a reward of values those weights
    are kept whose lists are worth most among those that lose no more."""

    def __post_init__(self) -> None:
        if self.method not in ("off", "grpo", "dpo"):
            raise ValueError(f"method is 'off', 'grpo' or 'dpo', got {self.method!r}")
        for name, least in (
            ("group_size", 2),
            ("batch_size", 1),
            ("num_steps", 1),
            ("evaluations", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if self.rewards.value and self.method == "dpo":
            raise ValueError(
                'rewards.value needs method "grpo": "dpo" reads no rewards; set the method or '
                f"rewards.value = 0, got {self.rewards.value}"
            )
        if not 0 <= self.value_cost < 1:
            raise ValueError(f"value_cost must be in [0, 1), got {self.value_cost}")
        if self.kl_weight < 0:
            raise ValueError(f"kl_weight must be >= 0, got {self.kl_weight}")
        for name in ("dpo_beta", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if not 0 <= self.dropped_events < 1:
            raise ValueError(f"dropped_events must be in [0, 1), got {self.dropped_events}")


class ItemRewards(NamedTuple):
    """What is rewarded of every item, whatever came next."""

    novelty: Tensor
    """[N]"""
    value: Tensor | None = None
    """[N]; None where values are not rewarded."""


def novelty_of(item_counts: Tensor) -> Tensor:
    """Give every item 1 less its share of the logarithm of the highest count, [N] -> [N]."""
    counts = torch.log1p(item_counts.float())
    return 1 - counts / counts.max().clamp(min=1e-12)


def value_of(item_values: Tensor) -> Tensor:
    """Give every item its value in deviations from the mean, within 3, [N] -> [N].

    Args:
        item_values: NaN where an item's is not known, which counts as the mean.
    """
    known = item_values[~item_values.isnan()].double()
    apart = (item_values - known.mean()) / known.std(correction=0).clamp(min=1e-12)
    return apart.clamp(-MOST_VALUE, MOST_VALUE).nan_to_num(0.0).float()


def item_rewards(
    config: RewardConfig,
    item_rows: Tensor,
    log_probabilities: Tensor,
    labels: Tensor,
    about: ItemRewards,
) -> Tensor:
    """Reward each item of each group, [B, G].

    Args:
        config: Weights.
        item_rows: [B, G]; an item may be drawn more than once.
        log_probabilities: Of the items, [B, G].
        labels: The item that came next, [B].
        about: What is rewarded of each item, whatever came next.
    """
    hits = (item_rows == labels[:, None]).float()
    reward = config.hit * hits
    if config.ndcg:
        reward = reward + config.ndcg * ndcg_shares(item_rows, log_probabilities, hits)
    if config.novelty:
        reward = reward + config.novelty * about.novelty[item_rows]
    if config.value and about.value is not None:
        reward = reward + config.value * about.value[item_rows]
    return reward


def ndcg_shares(item_rows: Tensor, log_probabilities: Tensor, hits: Tensor) -> Tensor:
    """Compute NDCG of the distinct items, best first, less NDCG without each, [B, G]."""
    same = item_rows[:, :, None] == item_rows[:, None, :]  # [B, G, G]
    first = ~torch.tril(same, diagonal=-1).any(2)  # [B, G], of equal items the first counts
    score = log_probabilities
    ahead = (score[:, None, :] > score[:, :, None]) | (
        (score[:, None, :] == score[:, :, None]) & (item_rows[:, None, :] < item_rows[:, :, None])
    )
    rank = 1 + (ahead & first[:, None, :]).sum(2)  # [B, G]
    of_hit = (rank * hits).amax(1, keepdim=True)  # [B, 1], 0 without a hit
    has_hit = of_hit > 0
    gain = 1 / torch.log2(1 + of_hit.clamp(min=1))
    gain_without = 1 / torch.log2(1 + (of_hit - 1).clamp(min=1))
    before = (rank < of_hit) & has_hit
    return gain * hits + torch.where(before, gain - gain_without, 0.0)


def advantages(rewards: Tensor, *, divide_by_std: bool = False) -> Tensor:
    """Compare rewards with the mean of their group, [B, G]."""
    centred = rewards - rewards.mean(1, keepdim=True)
    if divide_by_std:
        centred = centred / (rewards.std(1, keepdim=True, correction=0) + 1e-6)
    return centred


def id_sums(levels: Sequence[Tensor], codes: Tensor) -> Tensor:
    """Add up the log-probabilities of codes, L times [B, G, K] and [B, G, L] -> [B, G]."""
    parts = [level.gather(2, codes[..., index, None])[..., 0] for index, level in enumerate(levels)]
    return torch.stack(parts).sum(0)


def divergence(levels: Sequence[Tensor], reference: Sequence[Tensor]) -> Tensor:
    """Add up KL(model || reference) of the codes behind drawn prefixes over levels, [B, G].

    Its mean over draws of the model is the divergence of whole IDs.

    Args:
        levels: Log-probabilities of each level's codes, [B, G, K]; -inf where no item follows.
        reference: Of the reference.
    """
    total = torch.zeros(levels[0].shape[:2], device=levels[0].device)
    for own, other in zip(levels, reference, strict=True):
        live = own > -torch.inf
        apart = torch.where(live, own, 0.0) - torch.where(live, other, 0.0)
        total = total + (own.exp() * apart).sum(2)
    return total


def grpo_loss(
    advantage: Tensor,
    log_probabilities: Tensor,
    apart: Tensor,
    weights: Tensor,
    kl_weight: float,
) -> Tensor:
    """Policy gradient of items drawn from the model itself, with KL to the reference: a scalar.

    Each batch is drawn anew, so the ratio to the model that drew is 1 and there is nothing to clip.

    Args:
        advantage: [B, G], without gradient.
        log_probabilities: [B, G].
        apart: KL of each draw's codes to the reference, [B, G].
        weights: Of contexts, [B].
        kl_weight: Of the divergence.
    """
    each = (kl_weight * apart - advantage.detach() * log_probabilities).mean(1)  # [B]
    return (weights * each).sum() / weights.sum().clamp(min=1e-12)


def sdpo_loss(
    chosen: Tensor, rejected: Tensor, is_rejected: Tensor, weights: Tensor, beta: float
) -> Tensor:
    """Softmax DPO, a scalar.

    Args:
        chosen: Log-ratio of model to reference of the item that came next, [B].
        rejected: Of the rejected ones, [B, G].
        is_rejected: Which of these there are, [B, G].
        weights: Of contexts, [B].
        beta: Factor of the ratios.
    """
    margin = beta * (rejected - chosen[:, None])
    against = torch.logsumexp(margin.masked_fill(~is_rejected, -torch.inf), dim=1)  # [B]
    counted = weights * is_rejected.any(1)
    each = functional.softplus(torch.where(is_rejected.any(1), against, 0.0))
    return (counted * each).sum() / counted.sum().clamp(min=1e-12)
