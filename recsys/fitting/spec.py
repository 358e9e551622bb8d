"""One retrieval model as a row of the catalogue: how it is fitted, loaded and made a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from recsys.data.dataset import FitSplit, Sequences
from recsys.fitting.continued import NewEvents
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import EvaluationQueries, RetrievalSettings
from recsys.fitting.training import Fitted, StopBy, TrainingRun
from recsys.models.names import ModelName
from recsys.models.outside import Over
from recsys.retrieval.sources import ScoredSource, Source
from recsys.retrieval.vector_index import VectorIndex
from recsys.semantic_ids.codes import ItemCodes
from recsys.training.loop import TrainResult
from recsys.training.passes import TrainingConfig

NOT_TRAINED = TrainResult(
    num_steps=0, best_step=0, best_metric=None, bad_steps=0, stopped_early=False
)
"""Result of a fit that has no training."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Everything that a model may be fitted on or loaded over."""

    inputs: ModelInputs
    settings: RetrievalSettings = field(default_factory=RetrievalSettings)
    """How lists are requested."""
    index: Callable[[Any, ModelInputs], VectorIndex] | None = None
    """Builds the index of a model's items (`recsys.fitting.index`), for a catalogue that is ranked
    by lists."""
    item_codes: Callable[[], ItemCodes] | None = None
    """Reads the semantic IDs; None without any."""
    teacher: Path | None = None
    """Folder of the sequence model that a generative model learns from; None without one."""

    @property
    def over(self) -> Over:
        """What models are loaded over."""
        return Over(self.inputs.catalogue, self.item_codes)


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
        """Validation's queries, or None."""
        return self.stop_by if isinstance(self.stop_by, EvaluationQueries) else None


class Fit(Protocol):
    """Fits a model on the events of a split; None if they give it nothing to rank by."""

    def __call__(
        self, config: Any, data: Data, until: FitSplit, start: Start, /
    ) -> Fitted[Any] | None: ...


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A retrieval model of the catalogue."""

    names: ModelName
    config: type
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

    def write(self, model: Any, folder: Path) -> None:
        """Write a trained model below a folder, from wherever it was trained."""
        model = model.to("cpu")
        if self.save is None:
            model.save(folder / self.name)
        else:
            self.save(model, folder)


def counted(model: Any) -> Fitted[Any] | None:
    """Return a fit that has no training; None without a model."""
    return None if model is None else Fitted(model, NOT_TRAINED, 0)
