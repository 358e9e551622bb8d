"""Processes (ranks) that run a training together; here one alone.

``recsys/training/distributed`` has the ranks of several processes.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from recsys.data.batch import WHOLE, StepShare
from recsys.training.checkpoint import random_states, set_random_states
from recsys.training.optim import load_optimizer_tensors, optimizer_tensors
from recsys.training.passes import AdamWConfig

Rows = NDArray[np.int64]
T = TypeVar("T")


class Ranks:
    """The processes of one training, seen from one of them; here one alone.

    All of them call every method, in the same order.
    """

    rank, size = 0, 1

    def copies(self) -> Ranks:
        """Train the whole model on every rank, without an exchange in its steps."""
        return self if self.size == 1 else Copies(self)

    def part(self, examples: Rows) -> Rows:
        """Take this rank's examples of a step, or all where ranks are fewer."""
        return examples

    def share(self, step: int, seed: int) -> StepShare:
        """Return the share of a step's batch for a loss."""
        return WHOLE

    def shard(
        self, model: nn.Module, config: AdamWConfig, device: torch.device | None = None
    ) -> None:
        """Spread large tables over the ranks' devices, before the model has an optimizer."""

    def begin(self, model: nn.Module) -> None:
        """Start all ranks from the same weights, each with draws of its own."""

    def mean(self, value: Tensor) -> Tensor:
        """Average a scalar over the ranks."""
        return value

    def mean_gradients(self, model: nn.Module) -> None:
        """Average the gradients of all weights that every rank holds."""

    def agreed(self, value: float) -> float:
        """Take the first rank's value, such as of its clock."""
        return value

    def in_turn(self, work: Callable[[], T]) -> T:
        """Do what may clean up a shared folder: the first rank before the others."""
        return work()

    def state_of(self, model: nn.Module) -> dict[str, Tensor]:
        """Gather whole weights at the first rank, on its host where tables are sharded."""
        return model.state_dict()

    def load_state(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Load whole weights; each rank takes what it holds."""
        model.load_state_dict(dict(state))

    def gather_optimizer_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        """Gather the optimizer's state as ``optimizer_tensors`` names it."""
        return optimizer_tensors(model, optimizer)

    def load_optimizer_state(
        self, model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]
    ) -> None:
        """Put back what ``gather_optimizer_state`` gave, of any number of ranks."""
        load_optimizer_tensors(model, optimizer, tensors)

    def random_states(self) -> dict[str, Tensor]:
        """Gather the states of all ranks' generators at the first."""
        return random_states()

    def set_random_states(self, states: Mapping[str, Tensor]) -> None:
        """Put this rank's generators back."""
        set_random_states(states)

    def whole(self, model: nn.Module, best: Mapping[str, Tensor]) -> None:
        """Make the model one that a single process can use, on every rank."""
        if best:
            model.load_state_dict(dict(best))


class Copies(Ranks):
    """One rank of several, each of which trains the whole; the first one's weights count."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self.rank = ranks, ranks.rank

    def agreed(self, value: float) -> float:
        return self._ranks.agreed(value)

    def in_turn(self, work: Callable[[], T]) -> T:
        return self._ranks.in_turn(work)

    def whole(self, model: nn.Module, best: Mapping[str, Tensor]) -> None:
        super().whole(model, best)
        for value in model.state_dict().values():
            torch.distributed.broadcast(value, src=0)


ALONE = Ranks()


def own_versions(libraries: Iterable[str]) -> dict[str, str]:
    """Describe this process's machine, Python and libraries."""
    found = {"node": platform.node(), "python": platform.python_version()}
    for name in libraries:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def means_full(error: BaseException) -> bool:
    """Return True if an error means a full device, which NCCL's errors do not say."""
    if "unhandled cuda error" in str(error) and torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0] < 1 << 30  # with more NCCL begins
    return "out of memory" in str(error).lower()
