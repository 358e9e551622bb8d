"""What the fitters of all trained models share: where a training runs and what ends it.

Axes: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from recsys.evaluation.ranking import RankingConfig
from recsys.fitting.queries import EvaluationQueries, measure
from recsys.retrieval.sources import Source
from recsys.training.loop import Evaluate, TrainConfig, TrainResult, train
from recsys.training.optim import adamw
from recsys.training.passes import TrainingConfig
from recsys.training.progress import Progress, SilentProgress, SilentTracker, Tracker
from recsys.training.ranks import ALONE, Ranks

ModelT = TypeVar("ModelT", bound=nn.Module)
CPU = torch.device("cpu")
OF_EVENTS = ("item_counts", "neighbours", "neighbour_shares")
"""Buffers that are counted in the events that a model is fitted on, not trained."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Where one training runs, keeps its state and reports."""

    seed: int
    device: torch.device = CPU
    checkpoint_dir: Path | None = None
    """Folder of the states from which a killed training resumes; None keeps none."""
    progress: Progress = field(default_factory=SilentProgress)
    curve: Tracker = field(default_factory=SilentTracker)
    ranks: Ranks = ALONE
    """The processes that train together."""


@dataclass(frozen=True, kw_only=True)
class Refit:
    """How long a model is trained again, without validation."""

    best_step: int
    """Steps that validation chose."""
    num_examples: int
    """Examples of the training for which it chose them."""
    schedule_steps: int | None = None
    """Steps of that training's learning-rate schedule; None where time did not shorten it."""
    weights: Mapping[str, Tensor] | None = None
    """Weights that are trained on for ``TrainingConfig.refit_epochs``; None starts anew."""
    share: float = 1.0
    """Share of the chosen passes that a refit from the start takes."""


StopBy = EvaluationQueries | Refit
"""Validation queries that pick the best step, or the number of passes of a refit."""


class Fitted(NamedTuple, Generic[ModelT]):
    """A trained model and how its training went."""

    model: ModelT
    result: TrainResult
    num_examples: int


def device_named(name: str) -> torch.device:
    """Choose a device; ``auto`` takes a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def run_training(
    model: nn.Module,
    loss_at: Callable[[int], Tensor],
    training: TrainingConfig,
    config: TrainConfig,
    run: TrainingRun,
    evaluate: Evaluate | None,
) -> TrainResult:
    """Train a model by its settings, to the best weights on validation where there is any."""
    run.ranks.shard(model, training.optimizer)
    return train(
        model,
        loss_at,
        adamw(model, training.optimizer),
        config,
        evaluate=evaluate,
        tracker=run.curve,
        progress=run.progress,
        checkpoint_dir=run.checkpoint_dir,
        ranks=run.ranks,
    )


def load_trained(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load trained weights into a model of the same settings; it keeps what its own events counted.

    Raises:
        ValueError: The weights are of another model.
    """
    trained = {name: value for name, value in weights.items() if not name.endswith(OF_EVENTS)}
    own = {name for name in model.state_dict() if not name.endswith(OF_EVENTS)}
    if own != trained.keys():
        raise ValueError(
            f"the trained weights lack {sorted(own - trained.keys())} and have "
            f"{sorted(trained.keys() - own)} besides; train the model again before the refit"
        )
    model.load_state_dict(grown_state(model, trained), strict=False)


def grown_state(model: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fit trained weights into a model whose tables have gained rows.

    Returns:
        The weights; new rows have the model's own, fresh values.
    """
    fresh = model.state_dict()
    return {
        name: grown(value, fresh[name]) if name in fresh else value
        for name, value in trained.items()
    }


def grown(trained: Tensor, fresh: Tensor) -> Tensor:
    """Put trained rows into a table that has since gained rows, which keep their fresh values."""
    is_longer = trained.dim() > 0 and fresh.shape[1:] == trained.shape[1:]
    if not is_longer or len(fresh) <= len(trained):
        return trained
    table = fresh.clone()
    table[: len(trained)] = trained
    return table


def fit_retriever(
    model: nn.Module,
    source: Source,
    loss_at: Callable[[int], Tensor],
    num_examples: int,
    training: TrainingConfig,
    run: TrainingRun,
    stop_by: StopBy,
) -> TrainResult:
    """Train a retrieval model; on validation queries its source picks the best weights.

    Args:
        model: Untrained, on its device.
        source: Ranks with the model.
        loss_at: Loss of the batch of a step.
        num_examples: Examples of one pass.
        training: Passes, batches, optimizer.
        run: Where it runs.
        stop_by: What ends it.
    """
    if isinstance(stop_by, Refit) and stop_by.weights is not None:
        load_trained(model, stop_by.weights)
        if num_examples == 0:
            # Nothing is new: the model only takes new rows and counts.
            return TrainResult(
                num_steps=0, best_step=0, best_metric=None, bad_steps=0, stopped_early=False
            )
        config = training.for_continued_refit(num_examples)
        return run_training(model, loss_at, training, config, run, None)
    if isinstance(stop_by, Refit):
        examples = (stop_by.num_examples, num_examples)
        steps, whole = stop_by.best_step, stop_by.schedule_steps
        config = training.for_refit(steps, examples, whole, stop_by.share)
        return run_training(model, loss_at, training, config, run, None)
    queries = stop_by

    def evaluate(_: nn.Module) -> dict[str, float]:
        return measure(source, queries, RankingConfig(ks=(10,)), run.device)

    config = training.for_examples(num_examples)
    return run_training(model, loss_at, training, config, run, evaluate)
