"""Stage train_two_tower: fit the two-tower on train, pick its number of steps on validation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from pipelines.artifacts import to_json
from pipelines.config import RunConfig
from pipelines.console import log
from pipelines.model_inputs import HeldOut, ModelInputs, queries_per_batch, tie_orders
from pipelines.outbox import RunLog
from pipelines.stage import StageContext, StageRows
from pipelines.stage_errors import UnstableTrainingError
from recsys.data.dataset import concatenated_ranges
from recsys.data.order import BatchOrder
from recsys.evaluation.ranking import RankingConfig, evaluate_ranking
from recsys.models.two_tower import TwoTower
from recsys.training.loop import TrainConfig, TrainingDiverged, TrainResult, train
from recsys.training.optim import adamw


class Curve:
    """Collects every number of a training by step, and tells it at once where runs are tracked."""

    def __init__(self, run: RunLog, name: str = "") -> None:
        """Tell ``run`` of ``<name>/<number>``, or of ``<number>`` without a name."""
        self.rows: list[dict[str, float]] = []
        self._run = run
        self._above = f"{name}/" if name else ""

    def log(self, step: int, **values: float) -> None:
        self.rows.append({"step": step, **values})
        self._run.log(step, **{f"{self._above}{name}": value for name, value in values.items()})

    def write(self, path: Path) -> None:
        """Write one JSON line a record."""
        lines = [json.dumps(row, sort_keys=True) + "\n" for row in self.rows]
        path.write_text("".join(lines), encoding="utf-8")


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


def training_device(config: RunConfig) -> torch.device:
    """Choose the device that the configuration names; ``auto`` takes a GPU where there is one."""
    name = config.training.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def make_two_tower(
    inputs: ModelInputs, config: RunConfig, split: Literal["train", "all"], device: torch.device
) -> TwoTower:
    """Build an untrained model that knows how often each item occurs in its split."""
    sequences = inputs.sequences
    visible = concatenated_ranges(sequences.offsets[:-1], sequences.visible_end(split))
    counts = np.bincount(sequences.item_rows[visible], minlength=inputs.sizes.num_item_rows)
    torch.manual_seed(config.seed)
    model = TwoTower(config.two_tower, inputs.sizes, inputs.catalogue, torch.from_numpy(counts))
    return model.to(device)


def validation_metrics(
    inputs: ModelInputs, config: RunConfig, device: torch.device
) -> Callable[[nn.Module], Mapping[str, float]]:
    """Measure a model on (a sample of) the validation split, as evaluate does on all of it."""
    held_out = HeldOut.of(inputs.sequences, "validation")
    held_out = held_out.sample(config.training.validation_users, config.seed)
    size = queries_per_batch(inputs, config)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, TwoTower)
        batches = (
            inputs.queries(positions, max_history=config.two_tower.max_history)
            for positions in np.split(
                held_out.positions, range(size, len(held_out.positions), size)
            )
        )
        result = evaluate_ranking(
            lambda queries: model.score(queries.to(device)),
            batches,
            held_out.targets,
            RankingConfig(ks=(10,)),
            exclude=held_out.seen if config.evaluation.exclude_history else None,
        )
        return result.metrics

    return evaluate


def fit_two_tower(
    inputs: ModelInputs,
    config: RunConfig,
    train_config: TrainConfig,
    *,
    split: Literal["train", "all"],
    checkpoint_dir: Path,
    progress: ProgressBar,
    curve: Curve,
) -> tuple[TwoTower, TrainResult]:
    """Train on the labels of a split; on ``train`` the validation split picks the best weights."""
    device = training_device(config)
    sequences = inputs.sequences
    positions = sequences.label_positions(split)
    model = make_two_tower(inputs, config, split, device)
    order = BatchOrder(len(positions), config.training.batch_size, config.seed)

    def loss_at(step: int) -> torch.Tensor:
        chosen = positions[order.indices(step)]
        queries = inputs.queries(chosen, max_history=config.two_tower.max_history)
        return model.loss(queries.to(device), sequences.labels(chosen).to(device))

    try:
        result = train(
            model,
            loss_at,
            adamw(model, config.training.optimizer),
            train_config,
            evaluate=validation_metrics(inputs, config, device) if split == "train" else None,
            tracker=curve,
            progress=progress,
            checkpoint_dir=checkpoint_dir,
        )
    except TrainingDiverged as error:
        raise UnstableTrainingError(str(error)) from error
    return model, result


def train_two_tower(context: StageContext) -> StageRows:
    """Train once for each order of tied times; resumes from the newest checkpoint."""
    config = context.config
    num_labels = num_steps = 0
    for order in tie_orders(context.inputs["build_features"]):
        inputs = ModelInputs.load(
            context.inputs["build_features"], context.inputs.get("embed_items"), order
        )
        num_labels = len(inputs.sequences.label_positions("train"))
        curve = Curve(context.run, order)
        with ProgressBar(f"two-tower ({order})", visible=context.show_progress) as progress:
            model, result = fit_two_tower(
                inputs,
                config,
                config.training.for_labels(num_labels),
                split="train",
                checkpoint_dir=context.checkpoints / order,
                progress=progress,
                curve=curve,
            )
        model.to("cpu").save(context.output / order / "two_tower")
        curve.write(context.output / order / "curve.jsonl")
        summary = {**asdict(result), "num_labels": num_labels}
        (context.output / order / "training.json").write_text(to_json(summary))
        num_steps += result.num_steps
    return StageRows(
        rows_in=num_labels, rows_out=inputs.sizes.num_item_rows - 1, more={"steps": num_steps}
    )
