"""Parts of the training stages: progress, curves, validation queries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipelines.engine.artifacts import RunLog, to_json
from pipelines.engine.console import log
from pipelines.engine.errors import UnstableTrainingError
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs, retrieval_settings
from pipelines.training.fitters import ModelFitter
from recsys.data.dataset import FitSplit
from recsys.fitting.queries import GIVEN, EvaluationQueries, ModelInputs, NewEvents
from recsys.fitting.spec import Data, Fitted, ModelSpec, Start, StopBy, TrainingRun, device_named
from recsys.kernels.choice import summary
from recsys.training.distributed.several import local_device, present_ranks
from recsys.training.loop import TrainingDiverged

NOTHING_TO_TRAIN_ON = (
    "left out, because no training event follows another of its user; build_features/report.json "
    "says what was filtered out"
)


class Curve:
    """Collects every metric of a training by step, and logs it at once where runs are tracked.

    With a file of its own, a training that was killed and resumes has its whole curve.
    """

    def __init__(self, run: RunLog, name: str = "", kept: Path | None = None) -> None:
        """Log to ``run`` as ``<name>/<metric>``, or as ``<metric>`` without a name."""
        self.rows = [] if kept is None else read_records(kept)
        self._run = run
        self._above = f"{name}/" if name else ""
        self._kept = kept
        self._has_logged = False

    def log(self, step: int, **values: float) -> None:
        row = {"step": step, **values}
        if not self._has_logged:
            self._forget_from(row)
        self.rows.append(row)
        if self._kept is not None:
            with self._kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, sort_keys=True) + "\n")
        self._run.log(step, **{f"{self._above}{name}": value for name, value in values.items()})

    def _forget_from(self, first: dict[str, float]) -> None:
        """Drop what a training that resumed at its checkpoint logs a second time."""
        self._has_logged = True
        repeated = [
            row["step"] == first["step"] and row.keys() == first.keys() for row in self.rows
        ]
        if True in repeated:
            del self.rows[repeated.index(True) :]
        if self._kept is not None:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            self.write(self._kept)

    def write(self, path: Path) -> None:
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


@contextmanager
def training_run(
    context: StageContext,
    name: str,
    *,
    title: str,
    checkpoint_dir: Path,
    curve_file: Path | None = None,
) -> Iterator[tuple[TrainingRun, Curve]]:
    """Show a training on the terminal and log its curve as ``<name>/<metric>``.

    Args:
        curve_file: Where its curve is kept meanwhile; None restarts it after a kill.

    Raises:
        UnstableTrainingError: If loss or gradients did not stay finite.
    """
    ranks = present_ranks(context.config.torchrun)
    curve = Curve(context.run, name, None if ranks.rank else curve_file)
    device = context.config.device
    place = device_named(device) if ranks.size == 1 else local_device(device)
    if place.type == "cuda" and ranks.rank == 0:
        log.print(f"[dim]{title}: {summary(place)}[/]")
    with ProgressBar(title, visible=context.show_progress) as progress:
        run = TrainingRun(
            seed=context.config.seed,
            device=place,
            checkpoint_dir=checkpoint_dir,
            progress=progress,
            curve=curve,
            ranks=ranks,
        )
        try:
            yield run, curve
        except TrainingDiverged as error:
            raise UnstableTrainingError(str(error)) from error


def fit(
    context: StageContext,
    fitter: ModelFitter,
    data: Data,
    until: FitSplit,
    stop_by: StopBy,
    *,
    name: str,
    note: str,
    new: NewEvents | None = None,
) -> tuple[Fitted[Any], Curve]:
    """Train a model of a stage; a killed training resumes."""
    with training_run(
        context,
        name,
        title=f"{fitter.title} ({note})",
        checkpoint_dir=context.checkpoints / name,
        curve_file=context.checkpoints / f"{name}.jsonl",
    ) as (run, curve):
        start = Start(run, stop_by, fitter.training, new)
        return fitter.fit(data, until, start), curve


def write_training(folder: Path, curve: Curve, document: Mapping[str, Any]) -> None:
    """Write how a training went."""
    folder.mkdir(parents=True, exist_ok=True)
    curve.write(folder / "curve.jsonl")
    (folder / "training.json").write_text(to_json(document))


def train_model(
    context: StageContext,
    spec: ModelSpec,
    data_for: Callable[[ModelInputs], Data] = lambda inputs: Data(inputs=inputs),
) -> StageRows:
    """Train a model on train; a killed training resumes from its newest checkpoint."""
    fitter = ModelFitter.of(spec, context.config)
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"))
    num_labels, num_items = inputs.sequences.num_labels("train"), inputs.sizes.num_item_rows - 1
    if not fitter.num_examples(inputs.sequences, "train"):
        log.print(f"{fitter.title}: {NOTHING_TO_TRAIN_ON}", style="yellow", soft_wrap=True)
        return StageRows(rows_in=num_labels, rows_out=num_items, more={"steps": 0})
    queries = EvaluationQueries.of(inputs, "validation", retrieval_settings(context.config))
    queries = queries.sample(fitter.training.validation_users, context.config.seed)
    data, note = data_for(inputs), "train"
    fitted, curve = fit(context, fitter, data, "train", queries, name=GIVEN, note=note)
    spec.write(fitted.model, context.output / GIVEN)
    summary = {**asdict(fitted.result), "num_labels": num_labels}
    write_training(context.output / GIVEN, curve, summary)
    more = {"steps": fitted.result.num_steps}
    more |= {"stopped_by_time": 1} if fitted.result.stopped_by_time else {}
    return StageRows(rows_in=num_labels, rows_out=num_items, more=more)
