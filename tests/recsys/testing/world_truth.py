"""What is true of a generated world: the probability of each task.

Probabilities are whole millionths of logits in whole thousandths, so every platform agrees.

Axes: I any number of cases, U users, N items, G segments, T topics, S slots, K tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TASKS = ("view", "click", "purchase")
MILLION = 1_000_000
WEIGHTS_OF_DRIFT = 16
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The parameters a world was drawn from. Users, items, domains, days, slots count from 0."""

    examination: Ints
    """[S] thousandths."""
    segment_of_user: Ints
    """[U]"""
    topic_of_item: Ints
    """[N]"""
    domain_of_item: Ints
    """[N]"""
    quality_of_item: Ints
    """[N] thousandths of a logit."""
    personas: Ints
    """[2, G, T] in [-100, 100], liking of each topic in domain 0 at the start and at the end."""
    drift_of_day: Ints
    """[days], how far from the start to the end, in sixteenths."""
    base_logits: Ints
    """[K] thousandths."""
    taste: Ints
    """Thousandths of a logit at a liking of 100."""

    @property
    def num_items(self) -> int:
        return len(self.topic_of_item)

    def liking(self, topics: Ints, users: Ints, domains: Ints, days: Ints) -> Ints:
        """Liking of topics in [-100, 100], times sixteen, [I]."""
        segments = self.segment_of_user[users]
        topics = (topics + domains // 2) % self.personas.shape[2]
        start, end = self.personas[0, segments, topics], self.personas[1, segments, topics]
        drifted = self.drift_of_day[days]
        mixed = (WEIGHTS_OF_DRIFT - drifted) * start + drifted * end
        liking: Ints = np.where(domains % 2 == 0, mixed, -mixed)
        return liking

    def step_millionths(
        self, place: int, users: Ints, items: Ints, domains: Ints, days: Ints
    ) -> Ints:
        """Probability of task number ``place`` given the task before it, in millionths, [I].

        A view depends on the item's quality alone, a click on the liking of its topic, a purchase
        on the liking of another topic half way round, so the tasks conflict as the domains do.
        """
        quality = self.quality_of_item[items]
        logits = np.broadcast_to(self.base_logits[place], quality.shape)
        if place == 0:
            logits = logits + quality
        else:
            shift = 0 if place == 1 else self.personas.shape[2] // 2
            liking = self.liking(self.topic_of_item[items] + shift, users, domains, days)
            logits = logits + self.taste * liking // (100 * WEIGHTS_OF_DRIFT) + quality // 2
        rounded: Ints = np.rint(MILLION / (1 + np.exp(-logits / 1_000))).astype(np.int64)
        return rounded

    def probability(
        self,
        task: str,
        users: Ints,
        items: Ints,
        domains: Ints,
        *,
        days: Ints,
        slots: Ints | None = None,
    ) -> NDArray[np.float64]:
        """Probability of a task for any users, items, domains and days, [I].

        Args:
            slots: Where the item is shown; None gives the relevance, that of an examined item.

        Raises:
            ValueError: If there is no such task.
        """
        if task not in TASKS:
            raise ValueError(f"no task {task!r}; there are {', '.join(TASKS)}")
        result = np.ones(len(users)) if slots is None else self.examination[slots] / 1_000
        for place in range(TASKS.index(task) + 1):
            result = result * self.step_millionths(place, users, items, domains, days) / MILLION
        return result
