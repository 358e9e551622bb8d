"""Train the members of a sequence model one by one, then put them side by side.

Trained together, members read the same batches in the same order and share one norm that clips
their gradients. Apart, each has its own batches, optimizer, noise and best step, as models of an
ensemble do (Lakshminarayanan et al. 2017, arXiv:1612.01474); what comes out is one model with one
vector all the same. They can be trained at once on several devices.

Axes: D width of a member, N item rows, F content width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.models.item_tower import ItemCatalogue
from recsys.models.sequence import SequenceConfig, SequenceModel
from recsys.training.loop import TrainResult

Trained = tuple[SequenceModel, TrainResult]
CONTENT = "item_tower.content."
SEEDS = 1000
"""Seeds of a run lie below; those of its further members above."""


def member_seed(seed: int, number: int) -> int:
    """Give a member of a run its own seed; the first has the run's."""
    return seed + SEEDS * number


def alone(config: SequenceConfig, number: int) -> SequenceConfig:
    """Describe one member as a model of its own."""
    return replace(
        config,
        embedding_dim=config.embedding_dim // config.num_members,
        num_members=1,
        block=config.blocks_of(number),
        member_blocks=(),
        trained_apart=False,
    )


def train_members(
    config: SequenceConfig, fit_one: Callable[[SequenceConfig, int | None], Trained]
) -> Trained:
    """Train a model at once, or its members apart where the settings say so.

    Args:
        config: The whole model's.
        fit_one: Trains a model of some settings; the number is of the member, None of all.

    Returns:
        The model, in evaluation mode, and how its training went.
    """
    if not config.trained_apart:
        return fit_one(config, None)
    members, results = [], []
    for number in range(config.num_members):
        model, result = fit_one(alone(config, number), number)
        members.append(model)
        results.append(result)
    return side_by_side(config, members), mean_result(results)


def side_by_side(config: SequenceConfig, members: Sequence[SequenceModel]) -> SequenceModel:
    """Join models of one catalogue into one, whose cosines are the mean of theirs.

    Args:
        config: Of the whole.
        members: Trained by the settings that `alone` gives.

    Raises:
        ValueError: Their number or their settings are others.
    """
    expected = [alone(config, number) for number in range(config.num_members)]
    if [member.config for member in members] != expected:
        raise ValueError(
            f"a model of {config.num_members} members is joined from models of their settings, got "
            f"{len(members)} of {[member.config for member in members]}"
        )
    first = members[0]
    categories = Jagged(first._category_rows, first._category_offsets)
    whole = SequenceModel(config, first.inputs, ItemCatalogue(first._content, categories))
    states = [member.state_dict() for member in members]
    joined: dict[str, Tensor] = {}
    for name in whole.state_dict():
        if name.startswith("encoder."):
            number, rest = name.removeprefix("encoder.members.").split(".", 1)
            joined[name] = states[int(number)][f"encoder.members.0.{rest}"]
            continue
        shares = [state[name] for state in states]
        if name == "item_tower.item_counts":
            joined[name] = shares[0]
        else:
            # Tables lie [N, D], the content layer [D, F].
            joined[name] = torch.cat(shares, dim=0 if name.startswith(CONTENT) else 1)
    whole.load_state_dict(joined)
    return whole.to(first._content.device).eval()


def mean_result(results: Sequence[TrainResult]) -> TrainResult:
    """Say how the trainings of all members went; a refit gives each as many steps as the mean."""
    metrics = [result.best_metric for result in results if result.best_metric is not None]
    return TrainResult(
        num_steps=max(result.num_steps for result in results),
        best_step=round(sum(result.best_step for result in results) / len(results)),
        best_metric=sum(metrics) / len(metrics) if metrics else None,
        bad_steps=sum(result.bad_steps for result in results),
        stopped_early=any(result.stopped_early for result in results),
    )
