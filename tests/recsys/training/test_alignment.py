from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from recsys.training.alignment import (
    AlignmentConfig,
    ItemRewards,
    RewardConfig,
    advantages,
    divergence,
    grpo_loss,
    id_sums,
    item_rewards,
    ndcg_shares,
    novelty_of,
    sdpo_loss,
    value_of,
)

ITEMS = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
"""Codes of four items; a row is an item."""


class Table:
    """A policy with a logit for each first code, and for each second code behind it."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.first = torch.randn(2, generator=generator).requires_grad_()
        self.second = torch.randn(2, 2, generator=generator).requires_grad_()

    def levels(self, codes: Tensor) -> list[Tensor]:
        size = codes.shape[:2]
        first = torch.log_softmax(self.first, 0).expand(*size, -1)
        return [first, torch.log_softmax(self.second, 1)[codes[..., 0]]]

    def probabilities(self) -> Tensor:
        return id_sums(self.levels(ITEMS[None]), ITEMS[None])[0].exp()

    def step(self, loss: Tensor, rate: float) -> None:
        for weights, grad in zip(
            (self.first, self.second),
            torch.autograd.grad(loss, (self.first, self.second)),
            strict=True,
        ):
            weights.data -= rate * grad


def draw(policy: Table, generator: torch.Generator, contexts: int = 64) -> Tensor:
    probabilities = policy.probabilities().detach().expand(contexts, -1)
    return torch.multinomial(probabilities, 8, replacement=True, generator=generator)


def grpo_step(
    policy: Table, reference: Table, rewards: Tensor, generator: torch.Generator, kl: float
) -> None:
    rows = draw(policy, generator)
    codes = ITEMS[rows]
    levels = policy.levels(codes)
    with torch.no_grad():
        before = reference.levels(codes)
    apart = divergence(levels, before)
    advantage = advantages(rewards[rows])
    loss = grpo_loss(advantage, id_sums(levels, codes), apart, torch.ones(len(rows)), kl)
    policy.step(loss, 0.5)


@torch.no_grad()
def exact_divergence(policy: Table, reference: Table) -> float:
    own, other = policy.probabilities(), reference.probabilities()
    return float((own * (own / other).log()).sum())


def test_grpo_raises_the_rewarded_item_alone() -> None:
    policy, reference, rewards = Table(), Table(), torch.tensor([0.0, 0.0, 1.0, 0.0])
    before = policy.probabilities().detach()
    generator = torch.Generator().manual_seed(1)
    grpo_step(policy, reference, rewards, generator, 0.0)
    after = policy.probabilities()
    assert after[2] > before[2]
    for _ in range(200):
        grpo_step(policy, reference, rewards, generator, 0.0)
    assert policy.probabilities()[2] > 0.95


def test_the_divergence_bounds_how_far_grpo_goes() -> None:
    rewards, reached = torch.tensor([0.0, 0.0, 1.0, 0.0]), {}
    for kl in (0.0, 0.5):
        policy, reference, generator = Table(), Table(), torch.Generator().manual_seed(1)
        for _ in range(400):
            grpo_step(policy, reference, rewards, generator, kl)
        reached[kl] = exact_divergence(policy, reference)
        if kl:
            # The best policy has probabilities in proportion to reference * exp(reward / kl).
            best = reference.probabilities() * (rewards * 7 / 8 / kl).exp()
            torch.testing.assert_close(policy.probabilities(), best / best.sum(), atol=0.05, rtol=0)
    assert reached[0.5] < 0.5 * reached[0.0]


def test_the_mean_of_the_draws_divergence_is_that_of_whole_ids() -> None:
    policy, reference = Table(), Table()
    policy.first.data += torch.tensor([0.7, -0.2])
    policy.second.data *= -1
    with torch.no_grad():
        apart = divergence(policy.levels(ITEMS[None]), reference.levels(ITEMS[None]))[0]
        assert float((policy.probabilities() * apart).sum()) == pytest.approx(
            exact_divergence(policy, reference), abs=1e-6
        )


@pytest.mark.parametrize("divide_by_std", [False, True])
def test_dividing_by_the_deviation_weighs_contexts_by_how_seldom_they_are_rewarded(
    divide_by_std: bool,
) -> None:
    # One hit in 16 draws against eight in 16: what the hits' advantages add up to.
    rewards = torch.zeros(2, 16)
    rewards[0, :1] = rewards[1, :8] = 1
    each = (advantages(rewards, divide_by_std=divide_by_std) * rewards).sum(1)
    share = torch.tensor([1 / 16, 8 / 16])
    expected = 16 * share * (1 - share)
    if divide_by_std:
        expected = 16 * (share * (1 - share)).sqrt()
    torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-4)


def ndcg(items: list[int], label: int) -> float:
    return 1 / math.log2(2 + items.index(label)) if label in items else 0.0


def test_an_items_share_of_ndcg_is_what_the_list_loses_without_it() -> None:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(1, 9, (50, 6), generator=generator)
    scores = torch.randn(9, generator=generator)[rows]
    labels = torch.randint(1, 9, (50,), generator=generator)
    found = ndcg_shares(rows, scores, (rows == labels[:, None]).float())
    for row, score, label, shares in zip(rows, scores, labels, found, strict=True):
        ordered = [int(row[place]) for place in score.argsort(descending=True)]
        items = list(dict.fromkeys(ordered))
        for item, share in zip(row.tolist(), shares.tolist(), strict=True):
            without = [other for other in items if other != item]
            lost = ndcg(items, int(label)) - ndcg(without, int(label))
            assert share == pytest.approx(lost, abs=1e-6)


def test_rewards_add_up_by_their_weights() -> None:
    novelty = novelty_of(torch.tensor([0, 7, 0, 1]))
    torch.testing.assert_close(novelty, torch.tensor([1.0, 0.0, 1.0, 2 / 3]))
    config = RewardConfig(hit=2.0, novelty=0.5)
    rows, labels = torch.tensor([[1, 2, 3]]), torch.tensor([3])
    about = ItemRewards(novelty)
    found = item_rewards(config, rows, torch.zeros(1, 3), labels, about)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.5, 2 + 1 / 3]]))
    about = ItemRewards(novelty, torch.tensor([0.0, -1.0, 3.0, 0.5]))
    config = RewardConfig(hit=2.0, value=0.1)
    found = item_rewards(config, rows, torch.zeros(1, 3), labels, about)
    torch.testing.assert_close(found, torch.tensor([[-0.1, 0.3, 2.05]]))


def test_values_count_by_their_distance_from_the_mean_and_unknown_ones_as_the_mean() -> None:
    nan = torch.nan
    torch.testing.assert_close(
        value_of(torch.tensor([nan, 1.0, 3.0, nan])), torch.tensor([0.0, -1.0, 1.0, 0.0])
    )
    values = torch.ones(201)
    values[0], values[200] = nan, 1e6
    found = value_of(values)
    assert found[200] == 3.0
    assert found[0] == 0.0
    assert found[1:200].unique().numel() == 1


def test_softmax_dpo_of_one_rejected_item_is_dpo() -> None:
    chosen, rejected = torch.tensor([0.3, -1.0]), torch.tensor([[0.1], [2.0]])
    there, weights = torch.ones(2, 1, dtype=torch.bool), torch.ones(2)
    found = sdpo_loss(chosen, rejected, there, weights, 0.5)
    dpo = -torch.nn.functional.logsigmoid(0.5 * (chosen - rejected[:, 0])).mean()
    torch.testing.assert_close(found, dpo)


def test_softmax_dpo_leaves_out_what_is_not_rejected_and_contexts_without_any() -> None:
    chosen = torch.zeros(2, requires_grad=True)
    rejected = torch.tensor([[0.0, 9.0], [5.0, 5.0]])
    there = torch.tensor([[True, False], [False, False]])
    loss = sdpo_loss(chosen, rejected, there, torch.ones(2), 1.0)
    assert loss.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(loss, chosen)
    torch.testing.assert_close(gradient, torch.tensor([-0.5, 0.0]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "ppo"}, "method is 'off', 'grpo' or 'dpo', got 'ppo'"),
        ({"group_size": 1}, "group_size must be >= 2, got 1"),
        ({"kl_weight": -0.1}, "kl_weight must be >= 0"),
        ({"dropped_events": 1.0}, "dropped_events must be in"),
        ({"value_cost": 1.0}, "value_cost must be in"),
        ({"method": "dpo", "rewards": RewardConfig(value=0.1)}, 'needs method "grpo"'),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlignmentConfig(**settings)  # type: ignore[arg-type]


def test_rewards_without_any_weight_are_refused() -> None:
    with pytest.raises(ValueError, match="one above 0"):
        RewardConfig(hit=0.0)
