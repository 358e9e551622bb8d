"""Ranking worlds with a known truth: domains and tasks that conflict, and a known curve of slots.

A request of a user in a domain shows one item of that domain in each slot. A shown item is examined
with a probability of its slot alone, an examined one gets each feedback with a probability of user,
item and domain. Better items stand higher, except in explored requests, so feedback alone confuses
slot and relevance. The logit of a feedback is

    base + quality + taste * f(user vector, item vector)

with f a sum of waves that every domain has of its own, so that the same pair of vectors is liked in
one and disliked in another. ``like`` has waves of its own, ``purchase`` the negative of
``click``'s. User vectors and qualities are given as numbers; content holds the item vector and a
code of the domain, turned together, with noise. The domain itself is never an input.

Axes: R requests, S slots of a request, M impressions (R * S), U users, N items, T tasks, H waves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.moe.layer import SparseMoe
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import Feedback, RankingBatch
from recsys.models.ranker.config import RankerInputs
from recsys.models.ranker.model import Ranker
from tests.recsys.testing.auc import auc

TASKS = ("click", "like", "purchase")
CODE_DIM = 4


@dataclass(frozen=True, kw_only=True)
class RankingWorldConfig:
    """One world."""

    seed: int
    num_requests: int = 60_000
    num_users: int = 4_000
    num_items: int = 2_000
    num_domains: int = 4
    examination: tuple[float, ...] = (1.0, 0.7, 0.52, 0.4, 0.3, 0.22)
    """Probability that a slot is looked at; its length is S."""
    exploration: float = 0.3
    """Share of requests whose items stand in no order."""
    vector_dim: int = 3
    num_waves: int = 3
    """H, how winding tastes are."""
    frequency: float = 0.6
    taste: float = 2.5
    """Logit of one standard deviation of f."""
    quality: float = 0.5
    """Logit of one standard deviation of quality."""
    base: tuple[float, float, float] = (-0.3, -0.8, -1.2)
    """Logit of each task where quality and taste are 0."""
    code: float = 4.0
    """Length of what content tells of the domain; an item vector's is about 1.7."""
    noise: float = 0.02
    """Standard deviation of what is added to each number of the content."""
    max_history: int = 5


@dataclass(frozen=True, kw_only=True)
class RankingWorld:
    """What happened, and everything that is true of it. Users, items and requests count from 0."""

    config: RankingWorldConfig
    user_vectors: Tensor
    """[U, vector_dim]."""
    content: Tensor
    """[N, vector_dim + CODE_DIM] float32."""
    quality: Tensor
    """[N], standard normal."""
    users: Tensor
    """[R]."""
    domains: Tensor
    """[R]."""
    items: Tensor
    """[R, S], by slot."""
    relevance: Tensor
    """Chance of each feedback on an examined item, [R, S, T] float64."""
    labels: Tensor
    """[R, S, T] float32, 0 or 1."""
    histories: Jagged
    """Item rows (number + 1) that the user clicked in earlier requests, the latest ones."""

    @property
    def inputs(self) -> RankerInputs:
        """Give the sizes of what a ranker reads of this world."""
        config = self.config
        return RankerInputs(
            num_item_rows=config.num_items + 1,
            tasks=TASKS,
            content_dim=self.content.shape[1],
            query_dense=tuple(f"taste_{place}" for place in range(config.vector_dim)),
            candidate_dense=("quality",),
            num_slots=len(config.examination),
        )

    @property
    def catalogue(self) -> ItemCatalogue:
        """Give each item its content; row 0 is no item."""
        empty = ItemCatalogue.empty(len(self.content) + 1)
        content = torch.nn.functional.pad(self.content, (0, 0, 1, 0))
        return ItemCatalogue(content, empty.categories)

    def batch(self, requests: Tensor) -> tuple[RankingBatch, Feedback]:
        """Build the batch of some requests, and what came of them."""
        items, num_slots = self.items[requests], self.items.shape[1]
        queries = JaggedBatch({"history": self.histories.take(requests)})
        candidates = Jagged(
            items.flatten() + 1, torch.arange(len(requests) + 1, device=items.device) * num_slots
        )
        batch = RankingBatch(
            queries,
            candidates,
            self.user_vectors[self.users[requests]],
            self.quality[items].view(-1, 1),
        )
        slots = torch.arange(num_slots, device=items.device).repeat(len(requests))
        return batch, Feedback(self.labels[requests].flatten(0, 1), slots)

    def aucs(self, scores: Tensor, requests: Tensor) -> dict[str, float]:
        """AUC of scores of relevance, [M, T], against what happened, by task.

        Impressions of the first slot alone count: they are always examined, so what position does,
        which no served score knows, does not blur what is compared.
        """
        num_slots = self.items.shape[1]
        found = scores.view(len(requests), num_slots, -1)[:, 0].double().cpu().numpy()
        labels = self.labels[requests, 0].bool().cpu().numpy()
        return {task: auc(found[:, place], labels[:, place]) for place, task in enumerate(TASKS)}

    def domain_of_impressions(self, requests: Tensor) -> Tensor:
        """Name the domain of each impression, [M]; never an input."""
        return self.domains[requests].repeat_interleave(self.items.shape[1])


def ranking_world(config: RankingWorldConfig) -> RankingWorld:
    """Generate a world; the same configuration gives the same numbers."""
    generator = torch.Generator().manual_seed(config.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    num_slots, dim = len(config.examination), config.vector_dim
    domain_of_item = torch.arange(config.num_items) % config.num_domains
    user_vectors, item_vectors = normal(config.num_users, dim), normal(config.num_items, dim)
    quality = normal(config.num_items)
    codes = torch.linalg.qr(normal(CODE_DIM, CODE_DIM)).Q * config.code
    told = torch.cat([item_vectors, codes[domain_of_item % CODE_DIM]], dim=1)
    turn = torch.linalg.qr(normal(dim + CODE_DIM, dim + CODE_DIM)).Q
    content = told @ turn + config.noise * normal(*told.shape)

    users = torch.randint(config.num_users, (config.num_requests,), generator=generator)
    domains = torch.randint(config.num_domains, (config.num_requests,), generator=generator)
    per_domain = config.num_items // config.num_domains
    draws = torch.randint(per_domain, (config.num_requests, num_slots), generator=generator)
    items = draws * config.num_domains + domains[:, None]  # [R, S]
    ordered = items.gather(1, quality[items].argsort(dim=1, descending=True))
    explored = torch.rand(config.num_requests, generator=generator) < config.exploration
    items = torch.where(explored[:, None], items, ordered)

    tastes = _tastes(config, user_vectors[users], item_vectors[items], domains, generator)
    logits = torch.tensor(config.base) + config.quality * quality[items][:, :, None]
    relevance = torch.sigmoid(logits + config.taste * tastes)  # [R, S, T]
    seen = torch.rand(items.shape, generator=generator) < torch.tensor(config.examination)
    happened = torch.rand(relevance.shape, generator=generator) < relevance
    labels = (happened & seen[:, :, None]).float()
    return RankingWorld(
        config=config,
        user_vectors=user_vectors.float(),
        content=content.float(),
        quality=quality.float(),
        users=users,
        domains=domains,
        items=items,
        relevance=relevance,
        labels=labels,
        histories=_histories(users, items, labels[:, :, 0] > 0, config.max_history),
    )


def _tastes(
    config: RankingWorldConfig,
    users: Tensor,
    items: Tensor,
    domains: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Give f of each impression and task, [R, S, T], of variance about 1."""
    shape = (2, config.num_domains, config.num_waves, config.vector_dim)
    along_user, along_item = (
        config.frequency * torch.randn(shape, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    phases = 2 * math.pi * torch.rand(shape[:3], generator=generator, dtype=torch.float64)
    found = []
    for kind in range(2):
        own_user, own_item = along_user[kind][domains], along_item[kind][domains]
        angle = torch.einsum("rd,rhd->rh", users, own_user)[:, None]
        angle = angle + torch.einsum("rsd,rhd->rsh", items, own_item)
        waves = torch.sin(angle + phases[kind][domains][:, None])  # [R, S, H]
        found.append(waves.sum(2) * math.sqrt(2 / config.num_waves))
    return torch.stack([found[0], found[1], -found[0]], dim=2)


def _histories(users: Tensor, items: Tensor, clicked: Tensor, max_history: int) -> Jagged:
    known: dict[int, list[int]] = {}
    lists = []
    rows = (items + 1).tolist()
    for user, shown, clicks in zip(users.tolist(), rows, clicked.tolist(), strict=True):
        own = known.setdefault(user, [])
        lists.append(own[-max_history:])
        own.extend(row for row, click in zip(shown, clicks, strict=True) if click)
    return Jagged.from_lists(lists)


def routing_information(experts: Tensor, groups: Tensor) -> float:
    """Normalised mutual information of experts and groups, both [B]; 1 at one-to-one.

    Mutual information over the mean of both entropies (Strehl and Ghosh 2002, arithmetic mean).
    """
    table = torch.zeros(int(experts.max()) + 1, int(groups.max()) + 1, dtype=torch.float64)
    table.index_put_((experts, groups), torch.ones(len(experts)).double(), accumulate=True)
    joint = table / table.sum()
    first, second = joint.sum(1), joint.sum(0)

    def entropy(shares: Tensor) -> float:
        return -float(torch.special.xlogy(shares, shares).sum())

    together = entropy(first) + entropy(second)
    return 2 * (together - entropy(joint)) / together if together > 0 else 0.0


def drawn_to_one_expert(model: Ranker) -> Ranker:
    """Let ids start small, and a router find groups of items, each with an expert of its own."""
    with torch.no_grad():
        model.item_tower.tables.weight("item").mul_(0.01 / 0.3)
    if isinstance(model.trunk.body, SparseMoe):
        model.trunk.body.router.certainty_weight = 0.1
        model.trunk.body.router.evenness_weight = 0.5
    return model
