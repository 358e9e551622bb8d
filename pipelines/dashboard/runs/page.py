"""The page of all runs: searched, ordered, chosen for comparison, drawn over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import islice
from typing import Any

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.search import KINDS, ordered, searched
from pipelines.dashboard.workspaces.run import Run
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
)
from pipelines.pages.wording import (
    by_fame,
    metric_label,
    metric_meaning,
    model_label,
)

MAX_DRAWN = 250
MAX_EXPORTED = 200
MAX_SERIES = 8
OTHERS = "other data"
HOW_TO_SEARCH = (
    "Words are searched in names, data sets, status and tags. Settings, tags and metrics take "
    "bounds: sequence.num_layers=2, num_layers>1, ndcg@10>=0.12, decision=refused, seconds<600."
)


def chosen(runs: Sequence[Run], query: Query) -> list[Run]:
    """Keep the runs of the chosen kind and data set.

    Raises:
        QueryError: A kind that there is not.
    """
    kind = query.choice("kind", ("", *KINDS), "")
    data = query.text("data")
    if not kind and not data:
        return list(runs)
    return [
        run for run in runs if (not kind or run.kind == kind) and (not data or run.dataset == data)
    ]


def nothing_there(context: Context) -> Page:
    """Say what to do where there is no run."""
    if context.stores.now().reading:
        words = Words(lines=["Load this page in a few seconds."], tone="note")
        return Page(title="Runs", lead="Runs are being read.", blocks=[words])
    roots = ", ".join(str(root) for root in context.stores.places.roots) or "no folder"
    lines = [
        f"No run was found in {roots}.",
        "Make one with `recsys demo`, or with your own data: `recsys run --config shop.toml`.",
        "Runs elsewhere are shown with `recsys dashboard --root FOLDER` (repeatable), "
        "bundles with --bundles.",
    ]
    return Page(
        title="Runs",
        lead="There is no run yet.",
        blocks=[Words(lines=lines, tone="note")],
    )


def build(context: Context, query: Query) -> Page:
    """Make the page."""
    snapshot = context.stores.now()
    if not snapshot.runs:
        return nothing_there(context)
    choice = Choice.of(query, snapshot.runs)
    runs = chosen(snapshot.runs, query)
    shape = (query.text("kind"), query.text("data"), choice.split, choice.model, choice.metrics[:1])
    tiles = context.cache.get(
        ("tiles of runs", snapshot.number, shape), (), lambda: _tiles(runs, choice)
    )
    blocks: list[Block] = [tiles]
    if not context.exported:
        blocks.append(_comparison(snapshot.by_key, choice))
    blocks += _drawn(runs, choice)
    blocks.append(_table(context, query, choice, runs))
    return Page(
        title="Runs",
        lead=f"{len(snapshot.runs):,} runs and bundles of all workspaces, the newest first.",
        blocks=blocks,
        controls=_controls(snapshot.runs, choice, query, context),
    )


def _controls(runs: Sequence[Run], choice: Choice, query: Query, context: Context) -> list[Control]:
    if context.exported:
        return []
    data = sorted({run.dataset for run in runs[:10_000] if run.dataset})
    controls = [
        Control(
            name="kind",
            label="Kind",
            kind="select",
            value=query.text("kind"),
            options=[
                Option(value="", label="everything"),
                *(Option(value=kind, label=label) for kind, label in KINDS.items()),
            ],
        ),
        *choice.controls(),
        Control(
            name="runs",
            label="Compare",
            kind="several",
            value=choice.compared,
            suggest="runs",
            at_most=MAX_COMPARED,
        ),
    ]
    if len(data) > 1:
        options = [Option(value=name, label=name) for name in data[:100]]
        every = Option(value="", label="all data")
        control = Control(
            name="data",
            label="Data",
            kind="select",
            value=query.text("data"),
            options=[every, *options],
        )
        controls.insert(1, control)
    return controls


def _tiles(runs: Sequence[Run], choice: Choice) -> Tiles:
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
    if runs:
        newest = runs[0]
        tiles.append(
            Tile(
                label="newest",
                value=newest.name,
                note=(time_text(newest) or "").replace("T", " ").replace("Z", " UTC"),
                link=link_to(newest),
            )
        )
        tiles += _best(runs, newest.dataset, choice)
    return Tiles(tiles=tiles)


def _best(runs: Sequence[Run], dataset: str | None, choice: Choice) -> list[Tile]:
    """Name the best run on the data of the newest one."""
    if not choice.metrics:
        return []
    metric = choice.metrics[0]
    alike = [run for run in runs if run.dataset == dataset]
    values = choice.values(alike, metric)
    known = [(value, place) for place, value in enumerate(values) if value is not None]
    if not known:
        return []
    value, place = max(known)
    run = alike[place]
    return [
        Tile(
            label=f"highest {metric_label(metric)} on {dataset or 'these data'}",
            value=f"{value:.4f}",
            note=f"{run.name}, {choice.split}; a difference may be chance: compare",
            link=link_to(run),
        )
    ]


def _comparison(known: Mapping[str, Run], choice: Choice) -> Words:
    runs = [known[key] for key in choice.compared if key in known]
    keys = tuple(run.key for run in runs)
    if not runs:
        words = "Choose two to five runs in the table to compare them."
        return Words(lines=[words], tone="note")
    names = ", ".join(run.name for run in runs)
    if len(runs) == 1:
        return Words(lines=[f"Chosen: {names}. Choose another one to compare."], tone="note")
    links = [Link(label="Compare their results", page="compare", parameters={"runs": keys})]
    if len(runs) == 2:
        parameters = {"runs": keys}
        links.append(Link(label="What differs", page="differences", parameters=parameters))
    return Words(lines=[f"Chosen: {names}."], links=links)


def _drawn(runs: Sequence[Run], choice: Choice) -> list[Block]:
    """Draw the first chosen metric over time."""
    from pipelines.pages.charts.moments import Moment, moments_chart
    from pipelines.pages.charts.style import color_of

    if not choice.metrics:
        return []
    metric = choice.metrics[0]
    points = (
        (run, value, time)
        for run in runs
        if (value := choice.value(run, metric)) is not None and (time := time_text(run))
    )
    shown = list(islice(points, MAX_DRAWN))
    if not shown:
        return []
    counts: dict[str, int] = {}
    for run, _, _ in shown:
        counts[run.dataset or OTHERS] = counts.get(run.dataset or OTHERS, 0) + 1
    names = sorted(counts, key=lambda name: (name == OTHERS, -counts[name], name))
    colors = {name: color_of(place) for place, name in enumerate(names[:MAX_SERIES])}
    if len(names) > MAX_SERIES:
        colors[OTHERS] = color_of(MAX_SERIES)
    label = metric_label(metric)
    moments = [
        Moment(
            time=time,
            y=value,
            series=run.dataset if run.dataset in colors else OTHERS,
            note=f"{run.name} \u00b7 {label} {value:.4f} \u00b7 {time[:10]}",
        )
        for run, value, time in shown
    ]
    older = f" The newest {MAX_DRAWN:,}." if len(shown) == MAX_DRAWN else ""
    return [
        Chart(
            key="metric-over-time",
            title=f"{label} over time",
            note=f"A dot a run, coloured by its data; higher is better. {metric_meaning(metric)}, "
            f"on {choice.split}. Runs on different data are not comparable.{older}",
            description=f"{label} of {len(shown)} runs by the time they ended.",
            spec=moments_chart(moments, colors, x_title="end of the run (UTC)", y_title=label),
            columns=("run", "data", "end (UTC)", label),
            rows=[(run.name, run.dataset, time, value) for run, value, time in shown],
            legend=colors if len(colors) > 1 else {},
        )
    ]


def _table(context: Context, query: Query, choice: Choice, runs: Sequence[Run]) -> Table:
    columns = columns_of(choice, query, chooses=not context.exported)
    note = HOW_TO_SEARCH
    rows: list[list[Cell | LinkedCell]] = []
    if context.exported:
        rows = _cells(runs[:MAX_EXPORTED], columns)
        note = f"The newest {len(rows)} of {len(runs):,}."
    return Table(
        key="runs",
        title="All runs",
        note=note,
        columns=[one.column for one in columns],
        rows=rows,
        source=None if context.exported else "runs",
    )


def _cells(runs: Sequence[Run], columns: Sequence[RunColumn]) -> list[list[Cell | LinkedCell]]:
    return [[column.shown(run) for column in columns] for run in runs]


def rows_of(context: Context, query: Query, window: Window) -> Rows:
    """Return the window of the table that is shown."""
    snapshot = context.stores.now()
    choice = Choice.of(query, snapshot.runs)
    columns = columns_of(choice, query, chooses=True)

    def matching() -> list[Run]:
        runs = chosen(snapshot.runs, query)
        runs = searched(context, runs, window.search, choice.split) if window.search else runs
        if window.order_by is None or window.order_by >= len(columns):
            return runs
        values = columns[window.order_by].values(runs)
        return ordered(runs, values, descending=window.descending)

    # Choosing a run to compare changes no order, unless that is what it is ordered by.
    shape = tuple(sorted((name, value) for name, value in query.values.items() if name != "runs"))
    by_choice = choice.compared if window.order_by == 1 else ()
    order = (window.search, window.order_by, window.descending)
    key = ("rows of runs", snapshot.number, shape, by_choice, order)
    found = context.cache.get(key, (), matching)
    shown = found[window.start : window.start + window.length]
    return Rows(total=len(snapshot.runs), found=len(found), rows=_cells(shown, columns))


def suggested(context: Context, query: Query, text: str) -> list[Option]:
    """Find runs to choose, as the reader types."""
    runs = searched(context, context.stores.runs(), text, "test")
    return [
        Option(
            value=run.key, label=f"{run.name} ({KINDS[run.kind]}, {(time_text(run) or '')[:10]})"
        )
        for run in runs[:20]
    ]


ENTRY = PageEntry(
    name="runs",
    title="Runs",
    build=build,
    rows={"runs": rows_of},
    suggest={"runs": suggested},
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
