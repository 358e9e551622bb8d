"""Page ``runs``: all runs, searched, ordered, chosen for comparison, drawn over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.search import KINDS, ordered, searched
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import color_of, figure, line_chart, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Column,
    Control,
    Link,
    LinkedCell,
    Option,
    Page,
    Rows,
    Table,
    Tile,
    Tiles,
    Window,
    Words,
    select,
)
from pipelines.pages.wording import by_fame, metric_label, metric_meaning, model_label

SERVED = "served"
NUM_LOOKED_AT = 200
"""Newest runs whose metrics and models can be chosen."""
MAX_METRICS = 6
MAX_COMPARED = 5
MAX_DRAWN = 250
MAX_EXPORTED = 200
MAX_SERIES = 8
OTHERS = "other data"
HOW_TO_SEARCH = (
    "Words are searched in names, data sets, status and tags. Settings, tags and metrics take "
    "bounds: sequence.num_layers=2, num_layers>1, ndcg@10>=0.12, decision=refused, seconds<600."
)


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """Metrics and model that are shown, and runs that are chosen for comparison."""

    split: str
    model: str
    """`SERVED`: of each run the list that it serves."""
    metrics: tuple[str, ...]
    all_metrics: tuple[str, ...]
    all_models: tuple[str, ...]
    compared: tuple[str, ...]

    @classmethod
    def of(cls, query: Query, runs: Sequence[Run]) -> RunChoice:
        """Read the choice from a page's parameters."""
        split = query.choice("split", ("test", "validation"), "test")
        names = [name.split("/", 2) for run in runs[:NUM_LOOKED_AT] for name in run.metrics]
        known = [name[1:] for name in names if name[0] == split]
        models = tuple(dict.fromkeys(model for model, _ in known))
        every = tuple(by_fame(dict.fromkeys(metric for _, metric in known)))
        chosen = query.several("metric", at_most=MAX_METRICS)
        for metric in chosen:
            Query.of(metric=metric).choice("metric", every, metric)
        return cls(
            split=split,
            model=query.choice("model", (SERVED, *models), SERVED),
            metrics=chosen or every[:3],
            all_metrics=every,
            all_models=models,
            compared=query.several("runs", at_most=MAX_COMPARED),
        )

    def value(self, run: Run, metric: str) -> float | None:
        """Look up a metric of a run; None if it has none."""
        model = run.served if self.model == SERVED else self.model
        return run.metrics.get(f"{self.split}/{model}/{metric}")


def time_text(run: Run) -> str | None:
    """Format the end of a run, ISO 8601 in UTC."""
    return None if run.time is None else f"{run.time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def utc_text(run: Run) -> str:
    """Format the end of a run for a sentence."""
    return (time_text(run) or "").replace("T", " ").replace("Z", " UTC")


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

    model = "the served list" if choice.model == SERVED else model_label(choice.model)
    metrics = [
        RunColumn(
            Column(
                label=metric_label(metric),
                note=f"{metric_meaning(metric)}; of {model} on {choice.split}".lstrip("; "),
                numeric=True,
                format="metric",
            ),
            partial(choice.value, metric=metric),
        )
        for metric in choice.metrics
    ]
    compare = RunColumn(
        Column(label="Compare", note="choose two to five"),
        lambda run: run.key not in choice.compared,
        chosen_link,
    )
    when = Column(label="When", note="when it ended (UTC)", format="time")
    costs = [
        *numbers("Time taken", format="seconds", note="all stages together"),
        *numbers("Memory", format="bytes", note="of the largest stage"),
    ]
    return [
        RunColumn(
            Column(label="Run"),
            attrgetter("name"),
            lambda run: LinkedCell(text=run.name, link=link_to(run)),
        ),
        *([compare] if chooses else []),
        RunColumn(when, attrgetter("time"), time_text),
        RunColumn(Column(label="Data", note="the data set"), lambda run: run.dataset or ""),
        *metrics,
        *map(RunColumn, costs, (attrgetter("seconds"), attrgetter("peak_memory"))),
        RunColumn(
            Column(label="Kind", note="a run's workspace, or a bundle"),
            lambda run: KINDS[run.kind],
        ),
        RunColumn(Column(label="Status"), attrgetter("status")),
        RunColumn(Column(label="Tags", note="what was decided, what is served"), tags_text),
    ]


def chosen(runs: Sequence[Run], query: Query) -> list[Run]:
    """Keep the runs of the chosen kind and data set."""
    kind, data = query.choice("kind", ("", *KINDS), ""), query.text("data")
    return [
        run for run in runs if (not kind or run.kind == kind) and (not data or run.dataset == data)
    ]


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
    choice = RunChoice.of(query, snapshot.runs)
    runs = chosen(snapshot.runs, query)
    shape = (query.text("kind"), query.text("data"), choice.split, choice.model, choice.metrics[:1])
    of_runs = ("tiles of runs", snapshot.number, shape)
    blocks: list[Block] = [context.cache.get(of_runs, (), lambda: _tiles(runs, choice))]
    if not context.exported:
        blocks.append(_comparison(snapshot.by_key, choice))
    blocks += [*_drawn(runs, choice), _table(context, query, choice, runs)]
    return Page(
        title="Runs",
        lead=f"{len(snapshot.runs):,} runs and bundles of all workspaces, the newest first.",
        blocks=blocks,
        controls=[] if context.exported else _controls(snapshot.runs, choice, query),
    )


def _controls(runs: Sequence[Run], choice: RunChoice, query: Query) -> list[Control]:
    data = sorted({run.dataset for run in runs[:10_000] if run.dataset})
    places = {"": "all data", **{name: name for name in data[:100]}}
    models = {one: model_label(one) for one in choice.all_models}
    return [
        select("kind", "Kind", query.text("kind"), {"": "everything", **KINDS}),
        *([select("data", "Data", query.text("data"), places)] if len(data) > 1 else []),
        Control(
            name="metric",
            label="Metrics",
            kind="several",
            value=choice.metrics,
            options=[Option(value=one, label=metric_label(one)) for one in choice.all_metrics],
            at_most=MAX_METRICS,
        ),
        select("split", "Split", choice.split, {one: one for one in ("test", "validation")}),
        select("model", "Model", choice.model, {SERVED: "the served list", **models}),
        Control(
            name="runs",
            label="Compare",
            kind="several",
            value=choice.compared,
            suggest="runs",
            at_most=MAX_COMPARED,
        ),
    ]


def _tiles(runs: Sequence[Run], choice: RunChoice) -> Tiles:
    wrong = sum(run.status != "complete" for run in runs)
    tiles = [
        Tile(label="runs and bundles", value=f"{len(runs):,}"),
        Tile(
            label="unfinished or unreadable",
            value=f"{wrong:,}",
            note="their pages say what is missing" if wrong else "",
            tone="note" if wrong else "good",
        ),
    ]
    if not runs:
        return Tiles(tiles=tiles)
    newest = runs[0]
    note = utc_text(newest)
    tiles.append(Tile(label="newest", value=newest.name, note=note, link=link_to(newest)))
    for metric in choice.metrics[:1]:
        alike = [run for run in runs if run.dataset == newest.dataset]
        values = [choice.value(run, metric) for run in alike]
        known = [(value, place) for place, value in enumerate(values) if value is not None]
        if known:
            value, place = max(known)
            tiles.append(
                Tile(
                    label=f"highest {metric_label(metric)} on {newest.dataset or 'these data'}",
                    value=f"{value:.4f}",
                    note=f"{alike[place].name}, {choice.split}; it may be chance: compare",
                    link=link_to(alike[place]),
                )
            )
    return Tiles(tiles=tiles)


def _comparison(known: Mapping[str, Run], choice: RunChoice) -> Words:
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


def _drawn(runs: Sequence[Run], choice: RunChoice) -> list[Chart]:
    """Draw the first chosen metric over time."""
    metric = next(iter(choice.metrics), "")
    points = (
        (run, value, time)
        for run in runs
        if (value := choice.value(run, metric)) is not None and (time := time_text(run))
    )
    shown = list(islice(points, MAX_DRAWN))
    if not shown:
        return []
    found = Counter(run.dataset or OTHERS for run, _, _ in shown)
    names = sorted(found, key=lambda name: (name == OTHERS, -found[name], name))
    colors = {name: color_of(place) for place, name in enumerate(names[:MAX_SERIES])}
    if len(names) > MAX_SERIES:
        colors[OTHERS] = color_of(MAX_SERIES)
    label = metric_label(metric)
    older = f" The newest {MAX_DRAWN:,}." if len(shown) == MAX_DRAWN else ""
    chart = figure(
        line_chart,
        "metric-over-time",
        f"{label} over time",
        f"A dot a run, coloured by its data; higher is better. {metric_meaning(metric)}, "
        f"on {choice.split}. Runs on different data are not comparable.{older}",
        [
            *texts("run", "data", "colour"),
            Column(label="end (UTC)", format="time"),
            *numbers(label, format="metric"),
        ],
        [
            (run.name, run.dataset, run.dataset if run.dataset in colors else OTHERS, time, value)
            for run, value, time in shown
        ],
        "- - series x y",
        colors=colors,
        x_title="end of the run (UTC)",
        y_title=label,
        time=True,
        joined=False,
    )
    return [chart]


def _table(context: Context, query: Query, choice: RunChoice, runs: Sequence[Run]) -> Table:
    columns = list_columns(choice, query, chooses=not context.exported)
    rows = _cells(runs[:MAX_EXPORTED], columns) if context.exported else []
    return Table(
        key="runs",
        title="All runs",
        note=f"The newest {len(rows)} of {len(runs):,}." if context.exported else HOW_TO_SEARCH,
        columns=[one.column for one in columns],
        rows=rows,
        source=None if context.exported else "runs",
    )


def _cells(runs: Sequence[Run], columns: Sequence[RunColumn]) -> list[list[Cell | LinkedCell]]:
    return [[column.shown(run) for column in columns] for run in runs]


def list_rows(context: Context, query: Query, window: Window) -> Rows:
    """Return the window of the table that is shown."""
    snapshot = context.stores.now()
    choice = RunChoice.of(query, snapshot.runs)
    columns = list_columns(choice, query, chooses=True)
    order = window.order_by

    def matching() -> list[Run]:
        runs = chosen(snapshot.runs, query)
        runs = searched(context, runs, window.search, choice.split) if window.search else runs
        if order is None or order >= len(columns):
            return runs
        return ordered(runs, columns[order].value, descending=window.descending)

    # Choosing a run to compare changes no order, unless that is what it is ordered by.
    shape = tuple(sorted((name, value) for name, value in query.values.items() if name != "runs"))
    by_choice = choice.compared if order == 1 else ()
    looked = (window.search, order, window.descending)
    key = ("rows of runs", snapshot.number, shape, by_choice, looked)
    found = context.cache.get(key, (), matching)
    shown = found[window.start : window.start + window.length]
    return Rows(total=len(snapshot.runs), found=len(found), rows=_cells(shown, columns))


def suggested(context: Context, query: Query, text: str) -> list[Option]:
    """Find runs to choose, as the reader types."""
    runs = searched(context, context.stores.runs(), text, "test")[:20]
    labels = [f"{run.name} ({KINDS[run.kind]}, {(time_text(run) or '')[:10]})" for run in runs]
    return [Option(value=run.key, label=label) for run, label in zip(runs, labels, strict=True)]


ENTRY = PageEntry(
    name="runs",
    title="Runs",
    build=build,
    rows={"runs": list_rows},
    suggest={"runs": suggested},
)
