"""What the training stages share: what is shown and kept of a run, validation, both tie orders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from pipelines.config.run import RunConfig, TrainingConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.console import log
from pipelines.engine.errors import UnstableTrainingError
from pipelines.engine.run_log import RunLog
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import HeldOut, batches, read_inputs, tie_orders
from recsys.data.batch import JaggedBatch
from recsys.evaluation.ranking import RankingConfig, evaluate_ranking
from recsys.fitting.inputs import ModelInputs
from recsys.models.generative.model import GenerativeModel
from recsys.models.ranker.model import Ranker
from recsys.models.sequence.members import first_members
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.training.loop import TrainConfig, TrainingDiverged, TrainResult, train
from recsys.training.optim import adamw
from recsys.training.progress import Tracker

Model = TwoTower | SequenceModel | GenerativeModel | Ranker


class Curve:
    """Collects every number of a training by step, and tells it at once where runs are tracked.

    Where it has a file of its own, a training that was killed and goes on has its whole curve.
    """

    def __init__(self, run: RunLog, name: str = "", kept: Path | None = None) -> None:
        """Tell ``run`` of ``<name>/<number>``, or of ``<number>`` without a name.

        Args:
            kept: File beside the checkpoints that each record is added to.
        """
        self.rows = [] if kept is None else read_records(kept)
        self._run = run
        self._above = f"{name}/" if name else ""
        self._kept = kept
        self._told = False

    def log(self, step: int, **values: float) -> None:
        row = {"step": step, **values}
        if not self._told:
            self._forget_from(row)
        self.rows.append(row)
        if self._kept is not None:
            with self._kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, sort_keys=True) + "\n")
        self._run.log(step, **{f"{self._above}{name}": value for name, value in values.items()})

    def _forget_from(self, first: dict[str, float]) -> None:
        """Drop what a training that went on at its checkpoint now tells again."""
        self._told = True
        again = [row["step"] == first["step"] and row.keys() == first.keys() for row in self.rows]
        if True in again:
            del self.rows[again.index(True) :]
        if self._kept is not None:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            self.write(self._kept)

    def write(self, path: Path) -> None:
        """Write one JSON line a record."""
        lines = [json.dumps(row, sort_keys=True) + "\n" for row in self.rows]
        path.write_text("".join(lines), encoding="utf-8")


def read_records(path: Path) -> list[dict[str, float]]:
    """Read a curve's records, up to one that a kill cut off."""
    rows: list[dict[str, float]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class ProgressBar:
    """Shows the steps of a training run as a bar on stderr, where that is a terminal."""

    def __init__(self, name: str, *, visible: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(
            *columns, console=log, transient=True, disable=not (visible and log.is_terminal)
        )
        self._task = self._bar.add_task(name, numbers="")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, step: int, num_steps: int, **values: float) -> None:
        numbers = " ".join(f"{name} {value:.3g}" for name, value in values.items())
        self._bar.update(self._task, completed=step, total=num_steps, numbers=numbers)


def save_model(model: Model, folder: Path, name: str) -> None:
    """Write a model; of a sequence model what profile fast asks, and beside it all members."""
    whole = model.to("cpu")
    first = first_members(whole) if isinstance(whole, SequenceModel) else whole
    first.save(folder / name)
    if first is not whole:
        whole.save(folder / "ensemble")


class TrainingRun(NamedTuple):
    """Where one training keeps its state and tells its numbers."""

    checkpoint_dir: Path
    progress: ProgressBar
    curve: Tracker


def training_device(training: TrainingConfig) -> torch.device:
    """Choose the device that the configuration names; ``auto`` takes a GPU where there is one."""
    name = training.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def validation_metrics(
    inputs: ModelInputs,
    config: RunConfig,
    training: TrainingConfig,
    score: Callable[[JaggedBatch], Tensor],
) -> Callable[[nn.Module], Mapping[str, float]]:
    """Measure a model on (a sample of) the validation split, as evaluate does on all of it.

    Args:
        score: Scores of every item for each query, [B, N]; queries have ``seen``.
    """
    device = training_device(training)
    held_out = HeldOut.of(inputs.sequences, "validation")
    held_out = held_out.sample(training.validation_users, config.seed)

    def evaluate(_: nn.Module) -> Mapping[str, float]:
        result = evaluate_ranking(
            lambda queries: score(queries.to(device)),
            batches(inputs, held_out, config),
            held_out.targets,
            RankingConfig(ks=(10,)),
            exclude=held_out.seen if config.evaluation.exclude_history else None,
        )
        return result.metrics

    return evaluate


def fit(
    model: Model,
    loss_at: Callable[[int], Tensor],
    training: TrainingConfig,
    train_config: TrainConfig,
    run: TrainingRun,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None,
) -> TrainResult:
    """Train a model to its best weights on validation, where ``evaluate`` measures any.

    Raises:
        UnstableTrainingError: If loss or gradients did not stay finite.
    """
    try:
        return train(
            model,
            loss_at,
            adamw(model, training.optimizer),
            train_config,
            evaluate=evaluate,
            tracker=run.curve,
            progress=run.progress,
            checkpoint_dir=run.checkpoint_dir,
        )
    except TrainingDiverged as error:
        raise UnstableTrainingError(str(error)) from error


def train_each_order(
    context: StageContext,
    name: str,
    fit_on: Callable[[ModelInputs, TrainingRun], tuple[Model, TrainResult]],
) -> StageRows:
    """Train once for each order of tied times; each resumes from its newest checkpoint.

    Args:
        name: Of the model's folder in each order's.
        fit_on: Fits a model on train.
    """
    num_labels = num_steps = num_items = 0
    for order in tie_orders(context.inputs["build_features"]):
        inputs = read_inputs(
            context.inputs["build_features"], context.inputs.get("embed_items"), order
        )
        num_labels = len(inputs.sequences.label_positions("train"))
        num_items = inputs.sizes.num_item_rows - 1
        curve = Curve(context.run, order, context.checkpoints / f"{order}.jsonl")
        title = f"{name.replace('_', '-')} ({order})"
        with ProgressBar(title, visible=context.show_progress) as progress:
            run = TrainingRun(context.checkpoints / order, progress, curve)
            model, result = fit_on(inputs, run)
        save_model(model, context.output / order, name)
        curve.write(context.output / order / "curve.jsonl")
        summary = {**asdict(result), "num_labels": num_labels}
        (context.output / order / "training.json").write_text(to_json(summary))
        num_steps += result.num_steps
    return StageRows(rows_in=num_labels, rows_out=num_items, more={"steps": num_steps})
