"""Distil a trained model of a finished run into a small two-tower, measured beside its teacher.

Axes: B queries of a batch, K items of the teacher's list, P training positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pipelines.candidates.load import READS, load_sources
from pipelines.candidates.sources import Source
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.stage import StageContext
from pipelines.engine.workspace import Workspace
from pipelines.inputs.tensors import queries_per_batch, read_inputs, released_order
from pipelines.training.run import (
    ProgressBar,
    TrainingRun,
    fit,
    training_device,
    validation_metrics,
)
from pipelines.training.two_tower import make_two_tower
from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Rows
from recsys.data.order import BatchOrder
from recsys.data.top_k import TopK
from recsys.fitting.inputs import ModelInputs
from recsys.models.two_tower import TwoTower
from recsys.retrieval.blend.source_lists import unseen
from recsys.training.distillation import DistillationConfig, distillation_loss
from recsys.training.progress import SilentTracker
from serving.surfaces import HOME

TEACHERS = ("sequence", "ensemble", "generative")
STUDENTS = "students"
"""Folder of the workspace that students are written to, one a teacher."""


class Distilled(NamedTuple):
    """A student and what validation says of it."""

    directory: Path
    metrics: Mapping[str, Mapping[str, float]]
    """Of teacher, student and the run's own two-tower, by name."""
    num_parameters: int


def distil(
    config: RunConfig,
    teacher: str,
    settings: DistillationConfig,
    *,
    embedding_dim: int | None = None,
    show_progress: bool = False,
) -> Distilled:
    """Train a two-tower on a finished run's labels and its teacher's lists; write it beside them.

    Args:
        teacher: One of ``TEACHERS``, trained by the run.
        embedding_dim: Width of the student; None is the run's two-tower's.

    Raises:
        ValueError: The run has no such model, or is not finished.
    """
    if teacher not in TEACHERS:
        raise ValueError(f"no teacher {teacher!r}; there are {', '.join(TEACHERS)}")
    width = embedding_dim or config.two_tower.embedding_dim
    config = replace(config, two_tower=replace(config.two_tower, embedding_dim=width))
    workspace = Workspace(config.workspace)
    with workspace.lock():
        missing = [name for name in READS if workspace.manifest(name) is None]
        if missing:
            raise ValueError(
                f"{config.workspace} has no complete {', '.join(missing)}; finish the run first: "
                "recsys run"
            )
        inputs, sources = _fitted(config, workspace)
        if teacher not in sources:
            raise ValueError(
                f"{config.workspace} has no {teacher} model to learn from; it has "
                f"{', '.join(sources)}. Turn its training on in the configuration and run again"
            )
        return _distilled(config, inputs, sources, teacher, settings, show_progress)


def _fitted(config: RunConfig, workspace: Workspace) -> tuple[ModelInputs, dict[str, Source]]:
    """Read what the run's models were fitted on, and the models."""
    features = workspace.stage("build_features")
    order = released_order(features)
    inputs = read_inputs(features, workspace.stage("embed_items"), order)
    context = StageContext(
        config=config,
        workspace=workspace,
        inputs={name: workspace.stage(name) for name in READS},
        output=workspace.path,
        checkpoints=workspace.path,
        making=STUDENTS,
    )
    return inputs, load_sources(context, inputs, order)


def _distilled(
    config: RunConfig,
    inputs: ModelInputs,
    sources: Mapping[str, Source],
    teacher: str,
    settings: DistillationConfig,
    show_progress: bool,
) -> Distilled:
    output = config.workspace / STUDENTS / teacher
    sequences, device = inputs.sequences, training_device(config.training)
    positions = sequences.label_positions("train")
    logit_scale = config.sequence.temperature if teacher != "generative" else 1.0
    lists = teacher_lists(sources[teacher], inputs, positions, config, settings.list_length)
    lists = TopK(lists.scores / logit_scale, lists.item_rows)
    student = make_two_tower(inputs, config, "train", device)
    order = BatchOrder(len(positions), config.training.batch_size, config.seed)

    def loss_at(step: int) -> Tensor:
        rows = order.indices(step)
        chosen = positions[rows]
        queries = inputs.queries(chosen, max_history=config.two_tower.max_history).to(device)
        listed = TopK(*(part[torch.from_numpy(rows)].to(device) for part in lists))
        labels = sequences.labels(chosen).to(device)
        return distillation_loss(student, queries, labels, listed, settings)

    with ProgressBar(f"student of {teacher}", visible=show_progress) as progress:
        result = fit(
            student,
            loss_at,
            config.training,
            config.training.for_examples(len(positions)),
            TrainingRun(output / "checkpoints", progress, SilentTracker()),
            validation_metrics(inputs, config, config.training, student.score),
        )
    student.to("cpu").save(output / "two_tower")
    metrics = {
        teacher: _validated(inputs, config, sources[teacher]),
        "student": _validated(inputs, config, student),
        "two_tower": _validated(inputs, config, sources["two_tower"]),
    }
    num_parameters = sum(one.numel() for one in student.parameters())
    document = {
        "teacher": teacher,
        "distillation": asdict(settings),
        "validation": metrics,
        "training": asdict(result),
        "num_parameters": num_parameters,
    }
    (output / "student.json").write_text(to_json(document), encoding="utf-8")
    return Distilled(output, metrics, num_parameters)


@torch.no_grad()
def teacher_lists(
    teacher: Source, inputs: ModelInputs, positions: Rows, config: RunConfig, k: int
) -> TopK:
    """List the teacher's best unseen items before each training label, [P, K]."""
    size, num_item_rows = queries_per_batch(inputs, config), inputs.sizes.num_item_rows
    parts = []
    for begin in range(0, len(positions), size):
        queries = inputs.queries(positions[begin : begin + size], max_history=HOME.max_history)
        masks = unseen(queries["history"], num_item_rows)
        parts.append(teacher(queries, masks, min(k, num_item_rows - 1)).top)
    return TopK(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _validated(
    inputs: ModelInputs, config: RunConfig, model: Source | TwoTower
) -> dict[str, float]:
    """Measure a model on the validation users that training measures."""
    training = replace(config.training, device="cpu")

    def score(queries: JaggedBatch) -> Tensor:
        if isinstance(model, TwoTower):
            return model.score(queries)
        masks = unseen(queries["seen"], inputs.sizes.num_item_rows)
        return model(queries, masks, 10).scores

    evaluate = validation_metrics(inputs, config, training, score)
    return dict(evaluate(torch.nn.Identity()))
