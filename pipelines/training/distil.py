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
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.stage import StageContext
from pipelines.engine.workspace import Workspace
from pipelines.inputs.tensors import read_inputs, released_order, retrieval_settings
from pipelines.training.run import ProgressBar, validation_queries
from recsys.data.dataset import Rows
from recsys.data.order import BatchOrder
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import RankingConfig
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import measure
from recsys.fitting.training import TrainingRun, device_named, fit_retriever
from recsys.fitting.two_tower import untrained_two_tower
from recsys.retrieval.sources import ScoredSource, Source, allowed_items
from recsys.training.distillation import DistillationConfig, distillation_loss
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
    sequences, device = inputs.sequences, device_named(config.training.device)
    positions = sequences.label_positions("train")
    logit_scale = config.sequence.temperature if teacher != "generative" else 1.0
    lists = teacher_lists(sources[teacher], inputs, positions, config, settings.list_length)
    lists = TopK(lists.scores / logit_scale, lists.item_rows)
    order = BatchOrder(len(positions), config.training.batch_size, config.seed)
    queries = validation_queries(inputs, config, config.training)
    with ProgressBar(f"student of {teacher}", visible=show_progress) as progress:
        run = TrainingRun(
            seed=config.seed,
            device=device,
            checkpoint_dir=output / "checkpoints",
            progress=progress,
        )
        student = untrained_two_tower(inputs, config.two_tower, run)

        def loss_at(step: int) -> Tensor:
            rows = order.indices(step)
            chosen = positions[rows]
            batch = inputs.queries(chosen, max_history=config.two_tower.max_history).to(device)
            listed = TopK(*(part[torch.from_numpy(rows)].to(device) for part in lists))
            labels = sequences.labels(chosen).to(device)
            return distillation_loss(student, batch, labels, listed, settings)

        source = ScoredSource(student.score)
        result = fit_retriever(
            student, source, loss_at, len(positions), config.training, run, queries
        )
    student.to("cpu").save(output / "two_tower")
    metrics = {
        name: measure(one, queries, RankingConfig(ks=(10,)))
        for name, one in {
            teacher: sources[teacher],
            "student": source,
            **{name: one for name, one in sources.items() if name == "two_tower"},
        }.items()
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
    num_item_rows = inputs.sizes.num_item_rows
    size = retrieval_settings(config).batch_size(num_item_rows)
    parts = []
    for begin in range(0, len(positions), size):
        queries = inputs.queries(positions[begin : begin + size], max_history=HOME.max_history)
        allowed = allowed_items(queries["history"], queries.batch_size, num_item_rows)
        parts.append(teacher(queries, allowed, min(k, num_item_rows - 1)).lists)
    return TopK(*(torch.cat(part) for part in zip(*parts, strict=True)))
