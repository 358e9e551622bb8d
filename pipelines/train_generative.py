"""Stage train_generative: fit the generative model on train, pick its steps on validation.

Validation is a beam search over the semantic IDs of build_semantic_ids, as serving makes it, for a
sample of the users. It is off unless ``generative_training.enabled``, and where items have no
semantic IDs; else it is measured, refitted and served (profile ``full``) with the others. The
sequence model may teach it and give it its item vectors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pipelines.build_semantic_ids import read_version
from pipelines.config import RunConfig
from pipelines.console import log
from pipelines.generation import GeneratedSource, ItemCodes
from pipelines.model_inputs import ModelInputs
from pipelines.sources import candidates_asked
from pipelines.stage import StageContext, StageRows
from pipelines.training import (
    TrainingRun,
    count_items,
    fit,
    train_each_order,
    training_device,
    validation_metrics,
)
from recsys.data.batch import JaggedBatch
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows
from recsys.models.generative import GenerativeInputs, GenerativeModel
from recsys.models.sequence import SequenceModel
from recsys.retrieval.source_lists import unseen
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
    counts = count_items(inputs, split)
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
    if sequence is not None and config.generative.items == "codes and vectors":
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


def train_generative(context: StageContext) -> StageRows:
    """Train once for each order of tied times; write nothing where it is off or items lack IDs."""
    config = context.config
    if not config.generative_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    artefact = context.inputs["build_semantic_ids"]
    if read_version(artefact) is None:
        log.print("train_generative: off, because no item has a semantic ID", style="dim")
        return StageRows(rows_in=0, rows_out=0)

    def fit_on(inputs: ModelInputs, run: TrainingRun) -> tuple[GenerativeModel, TrainResult]:
        codes = ItemCodes.load(artefact, inputs.tie_order)
        windows = training_windows(inputs.sequences, "train", config.generative.max_length)
        train_config = config.generative_training.for_examples(len(windows))
        trained = context.inputs.get("train_sequence")
        sequence = None if trained is None else read_sequence(trained / inputs.tie_order, inputs)
        return fit_generative_model(
            inputs, codes, config, train_config, run, split="train", sequence=sequence
        )

    return train_each_order(context, "generative", fit_on)
