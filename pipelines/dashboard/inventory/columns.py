"""The columns of the table of runs, and which metrics there are to choose from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from pipelines.dashboard.inventory.search import KINDS
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.run import Run
from pipelines.pages.document import Cell, Column, Control, Link, LinkedCell, Option
from pipelines.pages.wording import (
    by_fame,
    metric_label,
    metric_meaning,
    model_label,
)

SERVED = "served"
NUM_LOOKED_AT = 200
"""Newest runs whose metrics and models can be chosen."""
MAX_METRICS = 6
MAX_COMPARED = 5


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which metrics of which model are shown."""

    split: str
    model: str
    """`SERVED`: of each run the list that it serves."""
    metrics: tuple[str, ...]
    all_metrics: tuple[str, ...]
    all_models: tuple[str, ...]
    compared: tuple[str, ...]
    """Keys of the runs that are chosen for comparison."""

    @classmethod
    def of(cls, query: Query, runs: Sequence[Run]) -> Choice:
        """Read the choice from a page's parameters.

        Raises:
            QueryError: A value that cannot be.
        """
        split = query.choice("split", ("test", "validation"), "test")
        models: dict[str, None] = {}
        metrics: dict[str, None] = {}
        for run in runs[:NUM_LOOKED_AT]:
            for name in run.metrics:
                part, _, rest = name.partition("/")
                if part == split:
                    model, _, metric = rest.partition("/")
                    models[model] = metrics[metric] = None
        every = tuple(by_fame(metrics))
        model = query.choice("model", (SERVED, *models), SERVED)
        chosen = query.several("metric", at_most=MAX_METRICS)
        for metric in chosen:
            Query.of(metric=metric).choice("metric", every, metric)
        return cls(
            split=split,
            model=model,
            metrics=chosen or every[:3],
            all_metrics=every,
            all_models=tuple(models),
            compared=query.several("runs", at_most=MAX_COMPARED),
        )

    def value(self, run: Run, metric: str) -> float | None:
        """Look up a metric of a run; None where it has none."""
        model = run.served if self.model == SERVED else self.model
        return run.metrics.get(f"{self.split}/{model}/{metric}")

    def values(self, runs: Sequence[Run], metric: str) -> list[float | None]:
        """Look up a metric of many runs."""
        served = {
            model: f"{self.split}/{model}/{metric}" for model in (*self.all_models, self.model)
        }
        if self.model != SERVED:
            name = served[self.model]
            return [run.metrics.get(name) for run in runs]
        return [run.metrics.get(served.get(run.served or "", "")) for run in runs]

    def controls(self) -> list[Control]:
        """Lay out what changes it."""
        named = [Option(value=one, label=model_label(one)) for one in self.all_models]
        return [
            Control(
                name="metric",
                label="Metrics",
                kind="several",
                value=self.metrics,
                options=[Option(value=one, label=metric_label(one)) for one in self.all_metrics],
                at_most=MAX_METRICS,
            ),
            Control(
                name="split",
                label="Split",
                kind="select",
                value=self.split,
                options=[Option(value=one, label=one) for one in ("test", "validation")],
            ),
            Control(
                name="model",
                label="Model",
                kind="select",
                value=self.model,
                options=[Option(value=SERVED, label="the served list"), *named],
            ),
        ]


def time_text(run: Run) -> str | None:
    """Write when a run ended, ISO 8601 in UTC."""
    if run.time is None:
        return None
    return run.time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def link_to(run: Run) -> Link:
    """Link to the page of a run."""
    return Link(label=run.name, page="run", parameters={"run": run.key})


@dataclass(frozen=True)
class RunColumn:
    """A column, and its cell for a run."""

    column: Column
    value: Callable[[Run], Any]
    """What the column is ordered by."""
    cell: Callable[[Run], Cell | LinkedCell] | None = None
    """What is shown, where that is not the value."""
    of_many: Callable[[Sequence[Run]], Sequence[Any]] | None = None
    """The values of many runs at once, where that is faster."""

    def values(self, runs: Sequence[Run]) -> Sequence[Any]:
        """What the column is ordered by, for each run."""
        return [self.value(run) for run in runs] if self.of_many is None else self.of_many(runs)

    def shown(self, run: Run) -> Cell | LinkedCell:
        """Make the cell."""
        found: Cell | LinkedCell = self.value(run) if self.cell is None else self.cell(run)
        return found


def tags_text(run: Run) -> str:
    """Format a run's tags."""
    return ", ".join(f"{name}: {value}" for name, value in run.tags.items())


def _metric_column(choice: Choice, metric: str) -> RunColumn:
    model = "the served list" if choice.model == SERVED else model_label(choice.model)
    note = f"{metric_meaning(metric)}; of {model} on {choice.split}".lstrip("; ")
    column = Column(label=metric_label(metric), note=note, numeric=True, format="metric")
    return RunColumn(
        column,
        lambda run: choice.value(run, metric),
        of_many=lambda runs: choice.values(runs, metric),
    )


def columns_of(choice: Choice, query: Query, *, chooses: bool) -> list[RunColumn]:
    """Lay out the table of runs.

    Args:
        chooses: Whether runs can be chosen for comparison.
    """

    def chosen_link(run: Run) -> LinkedCell:
        there = run.key in choice.compared
        keys = [key for key in choice.compared if key != run.key]
        runs = tuple(keys if there else [*keys, run.key][-MAX_COMPARED:])
        link = Link(
            label="Remove from comparison" if there else "Add to comparison",
            page="runs",
            parameters={**query.values, "runs": runs},
        )
        return LinkedCell(text="remove" if there else "add", link=link, sort=not there)

    columns = [
        RunColumn(
            Column(label="Run"),
            lambda run: run.name,
            lambda run: LinkedCell(text=run.name, link=link_to(run)),
        ),
        RunColumn(
            Column(label="When", note="when it ended (UTC)", format="time"),
            lambda run: None if run.time is None else run.time.timestamp(),
            time_text,
        ),
        RunColumn(Column(label="Data", note="the data set"), lambda run: run.dataset or ""),
        *[_metric_column(choice, metric) for metric in choice.metrics],
        RunColumn(
            Column(label="Time taken", note="all stages together", numeric=True, format="seconds"),
            lambda run: run.seconds,
        ),
        RunColumn(
            Column(label="Memory", note="of the largest stage", numeric=True, format="bytes"),
            lambda run: run.peak_memory,
        ),
        RunColumn(
            Column(label="Kind", note="a run's workspace, or a bundle"),
            lambda run: KINDS[run.kind],
        ),
        RunColumn(Column(label="Status"), lambda run: run.status),
        RunColumn(Column(label="Tags", note="what was decided, what is served"), tags_text),
    ]
    if chooses:
        compare = RunColumn(
            Column(label="Compare", note="choose two to five"),
            lambda run: run.key not in choice.compared,
            chosen_link,
        )
        columns.insert(1, compare)
    return columns
