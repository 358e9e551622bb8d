"""TODO-DOC."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pipelines.candidates.generation import GeneratedSource
from pipelines.candidates.sources import candidates_asked
from pipelines.config.run import RunConfig
from pipelines.training.run import (
    TrainingRun,
    fit,
    training_device,
    validation_metrics,
)
from recsys.data.batch import JaggedBatch
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows
from recsys.fitting.inputs import ModelInputs
from recsys.models.generative.model import GenerativeInputs, GenerativeModel
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.blend.source_lists import unseen
from recsys.semantic_ids.codes import ItemCodes
from recsys.training.code_distillation import CodeTeacher, with_dropped_events
from recsys.training.loop import TrainConfig, TrainResult


def make_generative_model(
    inputs: ModelInputs,
    codes: ItemCodes,
    config: RunConfig,
    split: Literal["train", "all"],
    device: torch.device,
    vectors: Tensor | None = None,
) -> GenerativeModel:
    """Build an untrained model that knows how often each item occurs in its split.

    Args:
        vectors: Of each item row, [N, D], where the model reads any.
    """
    settings = config.generative
    if not config.evaluation.exclude_history:
        # Lists may repeat the history, so its items stand against the label too.
        settings = replace(settings, leave_out_history=False)
    sizes = GenerativeInputs(
        num_item_rows=inputs.sizes.num_item_rows,
        level_sizes=codes.level_sizes,
        semantic_ids=codes.version,
        content_dim=inputs.sizes.content_dim,
        num_categories=inputs.sizes.num_categories,
        vector_dim=0 if vectors is None else vectors.shape[1],
    )
    counts = inputs.item_counts(split)
    torch.manual_seed(config.seed)
    model = GenerativeModel(settings, sizes, codes.codes, inputs.catalogue, counts, vectors)
    return model.to(device)


def fit_generative_model(
    inputs: ModelInputs,
    codes: ItemCodes,
    config: RunConfig,
    train_config: TrainConfig,
    run: TrainingRun,
    *,
    split: Literal["train", "all"],
    sequence: SequenceModel | None = None,
) -> tuple[GenerativeModel, TrainResult]:
    """Train on every position of a split's windows; on ``train`` validation picks the weights.

    Args:
        inputs: What is trained on.
        codes: The semantic IDs.
        config: The run's.
        train_config: Steps and schedule.
        run: Where the training's state and curve go.
        split: ``all`` to fit again for serving.
        sequence: Trained on the same split; teaches, and gives its vectors, as the config asks.
    """
    training, max_length = config.generative_training, config.generative.max_length
    teaching, device = training.teaching, training_device(training)
    windows = training_windows(inputs.sequences, split, max_length)
    vectors = teacher = None
    if sequence is not None and config.generative.items == "codes_vectors":
        vectors = sequence.eval().all_item_inputs()
    if sequence is not None and teaching.share > 0:
        teacher = CodeTeacher(sequence.to(device), codes.codes, codes.level_sizes, teaching)
    model = make_generative_model(inputs, codes, config, split, device, vectors)
    order = BatchOrder(len(windows), training.batch_size, config.seed)

    def loss_at(step: int) -> Tensor:
        batch = windows.batch(inputs.sequences, order.indices(step))
        if teacher is not None:
            batch = with_dropped_events(batch, teaching.dropped_events)
        return model.loss(batch.to(device), teacher)

    evaluate = None
    if split == "train":
        source, num_item_rows = GeneratedSource(model, codes), len(codes.codes)

        def score(queries: JaggedBatch) -> Tensor:
            masks = unseen(queries["seen"], num_item_rows)
            return source(queries, masks, candidates_asked(num_item_rows)).scores

        evaluate = validation_metrics(inputs, config, training, score)
    return model, fit(model, loss_at, training, train_config, run, evaluate)


def read_sequence(folder: Path, inputs: ModelInputs) -> SequenceModel:
    """Read the sequence model of one order, or of a refit."""
    return SequenceModel.load(folder / "sequence", inputs.catalogue)
