"""One retrieval model as a row of the catalogue: how it is fitted, loaded and made a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from recsys.data.batch import JaggedBatch
from recsys.data.dataset import FitSplit, Sequences
from recsys.fitting.queries import (
    EvaluationQueries,
    ModelInputs,
    NewEvents,
    RetrievalSettings,
    measure,
)
from recsys.models.item_tower import OF_EVENTS, TYPES_TABLE, Over
from recsys.models.names import ModelName
from recsys.retrieval.sources import (
    IndexedSource,
    PositiveSource,
    ScoredSource,
    Source,
    VectorIndex,
)
from recsys.semantic_ids.codes import ItemCodes
from recsys.training.loop import Evaluate, TrainResult, train
from recsys.training.optim import adamw
from recsys.training.passes import LoopConfig, TrainingConfig
from recsys.training.progress import MemberCurve, Progress, SilentProgress, SilentTracker, Tracker
from recsys.training.ranks import ALONE, Ranks

ModelT = TypeVar("ModelT", bound=nn.Module)
CPU = torch.device("cpu")
NOT_TRAINED = TrainResult(
    num_steps=0, best_step=0, best_metric=None, bad_steps=0, stopped_early=False
)
"""Result of a fit that has no training."""
SEEDS = 1000
"""Seeds of a run are below; those of its further members above."""


def member_seed(seed: int, number: int) -> int:
    """Return the seed of a member; the first has the run's."""
    return seed + SEEDS * number


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Device, folders and reports of one training."""

    seed: int
    device: torch.device = CPU
    checkpoint_dir: Path | None = None
    """Folder of the states from which a killed training resumes; None keeps none."""
    progress: Progress = field(default_factory=SilentProgress)
    curve: Tracker = field(default_factory=SilentTracker)
    ranks: Ranks = ALONE
    """The processes that train together."""

    def for_member(self, number: int) -> TrainingRun:
        """Return a member's run with its own seed and checkpoints; the first one logs the curve."""
        return replace(
            self,
            seed=member_seed(self.seed, number),
            checkpoint_dir=self.checkpoint_dir and self.checkpoint_dir / f"member-{number}",
            curve=self.curve if number == 0 else MemberCurve(self.curve, number),
        )


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
    """Weights that are trained on for ``TrainingConfig.refit_epochs``; None starts from scratch."""
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


def device_text(device: torch.device) -> str:
    """Return the name of a device's hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def run_training(
    model: nn.Module,
    loss_at: Callable[[int], Tensor],
    training: TrainingConfig,
    config: LoopConfig,
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
    """Load trained weights into a model, which keeps the buffers counted in its own events."""
    trained = {name: value for name, value in weights.items() if not name.endswith(OF_EVENTS)}
    own = {name for name in model.state_dict() if not name.endswith(OF_EVENTS)}
    # A log that had one type of events: types start as if they were not read.
    own -= {TYPES_TABLE} - trained.keys()
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
    """Train a retrieval model; on validation queries its source picks the best weights."""
    if isinstance(stop_by, Refit) and stop_by.weights is not None:
        load_trained(model, stop_by.weights)
        if num_examples == 0:
            # Nothing is new: the model only takes new rows and counts.
            return NOT_TRAINED
        config = training.for_continued_refit(num_examples)
        return run_training(model, loss_at, training, config, run, None)
    if isinstance(stop_by, Refit):
        examples = (stop_by.num_examples, num_examples)
        steps, whole = stop_by.best_step, stop_by.schedule_steps
        config = training.for_refit(steps, examples, whole, stop_by.share)
        return run_training(model, loss_at, training, config, run, None)
    queries = stop_by

    def evaluate(_: nn.Module) -> dict[str, float]:
        return measure(source, queries, run.device)

    config = training.for_examples(num_examples)
    return run_training(model, loss_at, training, config, run, evaluate)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Everything that a model may be fitted on or loaded over."""

    inputs: ModelInputs
    settings: RetrievalSettings = field(default_factory=RetrievalSettings)
    """How lists are requested."""
    index: Callable[[Any, ModelInputs], VectorIndex] | None = None
    """Builds the index of a model's items, for a catalogue that is ranked by lists."""
    item_codes: Callable[[], ItemCodes] | None = None
    """Reads the semantic IDs; None without any."""
    teacher: Path | None = None
    """Folder of the sequence model that a generative model learns from; None without one."""

    @property
    def over(self) -> Over:
        return Over(self.inputs.catalogue, self.item_codes)

    def histories(self, until: FitSplit) -> tuple[Tensor, ...]:
        """Return each user's item rows that a model fitted on a split may see, oldest first."""
        seen = self.inputs.sequences.histories(self.inputs.sequences.visible_end(until))
        return torch.split(seen.values, seen.lengths().tolist())


class Start(NamedTuple):
    """How a fit starts, where it runs and what ends it."""

    run: TrainingRun
    stop_by: StopBy | None = None
    """Validation's queries, which choose steps or settings, or a refit; None chooses nothing."""
    training: TrainingConfig | None = None
    """None for a model without a training."""
    new: NewEvents | None = None
    """Events that an incremental training sees; None for all."""

    @property
    def judge(self) -> EvaluationQueries | None:
        return self.stop_by if isinstance(self.stop_by, EvaluationQueries) else None


Fit = Callable[[Any, Data, FitSplit, Start], Fitted[Any] | None]
"""Fits a model of some settings on the events of a split; None if nothing can be ranked by them."""


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of a model that has none."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A retrieval model of the catalogue."""

    names: ModelName
    config: type = NoSettings
    """Class of its settings."""
    fit: Fit
    load: Callable[[Path, Over], Any]
    """Reads what the model's ``save`` wrote."""
    source: Callable[[Any, Data, int], Source] = lambda model, *_: ScoredSource(model.score)
    """Ranks by a model; by lists alone if the catalogue has more item rows than the number."""
    save: Callable[[Any, Path], None] | None = None
    """Writes a trained model below a folder; None makes one folder of the model's name."""
    chooses: bool = False
    """True if validation chooses among its settings; the model keeps them as ``settings``."""
    num_examples: Callable[[Any, Sequences, FitSplit], int] | None = None
    """Examples of one pass of its training; None without a training."""

    @property
    def name(self) -> str:
        return self.names.name

    def ranks_by(self, model: Any, data: Data, scored_up_to: int) -> Source:
        """Make the source of a model, without negative events if it reads no types."""
        source = self.source(model, data, scored_up_to)
        all_read = self.names.reads_types or data.inputs.sequences.negative is None
        return source if all_read else PositiveSource(source)

    def write(self, model: Any, folder: Path) -> None:
        """Write a trained model below a folder, from any device."""
        model = model.to("cpu")
        if self.save is None:
            model.save(folder / self.name)
        else:
            self.save(model, folder)


class VectorModel(Protocol):
    """A model that compares a query's vector with the items'."""

    def score(self, queries: JaggedBatch) -> Tensor: ...

    def query_vectors(self, queries: JaggedBatch) -> Tensor: ...

    def all_item_vectors(self) -> Tensor: ...


def vector_source(model: VectorModel, data: Data, scored_up_to: int) -> Source:
    """Rank by vectors.

    Args:
        model: In evaluation mode.
        data: Some of their train events are the queries that an index is tuned on.
        scored_up_to: Item rows up to which every item is scored, which takes 16 ms of a core for a
            million; a larger catalogue is ranked by lists alone, as in serving.
    """
    if data.inputs.sizes.num_item_rows <= scored_up_to:
        return ScoredSource(model.score, item_vectors=model.all_item_vectors)
    assert data.index is not None, "a catalogue that is ranked by lists needs an index"
    index = partial(data.index, model, data.inputs)
    return IndexedSource(model.query_vectors, index, item_vectors=model.all_item_vectors)
