"""Parts of a training step in one process: what several ranks would each compute."""

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import StepShare
from recsys.training.ranks import Ranks, Rows

SEED = 3


class WholeOfAStep(StepShare):
    """The whole step, with draws that its parts repeat."""

    def draws(self, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(SEED)


class PartOfAStep(WholeOfAStep):
    """Knows what an earlier round over all parts has left: counts and labels of each."""

    def __init__(self, left: list[list[Tensor]], rank: int, *, is_known: bool) -> None:
        self.left, self.rank, self.is_known, self.calls = left, rank, is_known, 0

    def _of_all(self, own: Tensor) -> list[Tensor]:
        call, self.calls = self.calls, self.calls + 1
        if not self.is_known:
            self.left[self.rank].append(own)
            return [own]
        return [of_rank[call] for of_rank in self.left]

    def all_labels(self, labels: Tensor) -> Tensor:
        return torch.cat(self._of_all(labels))

    def weight(self, labels: Tensor) -> Tensor | float:
        count = (labels > 0).sum(0).double()
        mean = torch.stack(self._of_all(count)).mean(0)
        return (count / mean.clamp(min=1e-9)).float()


class OneOfTwo(Ranks):
    """One of two ranks, without the other."""

    size = 2

    def __init__(self, rank: int, share: PartOfAStep) -> None:
        self.rank, self._share = rank, share

    def part(self, examples: Rows) -> Rows:
        return np.array_split(examples, self.size)[self.rank]

    def share(self, step: int, seed: int) -> PartOfAStep:
        return self._share


def two_parts() -> list[list[OneOfTwo]]:
    """Make the ranks of a first round, which leaves what the second one's need to know."""
    left: list[list[Tensor]] = [[], []]
    return [
        [OneOfTwo(rank, PartOfAStep(left, rank, is_known=known)) for rank in (0, 1)]
        for known in (False, True)
    ]
