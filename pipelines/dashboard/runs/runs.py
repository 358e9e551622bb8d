"""Page ``runs``: all runs, searched, ordered, chosen for comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.search import KINDS, ordered, searched
from pipelines.dashboard.data.sides import suggest_runs
from pipelines.dashboard.query import Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import numbers
from pipelines.pages.document import (
    Block,
    Cell,
    Column,
    Control,
    Link,
    LinkedCell,
    Option,
    Page,
    Rows,
    Table,
    Window,
    Words,
)
from pipelines.pages.wording import by_fame, metric_label, metric_meaning

NUM_LOOKED_AT = 200
"""Newest runs whose metrics can be chosen."""
MAX_METRICS = 6
MAX_COMPARED = 5
HOW_TO_SEARCH = (
    "Metrics are of the served list on test. Words are searched in names, data sets, kinds, status "
    "and tags. Settings, tags and metrics take bounds: sequence.num_layers=2, num_layers>1, "
    "ndcg@10>=0.12, data=movielens, kind=bundle, decision=refused, seconds<600."
)


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """Metrics that are shown, and runs that are chosen for comparison."""

    metrics: tuple[str, ...]
    all_metrics: tuple[str, ...]
    compared: tuple[str, ...]

    @classmethod
    def of(cls, query: Query, runs: Sequence[Run]) -> RunChoice:
        """Read the choice from a page's parameters."""
        names = (name for run in runs[:NUM_LOOKED_AT] for name in run.metrics)
        known = (name.split("/", 2)[2] for name in names if name.startswith("test/"))
        every = tuple(by_fame(dict.fromkeys(known)))
        chosen = query.several("metric", at_most=MAX_METRICS)
        for metric in chosen:
            Query.of(metric=metric).choice("metric", every, metric)
        compared = query.several("runs", at_most=MAX_COMPARED)
        return cls(metrics=chosen or every[:3], all_metrics=every, compared=compared)


def served_value(run: Run, metric: str) -> float | None:
    """Look up a metric of the served list on test; None if it has none."""
    return run.metrics.get(f"test/{run.served}/{metric}")


def time_text(run: Run) -> str | None:
    """Format the end of a run, ISO 8601 in UTC."""
    return None if run.time is None else f"{run.time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def tags_text(run: Run) -> str:
    """Format a run's tags."""
    return ", ".join(f"{name}: {value}" for name, value in run.tags.items())


def link_to(run: Run) -> Link:
    """Link to the page of a run."""
    return Link(label=run.name, page="run", parameters={"run": run.key})


class RunColumn(NamedTuple):
    """A column, its value for a run, by which it is ordered, and its cell if that is another."""

    column: Column
    value: Callable[[Run], Any]
    cell: Callable[[Run], Cell | LinkedCell] | None = None

    def shown(self, run: Run) -> Cell | LinkedCell:
        """Build the cell."""
        found: Cell | LinkedCell = (self.cell or self.value)(run)
        return found


def list_columns(choice: RunChoice, query: Query, *, chooses: bool) -> list[RunColumn]:
    """List the columns of the table of runs."""

    def chosen_link(run: Run) -> LinkedCell:
        there = run.key in choice.compared
        keys = [key for key in choice.compared if key != run.key]
        runs = tuple(keys if there else [*keys, run.key][-MAX_COMPARED:])
        label = "Remove from comparison" if there else "Add to comparison"
        link = Link(label=label, page="runs", parameters={**query.values, "runs": runs})
        return LinkedCell(text="remove" if there else "add", link=link, sort=not there)

    def name_link(run: Run) -> LinkedCell:
        return LinkedCell(text=run.name, link=link_to(run))

    columns = [
        RunColumn(Column(label="Run"), attrgetter("name"), name_link),
        RunColumn(
            Column(label="Compare", note="choose two to five"),
            lambda run: run.key not in choice.compared,
            chosen_link,
        ),
        RunColumn(
            Column(label="When", note="when it ended (UTC)", format="time"),
            attrgetter("time"),
            time_text,
        ),
        RunColumn(Column(label="Data", note="the data set"), lambda run: run.dataset or ""),
    ]
    for metric in choice.metrics:
        (column,) = numbers(metric_label(metric), format="metric", note=metric_meaning(metric))
        columns.append(RunColumn(column, partial(served_value, metric=metric)))
    (seconds,) = numbers("Time taken", format="seconds", note="all stages together")
    (memory,) = numbers("Memory", format="bytes", note="of the largest stage")
    columns += [
        RunColumn(seconds, attrgetter("seconds")),
        RunColumn(memory, attrgetter("peak_memory")),
        RunColumn(
            Column(label="Kind", note="a run's workspace, or a bundle"),
            lambda run: KINDS[run.kind],
        ),
        RunColumn(Column(label="Status"), attrgetter("status")),
        RunColumn(Column(label="Tags", note="what was decided, what is served"), tags_text),
    ]
    return columns if chooses else [columns[0], *columns[2:]]


def nothing_there(context: Context) -> Page:
    """Build the page that is shown without a run: what to do."""
    if context.stores.now().reading:
        words = Words(lines=["Load this page in a few seconds."], tone="note")
        return Page(title="Runs", lead="Runs are being read.", blocks=[words])
    roots = ", ".join(str(root) for root in context.stores.places.roots) or "no folder"
    lines = [
        f"No run was found in {roots}.",
        "Make one with `recsys demo`, or with your own data: `recsys run shop.toml`.",
        "Runs elsewhere are shown with `recsys dashboard --root FOLDER` (repeatable), "
        "bundles with --bundles.",
    ]
    words = Words(lines=lines, tone="note")
    return Page(title="Runs", lead="There is no run yet.", blocks=[words])


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    snapshot = context.stores.now()
    if not snapshot.runs:
        return nothing_there(context)
    runs, choice = snapshot.runs, RunChoice.of(query, snapshot.runs)
    columns = list_columns(choice, query, chooses=not context.exported)
    table = Table(
        key="runs",
        title="All runs",
        note="" if context.exported else HOW_TO_SEARCH,
        columns=[one.column for one in columns],
        source="runs",
    )
    chosen = [] if context.exported else [_comparison(snapshot.by_key, choice)]
    wrong = sum(run.status != "complete" for run in runs)
    states = f" {wrong:,} are unfinished or unreadable; their pages list why." if wrong else ""
    return Page(
        title="Runs",
        lead=f"{len(runs):,} runs and bundles of all workspaces, the newest first.{states}",
        blocks=[*chosen, table],
        controls=[] if context.exported else _controls(choice),
    )


def _controls(choice: RunChoice) -> list[Control]:
    return [
        Control(
            name="metric",
            label="Metrics",
            kind="several",
            value=choice.metrics,
            options=[Option(value=one, label=metric_label(one)) for one in choice.all_metrics],
            at_most=MAX_METRICS,
        ),
        Control(
            name="runs",
            label="Compare",
            kind="several",
            value=choice.compared,
            suggest="runs",
            at_most=MAX_COMPARED,
        ),
    ]


def _comparison(known: Mapping[str, Run], choice: RunChoice) -> Block:
    runs = [known[key] for key in choice.compared if key in known]
    if not runs:
        words = "Choose two to five runs in the table to compare them."
        return Words(lines=[words], tone="note")
    names = ", ".join(run.name for run in runs)
    if len(runs) == 1:
        return Words(lines=[f"Chosen: {names}. Choose another one to compare."], tone="note")
    keys = {"runs": tuple(run.key for run in runs)}
    links = [Link(label="Compare their results", page="compare", parameters=keys)]
    if len(runs) == 2:
        links.append(Link(label="What differs", page="differences", parameters=keys))
    return Words(lines=[f"Chosen: {names}."], links=links)


def list_rows(context: Context, query: Query, window: Window) -> Rows:
    """Return the window of the table that is shown."""
    snapshot = context.stores.now()
    choice = RunChoice.of(query, snapshot.runs)
    columns = list_columns(choice, query, chooses=not context.exported)
    order = window.order_by

    def matching() -> Sequence[Run]:
        runs = searched(context, snapshot.runs, window.search)
        if order is None or order >= len(columns):
            return runs
        return ordered(runs, columns[order].value, descending=window.descending)

    # Choosing a run to compare changes no order, unless that is what it is ordered by.
    by_choice = choice.compared if order == 1 else ()
    looked = (window.search, order, window.descending, choice.metrics)
    found = context.cache.get(("rows of runs", snapshot.number, by_choice, looked), (), matching)
    part = found[window.start : window.start + window.length]
    rows = [[column.shown(run) for column in columns] for run in part]
    return Rows(total=len(snapshot.runs), found=len(found), rows=rows)


ENTRY = PageEntry(
    name="runs",
    title="Runs",
    build=build,
    rows={"runs": list_rows},
    suggest={"runs": suggest_runs},
)
