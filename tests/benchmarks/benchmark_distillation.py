"""Distil a costly retriever into a small one: size, latency on one core, kept accuracy.

Two teachers, on prepared arrays of a data set: several sequence models whose scores are averaged,
and the generative model with its beam search. Each teaches a sequence model and a two-tower; both
are trained on labels alone too. Models learn from all but the last two events of each user, their
best step is picked on validation; numbers are of validation users, or with ``--split test`` of test
users, which is a look for the ledger. Latencies are those of one request of twenty events on one
core, to a list of 100, measured where the table is made.

    recsys reproduce CARD --prepare FOLDER
    PYTHONPATH=$PWD python tests/benchmarks/benchmark_distillation.py train FOLDER --raw a.json
    PYTHONPATH=$PWD python tests/benchmarks/benchmark_distillation.py table FOLDER --raw a.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from distillation_table import METRIC, write_table
from results_file import device_name
from torch import Tensor, nn

from recsys.data.batch import JaggedBatch
from recsys.data.held_out import HeldOut
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows
from recsys.models.sequence import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.reproduction.fitting import Experiment, fit_generative, fit_sequence
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking import ScoredSource, Source, metrics_of, rank_all
from recsys.training.list_distillation import (
    LEFT_OUT,
    Ensemble,
    scores_after_events,
    scores_of_queries,
    soft_list_loss,
)
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.progress import SilentTracker

MEMBER_SEED = 100
"""Of the first member of an ensemble, so that no student is one."""


class Quiet:
    def show(self, step: int, num_steps: int, **values: float) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one process is told."""

    data: str
    split: Literal["validation", "test"]
    device: str
    seed: int
    num_members: int
    passes: float
    """Share of the recipe's passes."""
    batch_size: int

    def experiment(self, seed: int) -> Experiment:
        """Take the arrays' own recipe, its sequence model in steps of another size."""
        prepared = Prepared.load(Path(self.data))
        recipe = prepared.recipe
        shorter = {
            name: replace(
                getattr(recipe, name),
                max_epochs=getattr(recipe, name).max_epochs * self.passes,
                patience=100,
            )
            for name in ("sequence_training", "two_tower_training", "generative_training")
        }
        # Fewer and larger steps, which a GPU takes in less time.
        growth = self.batch_size / recipe.sequence_training.batch_size
        schedule = recipe.sequence_training.schedule
        shorter["sequence_training"] = replace(
            shorter["sequence_training"],
            batch_size=self.batch_size,
            schedule=replace(schedule, learning_rate=schedule.learning_rate * growth**0.5),
        )
        return Experiment(
            prepared=replace(prepared, recipe=replace(recipe, **shorter)),
            sequences=prepared.order("given"),
            seed=seed,
            device=torch.device(self.device),
        )


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """How a student is taught."""

    student: Literal["sequence", "two_tower"]
    teacher: Literal["ensemble", "generative"] | None
    """None learns from labels alone."""
    embedding_dim: int | None = None
    """None is the recipe's."""
    soft_share: float = 0.5
    temperature: float = 1.0
    passes: float = 1.0
    """Share of the recipe's passes: soft targets can be learned from for longer."""


def told(experiment: Experiment, source: Source, split: str) -> dict[str, float]:
    """Measure on validation, which choices may look at, and on test where that is asked."""
    found = {}
    for one in dict.fromkeys(("validation", split)):
        question = experiment.question(one)  # type: ignore[arg-type]
        ranks = rank_all(source, question, 10, experiment.device).ranks
        metrics = metrics_of(ranks, question.held_out.targets)
        of_split = {name: metrics[name] for name in (METRIC, "recall@10")}
        found |= of_split | {f"{one} {name}": value for name, value in of_split.items()}
    return found


def num_parameters(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def member(settings: Settings, number: int, folder: Path) -> Path:
    """Train one model of the ensemble."""
    fitted = fit_sequence(settings.experiment(MEMBER_SEED + number))
    path = folder / f"member-{number}"
    assert isinstance(fitted.model, SequenceModel)
    fitted.model.save(path)
    return path


def members_of(experiment: Experiment, paths: list[Path]) -> list[SequenceModel]:
    catalogue = experiment.prepared.catalogue
    return [SequenceModel.load(path, catalogue).to(experiment.device) for path in paths]


def ensemble_row(settings: Settings, paths: list[Path]) -> dict[str, Any]:
    """Measure the ensemble, and its first member alone."""
    experiment = settings.experiment(settings.seed)
    members = members_of(experiment, paths)
    found = told(experiment, ScoredSource(Ensemble(members).score), settings.split)
    alone = told(experiment, ScoredSource(members[0].score), settings.split)
    size = sum(map(num_parameters, members))
    return {
        "teacher": "ensemble", "num_parameters": size, "members": len(members),
        "first member": alone, **found,
    }  # fmt: skip


def generative_row(settings: Settings, folder: Path) -> dict[str, Any]:
    """Train and measure the generative model; what it lists after each history goes to a file."""
    folder.mkdir()
    experiment = settings.experiment(settings.seed)
    fitted = fit_generative(experiment)
    found = told(experiment, fitted.source, settings.split)
    # The queries of validation are what training saw of each user; its labels are not looked at.
    lists = rank_all(
        fitted.source,
        experiment.question("validation"),
        experiment.recipe.beam_width,
        experiment.device,
    ).lists
    np.savez(
        folder / "lists.npz", item_rows=lists.item_rows.numpy(), scores=lists.scores.float().numpy()
    )
    assert fitted.model is not None
    return {"teacher": "generative", "num_parameters": num_parameters(fitted.model), **found}


Loss = Callable[[int], Tensor]


def sequence_student(
    experiment: Experiment, lesson: Lesson, paths: list[Path]
) -> tuple[SequenceModel, Loss, int]:
    """Make a student that reads windows; its teacher speaks after each of their events."""
    prepared, sequences, device = experiment.prepared, experiment.sequences, experiment.device
    config = experiment.recipe.sequence
    config = replace(config, embedding_dim=lesson.embedding_dim or config.embedding_dim)
    torch.manual_seed(experiment.seed)
    counts = experiment.item_counts()
    model = SequenceModel(config, prepared.sizes(), prepared.catalogue, counts).to(device)
    windows = training_windows(sequences, "train", config.max_length)
    order = BatchOrder(
        len(windows), experiment.recipe.sequence_training.batch_size, experiment.seed
    )
    teacher = Ensemble(members_of(experiment, paths)) if lesson.teacher else None

    def loss_at(step: int) -> Tensor:
        batch = windows.batch(sequences, order.indices(step)).to(device)
        if teacher is None:
            return model.loss(batch)
        soft = soft_list_loss(
            scores_after_events(model, batch),
            teacher.scores_after_events(batch),
            lesson.temperature,
        )
        if lesson.soft_share == 1:
            return soft
        return lesson.soft_share * soft + (1 - lesson.soft_share) * model.loss(batch)

    return model, loss_at, len(windows)


class Speaking:
    """What a teacher says of queries of users' whole training histories, [B] of them at a time."""

    def __init__(self, experiment: Experiment, lesson: Lesson, paths: list[Path]) -> None:
        self._experiment = experiment
        self.positions = HeldOut.of(experiment.sequences, "validation").positions
        self._ensemble = self._rows = None
        if lesson.teacher == "ensemble":
            self._ensemble = Ensemble(members_of(experiment, paths))
        else:
            with np.load(paths[0] / "lists.npz") as file:
                self._rows = torch.from_numpy(file["item_rows"])
                self._scores = torch.from_numpy(file["scores"])

    def scores(
        self, chosen: np.ndarray[Any, Any], queries: JaggedBatch
    ) -> tuple[Tensor, Tensor | None]:
        """Give the logarithms of what it thinks likely, and the rows they are of."""
        device = self._experiment.device
        if self._rows is not None:
            rows = self._rows[chosen].to(device).clamp(min=0)
            return self._scores[chosen].to(device).nan_to_num(neginf=LEFT_OUT), rows
        assert self._ensemble is not None
        scores = self._ensemble.score(queries) / self._ensemble.members[0].config.temperature
        history = queries["history"]
        scores[history.segments(), history.values] = LEFT_OUT
        scores[:, 0] = LEFT_OUT
        return scores, None


def two_tower_student(
    experiment: Experiment, lesson: Lesson, paths: list[Path]
) -> tuple[TwoTower, Loss, int]:
    """Make a student that reads queries; its teacher speaks after each user's training history."""
    prepared, sequences, device = experiment.prepared, experiment.sequences, experiment.device
    config = experiment.recipe.two_tower
    config = replace(config, embedding_dim=lesson.embedding_dim or config.embedding_dim)
    torch.manual_seed(experiment.seed)
    model = TwoTower(config, prepared.sizes(), prepared.catalogue, experiment.item_counts())
    model = model.to(device)
    positions = sequences.label_positions("train")
    size = experiment.recipe.two_tower_training.batch_size
    order = BatchOrder(len(positions), size, experiment.seed)
    teacher = Speaking(experiment, lesson, paths) if lesson.teacher else None
    asked = None
    if teacher:
        asked = BatchOrder(len(teacher.positions), size, experiment.seed + 1)

    def queries_at(places: np.ndarray[Any, Any]) -> JaggedBatch:
        found = sequences.queries(
            places, max_history=config.max_history, user_features=prepared.user_features
        )
        return found.to(device)

    def loss_at(step: int) -> Tensor:
        chosen = positions[order.indices(step)]
        hard = model.loss(queries_at(chosen), sequences.labels(chosen).to(device))
        if teacher is None or asked is None:
            return hard
        users = asked.indices(step)
        queries = queries_at(teacher.positions[users])
        said, rows = teacher.scores(users, queries)
        soft = soft_list_loss(scores_of_queries(model, queries), said, lesson.temperature, rows)
        return lesson.soft_share * soft + (1 - lesson.soft_share) * hard

    return model, loss_at, len(positions)


def student_row(settings: Settings, lesson: Lesson, paths: list[Path]) -> dict[str, Any]:
    """Teach and measure one student."""
    experiment, begin = settings.experiment(settings.seed), time.perf_counter()
    make = sequence_student if lesson.student == "sequence" else two_tower_student
    model, loss_at, num_examples = make(experiment, lesson, paths)
    training = getattr(experiment.recipe, f"{lesson.student}_training")
    training = replace(training, max_epochs=training.max_epochs * lesson.passes)
    source = ScoredSource(model.score)
    question = experiment.question("validation", training.validation_users)

    def evaluate(_: nn.Module) -> dict[str, float]:
        ranks = rank_all(source, question, 10, experiment.device).ranks
        return metrics_of(ranks, question.held_out.targets)

    train(
        model,
        loss_at,
        adamw(model, training.optimizer),
        training.for_examples(num_examples),
        evaluate=evaluate,
        tracker=SilentTracker(),
        progress=Quiet(),
    )
    return {
        **asdict(lesson),
        "num_parameters": num_parameters(model),
        "seconds": round(time.perf_counter() - begin, 1),
        **told(experiment, source, settings.split),
    }


def lessons_of(teacher: str, grid: bool) -> list[Lesson]:
    """List the students of a teacher; a grid of them to choose from on validation."""
    labels = [Lesson(student="two_tower", teacher=None), Lesson(student="sequence", teacher=None)]
    if teacher == "generative":
        taught = [Lesson(student="two_tower", teacher="generative", soft_share=0.1)]
        if grid:
            taught += [replace(taught[0], soft_share=share) for share in (0.3, 0.6)]
        return [*taught, labels[0]]
    taught = [
        Lesson(student="two_tower", teacher="ensemble", soft_share=0.8),
        Lesson(student="sequence", teacher="ensemble", soft_share=0.5, passes=1.3),
        Lesson(student="sequence", teacher="ensemble", soft_share=0.3, passes=1.3),
    ]
    if grid:
        taught += [
            replace(taught[1], soft_share=share, passes=1.0) for share in (0.5, 0.8, 1.0)
        ] + [replace(taught[1], temperature=2.0), replace(taught[1], embedding_dim=128)]
    return [*taught, *labels]


def train_all(settings: Settings, teacher: str, workers: int, grid: bool, raw: Path) -> None:
    """Train a teacher and its students, processes side by side; write every row as it comes."""
    rows: list[dict[str, Any]] = []
    device = torch.cuda.get_device_name() if settings.device == "cuda" else device_name()

    def note(done: Future[dict[str, Any]]) -> None:
        rows.append(done.result())
        print(json.dumps(rows[-1]), flush=True)
        document = {**asdict(settings), "device": device, "rows": rows}
        raw.write_text(json.dumps(document, indent=1))

    lessons = lessons_of(teacher, grid)
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(workers, get_context("spawn")) as pool,
    ):
        folder = Path(scratch)
        paths = [folder / "generative"]
        waiting: list[Future[dict[str, Any]]] = []
        if teacher == "generative":
            waiting.append(pool.submit(generative_row, settings, paths[0]))
        else:
            numbers = range(settings.num_members)
            trained = [pool.submit(member, settings, number, folder) for number in numbers]
            paths = [one.result() for one in trained]
            waiting.append(pool.submit(ensemble_row, settings, paths))
        alone = [one for one in lessons if not one.teacher]
        waiting += [pool.submit(student_row, settings, one, []) for one in alone]
        # What a teacher lists is there once it is measured.
        waiting[0].result()
        taught = [one for one in lessons if one.teacher]
        waiting += [pool.submit(student_row, settings, one, paths) for one in taught]
        for done in as_completed(waiting):
            note(done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("train", "table"))
    parser.add_argument("data", help="folder of prepared arrays")
    parser.add_argument("--raw", type=Path, nargs="+", required=True, help="numbers of training")
    parser.add_argument("--teacher", default="ensemble", choices=("ensemble", "generative"))
    parser.add_argument("--members", type=int, default=6, help="models of an ensemble")
    parser.add_argument("--split", default="validation", choices=("validation", "test"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--passes", type=float, default=1.0, help="share of the recipe's passes")
    parser.add_argument("--batch-size", type=int, default=512, help="windows of a step")
    parser.add_argument("--grid", action="store_true", help="more students, to choose from")
    parser.add_argument("--name", default="distillation", help="of the results")
    chosen = parser.parse_args()
    if chosen.what == "table":
        write_table(chosen.name, Path(chosen.data), chosen.raw)
        return
    settings = Settings(
        data=chosen.data,
        split=chosen.split,
        device=chosen.device,
        seed=chosen.seed,
        num_members=chosen.members,
        passes=chosen.passes,
        batch_size=chosen.batch_size,
    )
    train_all(settings, chosen.teacher, chosen.workers, chosen.grid, chosen.raw[0])


if __name__ == "__main__":
    main()
