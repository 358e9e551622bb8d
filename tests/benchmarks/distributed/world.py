"""A stream of labels of a world of a hundred million rows, made on the device step by step.

Users and items belong to tastes; a user's history and label are of its taste but for some noise,
and within a taste item j occurs as often as 1 / j. So there is something to learn from a stream
that no disk holds, and any number of ranks reads the same one.

Axes: G labels of a step, T history length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch

USER = "user.row"


@dataclass(frozen=True, kw_only=True)
class World:
    """Sizes of the world."""

    num_users: int
    num_items: int
    num_tastes: int = 1000
    history: int = 20
    noise: float = 0.1
    num_events: int = 100_000_000
    seed: int = 7

    def item_counts(self, device: torch.device) -> Tensor:
        """Expected events of each item row, [num_items + 1] int64."""
        each = self.num_items // self.num_tastes
        place = torch.arange(self.num_items, device=device) // self.num_tastes
        share = torch.log1p(1 / (place.double() + 1)) / math.log(each + 1)
        counts = (share * (self.num_events / self.num_tastes)).clamp(min=1).long()
        return torch.cat([counts.new_zeros(1), counts])

    def batch(
        self, step: int, count: int, part: tuple[int, int], device: torch.device
    ) -> tuple[JaggedBatch, Tensor]:
        """Draw the labels of a step and cut out those from ``part[0]`` to ``part[1]``."""
        generator = torch.Generator(device).manual_seed(self.seed * 1_000_003 + step)
        width = self.history + 1

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device, dtype=torch.float64)

        users = (self.num_users ** uniform(count)).long().clamp(1, self.num_users)  # [G]
        # A hash, so that neighbouring users differ.
        taste = users * 2_654_435_761 % self.num_tastes
        each = self.num_items // self.num_tastes
        place = ((each + 1) ** uniform(count, width)).long().clamp(1, each) - 1
        stray = uniform(count, width) < self.noise
        other = (uniform(count, width) * self.num_tastes).long()
        items = 1 + place * self.num_tastes + torch.where(stray, other, taste[:, None])
        own = slice(*part)
        users, items = users[own], items[own]
        lengths = torch.arange(len(users) + 1, device=device) * self.history
        history = Jagged(items[:, :-1].reshape(-1), lengths)
        features = {"history": history, USER: Jagged.one_each(users)}
        return JaggedBatch(features), items[:, -1].contiguous()
