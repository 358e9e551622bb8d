"""The ranks of a training in several processes: its parts of a step, its sums, its whole state.

Data parallel: each rank computes the loss of its part of the step's batch, and gradients of weights
that every rank holds are averaged in one buffer. Large tables are split by rows (``sharded.py``),
which their backward moves. In-batch negatives are those of the whole batch, so that a step means
the same on any number of ranks.

Axes: P labels of a part.
"""

from __future__ import annotations

import gc
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from recsys.data.batch import StepShare
from recsys.training.checkpoint import random_states, set_random_states
from recsys.training.distributed.sharded import ShardedTables, shard_tables
from recsys.training.optim import load_optimizer_tensors, optimizer_tensors
from recsys.training.passes import AdamWConfig, ShardingConfig
from recsys.training.ranks import ALONE, Ranks, Rows, own_versions

COMPARED = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy")
"""Libraries whose versions must be equal on all nodes."""
TEXT_BYTES = 4096


class RanksError(RuntimeError):
    """The processes of a training do not fit together."""


def local_device(name: str) -> torch.device:
    """Choose this rank's device; RanksError if ranks outnumber GPUs or would share one."""
    if name.startswith("cuda:"):
        raise RanksError(
            f"device = {name!r} names one GPU, and several ranks take one each; set it to 'cuda' "
            "or 'auto'"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cuda":
        return torch.device(name)
    place, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if place >= count:
        raise RanksError(
            f"rank {os.environ.get('RANK', '?')} needs GPU {place}, and {platform.node()} has "
            f"{count}; set torchrun.processes to at most {count}, or device = 'cpu'"
        )
    return torch.device("cuda", place)


@contextmanager
def process_group(device: torch.device, timeout_seconds: float) -> Iterator[None]:
    """Be one rank, by torchrun's variables, until the block ends; RanksError if versions differ."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend, device_id = ("cpu:gloo,cuda:nccl", device) if device.type == "cuda" else ("gloo", None)
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, timeout=timeout, device_id=device_id)
    try:
        check_versions(own_versions(COMPARED))
        yield
    finally:
        dist.destroy_process_group()


def check_versions(own: Mapping[str, str]) -> None:
    """Refuse ranks whose libraries differ: their sums and files would.

    Raises:
        RanksError: Names the nodes and the versions.
    """
    everyone = [json.loads(text) for text in gathered_texts(json.dumps(dict(own)))]
    for name in sorted(own.keys() - {"node"}):
        nodes: dict[str, list[str]] = {}
        for one in everyone:
            nodes.setdefault(one[name], []).append(one["node"])
        if len(nodes) > 1:
            found = "; ".join(f"{what} on {', '.join(on)}" for what, on in sorted(nodes.items()))
            raise RanksError(
                f"the nodes have different versions of {name}: {found}. Install the same lock file "
                "on all nodes"
            )


def gathered_texts(text: str) -> list[str]:
    """Gather the text of every rank on every rank; at most TEXT_BYTES each."""
    encoded = torch.zeros(TEXT_BYTES, dtype=torch.uint8)
    raw = text.encode()[:TEXT_BYTES]
    encoded[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    parts = [torch.empty_like(encoded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, encoded)
    return [bytes(part.tolist()).rstrip(b"\0").decode() for part in parts]


def gathered(values: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Join 1-D tensors of any lengths from all ranks, in the order of the ranks."""
    size = dist.get_world_size()
    # Between the hosts, which know their lengths: no device is waited for.
    length = torch.tensor([len(values)])
    lengths = [torch.empty_like(length) for _ in range(size)]
    dist.all_gather(lengths, length, group)
    counts = torch.cat(lengths).tolist()
    padded = values.new_zeros(max(counts))
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(parts, padded, group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


T = TypeVar("T")
SEED_OF_A_RANK = 1_000_003
OF_RANK = "rank-{}/"
"""Begins the names of a further rank's generators in a checkpoint."""


class RankPart(StepShare):
    """A rank's part of one step."""

    def __init__(self, step: int, seed: int, group: dist.ProcessGroup | None = None) -> None:
        self._seed, self._group = (seed * SEED_OF_A_RANK + step) % (1 << 63), group

    def all_labels(self, labels: Tensor) -> Tensor:
        return gathered(labels, self._group)

    def weight(self, labels: Tensor) -> Tensor | float:
        count = (labels > 0).sum(0).to(torch.float64)
        mean = count.clone()
        dist.all_reduce(mean, group=self._group)
        mean /= dist.get_world_size()
        return (count / mean.clamp(min=1e-9)).float()

    def draws(self, device: torch.device) -> torch.Generator | None:
        return torch.Generator(device).manual_seed(self._seed)


class SeveralRanks(Ranks):
    """One rank among several; torch's process group is joined."""

    def __init__(self, config: ShardingConfig | None = None) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._config = config or ShardingConfig()
        self._tables: ShardedTables | None = None
        # What the next step needs must not wait for this step's exchanges, which one group orders.
        self._ahead: dist.ProcessGroup | None = dist.new_group()

    def part(self, examples: Rows) -> Rows:
        if len(examples) < self.size:
            return examples
        return np.array_split(examples, self.size)[self.rank]

    def share(self, step: int, seed: int) -> StepShare:
        return RankPart(step, seed, self._ahead)

    def shard(
        self, model: nn.Module, config: AdamWConfig, device: torch.device | None = None
    ) -> None:
        if self._tables is None:
            device = device or next(model.parameters()).device
            self._tables = shard_tables(model, config, self._config, device, self._ahead)

    def begin(self, model: nn.Module) -> None:
        with torch.no_grad():
            for weights in self._replicated(model):
                dist.broadcast(weights, src=0)
        if self.rank:
            torch.manual_seed(torch.initial_seed() + SEED_OF_A_RANK * self.rank)

    def mean(self, value: Tensor) -> Tensor:
        total = value.detach().clone()
        dist.all_reduce(total)
        return total / self.size

    def mean_gradients(self, model: nn.Module) -> None:
        """Average in one buffer; a weight without a gradient on any rank stays without one."""
        weights = [one for one in self._replicated(model) if one.requires_grad]
        if not weights:
            return
        device, all_there = weights[0].device, all(one.grad is not None for one in weights)
        has = torch.ones(len(weights), device=device)
        if not all_there:
            has = torch.tensor([float(one.grad is not None) for one in weights], device=device)
        parts = [
            torch.zeros(one.numel(), device=device) if one.grad is None else one.grad.flatten()
            for one in weights
        ]
        buffer = torch.cat([*parts, has])
        dist.all_reduce(buffer)
        buffer /= self.size
        present = [True] * len(weights)
        if not all_there:  # only then the device is waited for
            present = (buffer[-len(weights) :] > 0).tolist()
        place = 0
        for one, is_there in zip(weights, present, strict=True):
            part = buffer[place : place + one.numel()].view_as(one)
            place += one.numel()
            one.grad = part if is_there else None

    def agreed(self, value: float) -> float:
        first = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(first, src=0)
        return float(first)

    def in_turn(self, work: Callable[[], T]) -> T:
        if self.rank:
            dist.barrier()
            return work()
        try:
            return work()
        finally:
            dist.barrier()

    def state_of(self, model: nn.Module) -> dict[str, Tensor]:
        if self._tables is None:
            return super().state_of(model)
        return self._tables.state_of(model)

    def load_state(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self._tables is None:
            super().load_state(model, state)
        else:
            self._tables.load_state(model, state)

    def gather_optimizer_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        replicated = optimizer_tensors(model, optimizer)
        return replicated if self._tables is None else replicated | self._tables.moments()

    def load_optimizer_state(
        self, model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]
    ) -> None:
        rest = dict(tensors)
        if self._tables is not None:
            self._tables.load_moments(rest)
        load_optimizer_tensors(model, optimizer, rest)

    def random_states(self) -> dict[str, Tensor]:
        own = random_states()
        found = dict(own)
        for name in sorted(own):
            parts = [torch.empty_like(own[name]) for _ in range(self.size)]
            dist.all_gather(parts, own[name])
            for rank, state in enumerate(parts[1:], start=1):
                found[f"{OF_RANK.format(rank)}{name}"] = state
        return found

    def set_random_states(self, states: Mapping[str, Tensor]) -> None:
        """Put the generators back; a rank that the checkpoint does not know draws of its own."""
        prefix = OF_RANK.format(self.rank) if self.rank else ""
        own = {
            name.removeprefix(prefix): state
            for name, state in states.items()
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        }
        if "cpu" in own:
            # States of other ranks' devices are not this one's to set.
            set_random_states(_known(own))

    def whole(self, model: nn.Module, best: Mapping[str, Tensor]) -> None:
        if self._tables is None:
            super().whole(model, best)
        else:
            self._tables.make_whole(model, best if self.agreed(float(bool(best))) else None)
            self._tables = None
            # Sharded tables refer to each other in circles, and fill the device until these go.
            gc.collect()
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()

    def _replicated(self, model: nn.Module) -> list[nn.Parameter]:
        sharded = set() if self._tables is None else self._tables.parameters
        return [one for one in model.parameters() if id(one) not in sharded]


def _known(states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Keep the states of devices that are here."""
    count = torch.cuda.device_count()
    return {
        name: state
        for name, state in states.items()
        if not name.startswith("cuda.") or int(name.removeprefix("cuda.")) < count
    }


def present_ranks(config: ShardingConfig | None = None) -> Ranks:
    """Return the ranks of the process group that was joined; one alone without others."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return SeveralRanks(config)
    return ALONE
