"""Training of shared, own, fine-tuned and adapted models, for ``benchmark_quality.py``.

Axes: W windows, S steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recsys.data.dataset import Sequences
from recsys.data.domains import domain_window_batch, domain_windows
from recsys.data.windows import BatchOrder, Windows, training_windows
from recsys.models.sequence.model import SequenceModel
from recsys.training.loop import LoopConfig, train
from recsys.training.optim import AdamWConfig, ScheduleConfig, adamw
from recsys.training.progress import SilentProgress, SilentTracker
from tests.benchmarks.adapters.domains import Data
from tests.benchmarks.adapters.plans import Plan
from tests.benchmarks.adapters.tables import METRIC

NUM_EVALUATIONS = 10


@dataclass(frozen=True)
class Group:
    """Windows whose labels are ranked against the same items."""

    sequences: Sequences
    windows: Windows
    own: NDArray[np.bool_]
    """[N] whether an item is a label here."""
    softmax_over: Tensor | None
    """Item rows; None is every item."""

    def loss(self, model: SequenceModel, chosen: NDArray[np.int64]) -> Tensor:
        starts, ends = self.windows.starts[chosen], self.windows.ends[chosen]
        batch = domain_window_batch(self.sequences, starts, ends, self.own)
        return model.loss(batch.to(next(model.parameters()).device), self.softmax_over)


def groups_of(
    data: Data, sequences: Sequences, domains: list[int], plan: Plan, model: SequenceModel
) -> list[Group]:
    """Lay out what a model of some domains learns from."""
    windows = training_windows(sequences, "train", model.config.max_length)
    device = next(model.parameters()).device
    if plan.softmax_over == "catalogue":
        own = np.isin(data.domain_of_item, domains)
        return [Group(sequences, domain_windows(sequences, windows, own), own, None)]
    groups = []
    for domain in domains:
        own = data.own(domain)
        softmax_over = torch.from_numpy(np.flatnonzero(own)).to(device)
        groups.append(Group(sequences, domain_windows(sequences, windows, own), own, softmax_over))
    return groups


class Turns:
    """Which windows each step learns from: groups take turns, in proportion to their size."""

    def __init__(self, groups: list[Group], plan: Plan, seed: int) -> None:
        self.groups = groups
        sizes = [min(plan.batch_size, len(one.windows)) for one in groups]
        pairs = list(zip(groups, sizes, strict=True))
        self.orders = [BatchOrder(len(one.windows), size, seed) for one, size in pairs]
        shares = [max(1, round(plan.epochs * len(one.windows) / size)) for one, size in pairs]
        if plan.replayed:
            # Of domains that the base knows, as many steps each as of the new one.
            shares = [shares[0]] * len(groups)
        turns = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(groups)), shares))
        # Of each step, how many its group had before it.
        self.counts = np.zeros(len(turns), np.int64)
        for group, share in enumerate(shares):
            self.counts[turns == group] = np.arange(share)
        self.turns = turns

    def loss(self, model: SequenceModel, step: int) -> Tensor:
        group = int(self.turns[step])
        chosen = self.orders[group].indices(int(self.counts[step]))
        return self.groups[group].loss(model, chosen)


class Averaged:
    """A running mean of parameters over the steps, for when they are judged."""

    def __init__(self, trained: nn.Module, decay: float) -> None:
        self.parameters = [one for one in trained.parameters() if one.requires_grad]
        self.decay, self.num_steps = decay, 0
        self.means = [one.detach().clone() for one in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        self.num_steps += 1
        # Young means forget faster, or they would stay at the start.
        keep = min(self.decay, self.num_steps / (self.num_steps + 9))
        for mean, one in zip(self.means, self.parameters, strict=True):
            mean.lerp_(one, 1 - keep)

    @torch.no_grad()
    def swap(self) -> None:
        for mean, one in zip(self.means, self.parameters, strict=True):
            held = one.detach().clone()
            one.copy_(mean)
            mean.copy_(held)


def fit(
    trained: nn.Module,
    model: SequenceModel,
    groups: list[Group],
    plan: Plan,
    judge: Callable[[SequenceModel], float] | None,
    seed: int,
) -> None:
    """Train parameters of ``trained`` by the model's loss.

    The best of ten validations stays; without a judge the last weights do.
    """
    torch.manual_seed(seed)
    turns = Turns(groups, plan, seed)
    averaged = Averaged(trained, plan.average)
    best: list[tuple[float, list[Tensor]]] = []

    def loss_at(step: int) -> Tensor:
        if step and plan.average:
            averaged.step()
        return turns.loss(model, step)

    def evaluate(_: nn.Module) -> dict[str, float]:
        assert judge is not None
        if plan.average:
            averaged.swap()
        value = judge(model)
        if not best or value > best[0][0]:
            best[:] = [(value, [one.detach().clone() for one in averaged.parameters])]
        if plan.average:
            averaged.swap()
        return {METRIC: value}

    num_steps = len(turns.turns)
    train(
        trained,
        loss_at,
        adamw(trained, AdamWConfig(tables="dense")),
        LoopConfig(
            num_steps=num_steps,
            schedule=ScheduleConfig(
                learning_rate=plan.learning_rate,
                warmup_steps=max(1, num_steps // 20),
                decay="linear",
                final_share=0.02,
            ),
            eval_every=max(1, -(-num_steps // NUM_EVALUATIONS)),
            patience=None,
            deterministic=False,
        ),
        evaluate=None if judge is None else evaluate,
        tracker=SilentTracker(),
        progress=SilentProgress(),
    )
    kept = best[0][1] if best else averaged.means if plan.average else None
    if kept is not None:
        with torch.no_grad():
            for one, value in zip(averaged.parameters, kept, strict=True):
                one.copy_(value)
    # Models forget what they encoded when their mode is set.
    model.eval()
