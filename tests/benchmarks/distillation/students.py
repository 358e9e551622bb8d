"""Students of ``benchmark_retrievers.py``, and the sequence models that are teachers of some.

Axes: B queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from recsys.data.batch import JaggedBatch
from recsys.data.held_out import HeldOut
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.reproduction.fitting import (
    Experiment,
    QuietProgress,
    fit_item_to_item,
    fit_sequence,
)
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking import ScoredSource, Source, metrics_of, rank_all
from recsys.training.list_distillation import (
    LEFT_OUT,
    AuxiliaryHead,
    Ensemble,
    scores_after_events,
    scores_of_queries,
    self_auxiliary_list_loss,
    soft_list_loss,
)
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.progress import SilentTracker
from tests.benchmarks.distillation.table import METRIC
from tests.benchmarks.distillation.teachers import TeacherLists, blended, metrics_of_lists

METRICS = (METRIC, "recall@10")
NEIGHBOURS = "item_to_item"
MEMBER_SEED = 100
"""Of the first member of an ensemble, so that no student is one."""

Numbers = dict[str, Any]
Loss = Callable[[int], Tensor]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one process."""

    data: str
    split: Literal["validation", "test"]
    device: str
    seed: int
    num_members: int
    passes: float
    """Share of the recipe's passes."""
    more: int
    """Augmented histories that a teacher scores too, times the number of users."""

    def experiment(self, seed: int) -> Experiment:
        """Take the arrays' own recipe."""
        prepared = Prepared.load(Path(self.data))
        recipe = prepared.recipe
        shorter = {
            name: replace(one, max_epochs=one.max_epochs * self.passes, patience=100)
            for name, one in (
                (name, getattr(recipe, f"{name}_training"))
                for name in ("sequence", "two_tower", "generative")
            )
        }
        named = {f"{name}_training": one for name, one in shorter.items()}
        return Experiment(
            prepared=replace(prepared, recipe=replace(recipe, **named)),
            sequences=prepared.order("given"),
            seed=seed,
            device=torch.device(self.device),
        )

    def splits(self) -> tuple[str, ...]:
        """Name what is measured, validation first."""
        return tuple(dict.fromkeys(("validation", self.split)))


@dataclass(frozen=True, kw_only=True)
class StudentPlan:
    """A student and how it is trained."""

    student: Literal["sequence", "two_tower"]
    teacher: Literal["ensemble", "generative", "blend", "blend_fast", "itself"] | None
    """``itself`` is an auxiliary head; None learns from labels alone."""
    embedding_dim: int | None = None
    """None is the recipe's."""
    num_members: int | None = None
    """Of a sequence model; None is the recipe's."""
    soft_share: float = 0.5
    """Share of the loss from the teacher; for ``itself`` the trust in it."""
    temperature: float = 1.0
    passes: float = 1.0
    """Share of the recipe's passes: soft targets can be learned from for longer."""


def num_parameters(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def measured(experiment: Experiment, source: Source, splits: tuple[str, ...]) -> Numbers:
    """Measure on validation, which choices may look at, and on test if that is the split."""
    found: Numbers = {}
    for one in splits:
        question = experiment.question(one)  # type: ignore[arg-type]
        ranks = rank_all(source, question, 10, experiment.device).ranks
        metrics = metrics_of(ranks, question.held_out.targets)
        of_split = {name: metrics[name] for name in METRICS}
        found |= of_split | {f"{one} {name}": value for name, value in of_split.items()}
    return found


def member(settings: Settings, number: int, folder: Path) -> Path:
    """Train one model of the ensemble."""
    fitted = fit_sequence(settings.experiment(MEMBER_SEED + 10 * settings.seed + number))
    path = folder / f"member-{number}"
    assert isinstance(fitted.model, SequenceModel)
    fitted.model.save(path)
    return path


def members_of(experiment: Experiment, folder: Path) -> list[SequenceModel]:
    catalogue = experiment.prepared.catalogue
    paths = sorted(folder.glob("member-*"))
    return [SequenceModel.load(path, catalogue).to(experiment.device) for path in paths]


def ensemble_rows(settings: Settings, folder: Path) -> list[Numbers]:
    """Measure the ensemble, and its first member alone."""
    experiment = settings.experiment(settings.seed)
    members = members_of(experiment, folder)
    alone = measured(experiment, ScoredSource(members[0].score), settings.splits())
    row = {
        "teacher": "ensemble",
        "num_parameters": sum(map(num_parameters, members)),
        "members": len(members),
        "first member": alone,
        **measured(experiment, ScoredSource(Ensemble(members).score), settings.splits()),
    }
    return [row]


class TeacherLoss:
    """Soft-target loss of a student against a teacher's scores of histories drawn for each step."""

    def __init__(
        self, experiment: Experiment, plan: StudentPlan, folder: Path, batch_size: int
    ) -> None:
        self._device, self._temperature = experiment.device, plan.temperature
        self._ensemble: Ensemble | None = None
        if plan.teacher == "ensemble":
            self._ensemble = Ensemble(members_of(experiment, folder))
            whole = HeldOut.of(experiment.sequences, "validation").positions
            self._queries = experiment.sequences.queries(
                whole, max_history=experiment.recipe.max_history
            )
        else:
            self._teacher = TeacherLists.load(folder / f"{plan.teacher}.npz")
            self._queries = self._teacher.queries
        self._order = BatchOrder(self._queries.batch_size, batch_size, experiment.seed + 1)

    def loss(self, model: SequenceModel | TwoTower, step: int) -> Tensor:
        """Compare a batch of lists."""
        chosen = torch.from_numpy(self._order.indices(step))
        features = {name: one.take(chosen) for name, one in self._queries.features.items()}
        queries = JaggedBatch(features).to(self._device)
        rows = None
        if self._ensemble is None:
            scores = self._teacher.scores[chosen].to(self._device)
            rows = self._teacher.item_rows[chosen].to(self._device)
        else:
            members = self._ensemble.members
            scores = self._ensemble.score(queries) / members[0].config.temperature
            history = queries["history"]
            scores[history.segments(), history.values] = LEFT_OUT
            scores[:, 0] = LEFT_OUT
        return soft_list_loss(scores_of_queries(model, queries), scores, self._temperature, rows)


def sequence_student(
    experiment: Experiment, plan: StudentPlan, folder: Path
) -> tuple[nn.Module, SequenceModel, Loss, int]:
    """Make a student that reads windows; an ensemble scores after each of their events."""
    prepared, sequences, device = experiment.prepared, experiment.sequences, experiment.device
    config = experiment.recipe.sequence
    config = replace(
        config,
        embedding_dim=plan.embedding_dim or config.embedding_dim,
        num_members=plan.num_members or config.num_members,
    )
    torch.manual_seed(experiment.seed)
    counts = experiment.item_counts()
    model = SequenceModel(config, prepared.sizes(), prepared.catalogue, counts).to(device)
    windows = training_windows(sequences, "train", config.max_length)
    size = experiment.recipe.sequence_training.batch_size
    order = BatchOrder(len(windows), size, experiment.seed)
    teacher = lists = None
    if plan.teacher == "ensemble":
        teacher = Ensemble(members_of(experiment, folder))
    elif plan.teacher is not None:
        lists = TeacherLoss(experiment, plan, folder, 2 * size)

    def loss_at(step: int) -> Tensor:
        batch = windows.batch(sequences, order.indices(step)).to(device)
        if teacher is None and lists is None:
            return model.loss(batch)
        if teacher is not None:
            soft_targets = teacher.scores_after_events(batch)
            soft = soft_list_loss(scores_after_events(model, batch), soft_targets, plan.temperature)
        else:
            assert lists is not None
            soft = lists.loss(model, step)
        if plan.soft_share == 1:
            return soft
        return plan.soft_share * soft + (1 - plan.soft_share) * model.loss(batch)

    return model, model, loss_at, len(windows)


def two_tower_student(
    experiment: Experiment, plan: StudentPlan, folder: Path
) -> tuple[nn.Module, TwoTower, Loss, int]:
    """Make a student that reads queries; its teacher scores after whole histories."""
    prepared, sequences, device = experiment.prepared, experiment.sequences, experiment.device
    config = experiment.recipe.two_tower
    config = replace(config, embedding_dim=plan.embedding_dim or config.embedding_dim)
    torch.manual_seed(experiment.seed)
    model = TwoTower(config, prepared.sizes(), prepared.catalogue, experiment.item_counts())
    model = model.to(device)
    head = AuxiliaryHead(config.embedding_dim).to(device)
    positions = sequences.label_positions("train")
    size = experiment.recipe.two_tower_training.batch_size
    order = BatchOrder(len(positions), size, experiment.seed)
    taught = plan.teacher not in (None, "itself")
    lists = TeacherLoss(experiment, plan, folder, size) if taught else None

    def examples(places: np.ndarray[Any, Any]) -> tuple[JaggedBatch, Tensor]:
        queries = sequences.queries(
            places, max_history=config.max_history, user_features=prepared.user_features
        )
        return queries.to(device), sequences.labels(places).to(device)

    def loss_at(step: int) -> Tensor:
        queries, labels = examples(positions[order.indices(step)])
        if plan.teacher == "itself":
            return self_auxiliary_list_loss(model, head, queries, labels, plan.soft_share)
        hard = model.loss(queries, labels)
        if lists is None:
            return hard
        return plan.soft_share * lists.loss(model, step) + (1 - plan.soft_share) * hard

    return nn.ModuleList([model, head]), model, loss_at, len(positions)


def student_rows(settings: Settings, plan: StudentPlan, folder: Path) -> list[Numbers]:
    """Train and measure one student; a sequence model also merged with item-to-item."""
    experiment, begin = settings.experiment(settings.seed), time.perf_counter()
    make = sequence_student if plan.student == "sequence" else two_tower_student
    trained, model, loss_at, num_examples = make(experiment, plan, folder)
    training = getattr(experiment.recipe, f"{plan.student}_training")
    training = replace(training, max_epochs=training.max_epochs * plan.passes)
    source = ScoredSource(model.score)
    question = experiment.question("validation", training.validation_users)

    def evaluate(_: nn.Module) -> dict[str, float]:
        ranks = rank_all(source, question, 10, experiment.device).ranks
        return metrics_of(ranks, question.held_out.targets)

    train(
        trained,
        loss_at,
        adamw(trained, training.optimizer),
        training.for_examples(num_examples),
        evaluate=evaluate,
        tracker=SilentTracker(),
        progress=QuietProgress(),
    )
    row = {
        **asdict(plan),
        "beside": None,
        "num_parameters": num_parameters(model),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    rows = [row | measured(experiment, source, settings.splits())]
    if plan.student == "sequence":
        found = beside_neighbours(experiment, source, settings.splits())
        rows.append(row | {"beside": NEIGHBOURS} | found)
    return rows


def beside_neighbours(experiment: Experiment, source: Source, splits: tuple[str, ...]) -> Numbers:
    """Measure a student whose list is merged with item-to-item's, by weights of validation."""
    lists, k = {}, experiment.recipe.num_candidates
    for name, one in (("sequence", source), (NEIGHBOURS, fit_item_to_item(experiment).source)):
        for split in splits:
            queries = experiment.question(split)  # type: ignore[arg-type]
            lists[name, split] = rank_all(one, queries, k, experiment.device).lists
    _, merged = blended(experiment, ("sequence", NEIGHBOURS), lists, splits)
    return metrics_of_lists(experiment, merged, METRICS)
