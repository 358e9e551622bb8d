"""Fit the generative model on every event's semantic ID.

Axes: N item rows, F width of another model's item vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import recsys.models.names as names
from recsys.data.dataset import FitSplit
from recsys.data.windows import BatchOrder, num_windows, training_windows
from recsys.fitting.queries import EvaluationQueries, ModelInputs, RetrievalSettings
from recsys.fitting.spec import Data, Fitted, ModelSpec, Start, StopBy, TrainingRun, fit_retriever
from recsys.models.generative.config import GenerativeConfig, TeachingConfig
from recsys.models.generative.model import GenerativeInputs, GenerativeModel
from recsys.models.item_tower import Over
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.generated import generated_source
from recsys.retrieval.sources import PositiveSource, Source
from recsys.semantic_ids.codes import ItemCodes
from recsys.training.code_distillation import CodeTeacher, with_dropped_events
from recsys.training.passes import TrainingConfig


class SequenceTeacher(NamedTuple):
    """A sequence model, trained on the same split, that a generative model learns from.

    It teaches if its config has a share, and gives its item vectors if the model's config reads
    them.
    """

    model: SequenceModel
    config: TeachingConfig


def fit_generative(
    inputs: ModelInputs,
    item_codes: ItemCodes,
    config: GenerativeConfig,
    training: TrainingConfig,
    run: TrainingRun,
    stop_by: StopBy,
    *,
    split: FitSplit = "train",
    teacher: SequenceTeacher | None = None,
) -> Fitted[GenerativeModel]:
    """Train on every position of a split's windows; beam search on validation picks the weights."""
    sequences = inputs.sequences.positive
    windows = training_windows(sequences, split, config.max_length)
    vectors = code_teacher = None
    if teacher is not None and config.items == "codes_vectors":
        vectors = teacher.model.eval().all_item_inputs().cpu()  # [N, F]
    if teacher is not None and teacher.config.share > 0:
        sequence = teacher.model.to(run.device)
        code_teacher = CodeTeacher(
            sequence, item_codes.codes, item_codes.level_sizes, teacher.config
        )
    sizes = GenerativeInputs(
        num_item_rows=inputs.sizes.num_item_rows,
        level_sizes=item_codes.level_sizes,
        semantic_ids=item_codes.version,
        content_dim=inputs.sizes.content_dim,
        num_categories=inputs.sizes.num_categories,
        vector_dim=0 if vectors is None else vectors.shape[1],
    )
    counts = inputs.item_counts(split)
    torch.manual_seed(run.seed)
    model = GenerativeModel(config, sizes, item_codes.codes, inputs.catalogue, counts, vectors)
    model = model.to(run.device)
    order = BatchOrder(len(windows), training.batch_size, run.seed)

    def loss_at(step: int) -> Tensor:
        batch = windows.batch(sequences, order.indices(step))
        if teacher is not None and code_teacher is not None:
            batch = with_dropped_events(batch, teacher.config.dropped_events)
        return model.loss(batch.to(run.device), code_teacher)

    settings = stop_by.settings if isinstance(stop_by, EvaluationQueries) else RetrievalSettings()
    source = PositiveSource(generated_source(model, item_codes, settings.beam_width))
    result = fit_retriever(model, source, loss_at, len(windows), training, run, stop_by)
    return Fitted(model, result, len(windows))


def _codes(over: Over) -> ItemCodes:
    assert over.item_codes is not None
    ids: ItemCodes = over.item_codes()
    return ids


def _fit(
    config: GenerativeConfig, data: Data, until: FitSplit, start: Start, /
) -> Fitted[GenerativeModel]:
    run, stop_by = start.run, start.stop_by
    training: Any = start.training
    assert stop_by is not None
    teacher = None
    if data.teacher is not None:
        model = SequenceModel.load(data.teacher, data.inputs.catalogue)
        teacher = SequenceTeacher(model, training.teaching)
    return fit_generative(
        data.inputs, _codes(data.over), config, training, run, stop_by, split=until, teacher=teacher
    )


def _load(folder: Path, over: Over) -> GenerativeModel:
    ids = _codes(over)
    return GenerativeModel.load(folder, over.catalogue, ids.codes, semantic_ids=ids.version)


def _source(model: GenerativeModel, data: Data, _: int) -> Source:
    return generated_source(model, _codes(data.over), data.settings.beam_width)


GENERATIVE = ModelSpec(
    names=names.GENERATIVE,
    config=GenerativeConfig,
    fit=_fit,
    load=_load,
    source=_source,
    num_examples=lambda config, sequences, split: num_windows(
        sequences.positive, split, config.max_length
    ),
)
