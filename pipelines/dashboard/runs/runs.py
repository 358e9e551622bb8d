"""Page ``runs``: all runs, searched and ordered; and the settings in which two differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from pipelines.config.removed import REMOVED_KEYS
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import SERVED, Side
from pipelines.dashboard.data.sides import KINDS, ordered, searched
from pipelines.dashboard.query import Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Column,
    Link,
    LinkedCell,
    Page,
    Rows,
    Section,
    Table,
    Window,
    Words,
)
from pipelines.pages.wording import by_fame, metric_label, metric_meaning, model_label

NUM_LOOKED_AT = 200
"""Newest runs whose metrics are shown."""
NUM_METRICS = 3
HOW_TO_SEARCH = (
    "Metrics are of the served list on test. Words are searched in names, data sets, kinds, status "
    "and tags; settings and tags by their value: num_layers=2, decision=refused."
)


class RunColumn(NamedTuple):
    """A column, its value for a run, by which it is ordered, and its cell if that is another."""

    column: Column
    value: Callable[[Run], Any]
    cell: Callable[[Run], Cell | LinkedCell] | None = None


def time_text(run: Run) -> str | None:
    """Format the end of a run, ISO 8601 in UTC."""
    return None if run.time is None else f"{run.time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def tags_text(run: Run) -> str:
    """Format a run's tags."""
    return ", ".join(f"{name}: {value}" for name, value in run.tags.items())


def list_columns(runs: Sequence[Run]) -> list[RunColumn]:
    """List the columns of the table of runs; its metrics are the best known of the newest."""
    names = (name.split("/", 2) for run in runs[:NUM_LOOKED_AT] for name in run.metrics)
    known = dict.fromkeys(metric for split, _, metric in names if split == "test")

    def served_value(run: Run, metric: str) -> float | None:
        return run.metrics.get(f"test/{run.served}/{metric}")

    metrics = [
        RunColumn(
            numbers(metric_label(metric), format="metric", note=metric_meaning(metric))[0],
            partial(served_value, metric=metric),
        )
        for metric in by_fame(known)[:NUM_METRICS]
    ]
    (seconds,) = numbers("Time taken", format="seconds", note="all stages together")
    return [
        RunColumn(Column(label="Run"), attrgetter("name"), name_link),
        RunColumn(
            Column(label="When", note="when it ended (UTC)", format="time"),
            attrgetter("time"),
            time_text,
        ),
        RunColumn(Column(label="Data", note="the data set"), lambda run: run.dataset or ""),
        *metrics,
        RunColumn(seconds, attrgetter("seconds")),
        RunColumn(
            Column(label="Kind", note="a run's workspace, or a bundle"), lambda run: KINDS[run.kind]
        ),
        RunColumn(Column(label="Status"), attrgetter("status")),
        RunColumn(Column(label="Tags", note="what was decided, what is served"), tags_text),
    ]


def name_link(run: Run) -> LinkedCell:
    """Link to the page of a run."""
    link = Link(label=run.name, page="run", parameters={"run": run.key})
    return LinkedCell(text=run.name, link=link)


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
    runs = context.stores.runs()
    if not runs:
        return nothing_there(context)
    table = Table(
        key="runs",
        title="All runs",
        note=HOW_TO_SEARCH,
        columns=[one.column for one in list_columns(runs)],
        source="runs",
    )
    wrong = sum(run.status != "complete" for run in runs)
    states = f" {wrong:,} are unfinished or unreadable; their pages list why." if wrong else ""
    lead = f"{len(runs):,} runs and bundles of all workspaces, the newest first.{states}"
    return Page(title="Runs", lead=lead, blocks=[table])


def list_rows(context: Context, query: Query, window: Window) -> Rows:
    """Return the window of the table that is shown."""
    snapshot = context.stores.now()
    columns, order = list_columns(snapshot.runs), window.order_by

    def matching() -> Sequence[Run]:
        runs = searched(snapshot.runs, window.search)
        if order is None or order >= len(columns):
            return runs
        return ordered(runs, columns[order].value, descending=window.descending)

    key = ("rows of runs", snapshot.number, window.search, order, window.descending)
    found = context.cache.get(key, (), matching)
    part = found[window.start : window.start + window.length]
    rows = [[(one.cell or one.value)(run) for one in columns] for run in part]
    return Rows(total=len(snapshot.runs), found=len(found), rows=rows)


ENTRY = PageEntry(name="runs", title="Runs", build=build, rows={"runs": list_rows})


PLACES = (
    "workspace",
    "tracking.",
    "release.bundles",
    *(f"data.{name}" for name in ("dataset", "events", "items", "users", "partitions", "online_")),
)
"""Beginnings of the settings that name a place; the data themselves are compared by digests."""


def about(letter: str, side: Side) -> str:
    """Describe a side."""
    run, model = side.run, None if side.model == SERVED else model_label(side.model)
    facts = [f"{letter} is {run.kind} {run.name}", time_text(run), model, tags_text(run)]
    return f"{', '.join(filter(None, facts))}."


def changed_settings(first: Run, second: Run) -> list[list[str]] | None:
    """List the settings that differ, but for places; None if those of one are not on record.

    A bundle has those of its models' stages: with a run, the bundle's settings are compared.
    """
    configs = (first.config, second.config)
    if not all(configs):
        return None
    sections = [{name.partition(".")[0] for name in config} for config in configs]
    names = {*first.config, *second.config}
    if first.kind != second.kind:
        names = {*(first if first.kind == "bundle" else second).config}
    return [
        [name, *(config.get(name, "(not set)") for config in configs)]
        for name in sorted(names - REMOVED_KEYS.keys())
        if name.partition(".")[0] in sections[0] & sections[1]
        and first.config.get(name) != second.config.get(name)
        and not name.startswith(PLACES)
    ]


def settings_section(first: Run, second: Run) -> Section:
    """List the settings that differ, and whether the data do."""
    found = changed_settings(first, second)
    data = (first.data_digest, second.data_digest)
    state = "are the same" if data[0] == data[1] else "differ"
    lines = [f"The data {state if all(data) else 'are not on record for both'}."]
    if not found:
        none = "No setting that shapes results differs."
        lines.append("Settings are not on record for both." if found is None else none)
    table = Table(
        key="settings",
        title="Settings that differ",
        note="By the dotted names of the TOML file; places are left out.",
        columns=texts("Setting", "A", "B"),
        rows=found or (),
        origins=[first.origin, second.origin],
    )
    blocks: list[Block] = [Words(lines=lines), *([table] if found else [])]
    return Section(key="differences", title="What differs", blocks=blocks)
