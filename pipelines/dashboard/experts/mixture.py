"""The part of the page about the ranker's mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.runs.find import RELEASED, UPDATE
from pipelines.dashboard.runs.run import Run
from pipelines.pages.charts.heat import Cell, heat_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.columns import shares, texts
from pipelines.pages.document import (
    Block,
    Chart,
    Column,
    Origin,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
)
from pipelines.pages.figure import chart_of, percent
from pipelines.pages.ranker_figures import ranker_figures
from pipelines.pages.rankers import FILE, TRUNK_NAMES, RankerReport, Routing, read_ranker

STAGE = "train_ranker"
CROWDED = 1.0
"""Largest load over the mean, less 1, from which balance is called bad."""
SPECIFIC = 1.25
"""Times of an expert's overall share from which a group is called its own."""
NAMED = 3
"""Groups named of each expert."""
NO_RANKER = (
    "No ranker was trained in this run. [ranker_training] enabled = true trains one, and "
    '[ranker] trunk = "sparse" gives it a mixture of experts; then recsys run.'
)
DENSE = (
    "The ranker has no router: every candidate visits all of its layers. [ranker] "
    'trunk = "sparse" makes a mixture of experts, and [ranker_training] compared = ["sparse"] '
    "trains one beside it for comparison."
)


class Found(NamedTuple):
    """A run's ranker."""

    report: RankerReport
    features: Path
    """The build_features whose item rows its measurements name; may be gone."""


def places_of(context: Context, run: Run) -> Iterator[Path]:
    """List the folders in which the stages of a run may lie, the likeliest first."""
    if run.kind == "workspace":
        yield run.path
        return
    try:
        maker = None if run.made_by is None else context.stores.run(run.made_by)
    except NotFoundError:
        maker = None
    if maker is not None and maker.path is not None:
        version = run.name.partition("+")[0]
        whole = maker.path.parent if maker.path.name == UPDATE else maker.path
        yield whole / RELEASED / version
        if maker.bundles[:1] == (version,):
            yield maker.path


def find_ranker(context: Context, run: Run) -> Found | str:
    """Read a run's ranker, or say why there is none."""
    for place in places_of(context, run):
        stage = place / STAGE
        orders = sorted(path.parent.name for path in stage.glob(f"*/{FILE}"))
        if not orders:
            continue
        order = "given" if "given" in orders else orders[0]
        try:
            report = read_ranker(stage, order)
        except (OSError, ValueError, LookupError, TypeError) as error:
            return f"The ranker's measurements cannot be read: {type(error).__name__}: {error}"
        if report is not None:
            return Found(report, place / "build_features")
    if run.kind == "bundle":
        return (
            "A bundle holds no measurements of its ranker, and those of the run that made it are "
            "not here. Choose a run."
        )
    return NO_RANKER


def mixture_sections(found: Found, origins: Sequence[Origin]) -> list[Section]:
    """Show the trunks, and of each router its balance and what its experts are for."""
    report = found.report
    if not report.trunks:
        words = Words(lines=[f"No ranker could be trained: {report.reason}"], tone="note")
        return [Section(key="ranker", title="Ranker", blocks=[words])]
    titles = titles_of(found.features, report.routings)
    return [
        _ranker_section(report, origins),
        *(_routing_section(one, report, titles, origins) for one in report.routings),
    ]


def _ranker_section(report: RankerReport, origins: Sequence[Origin]) -> Section:
    state = "served" if report.served else "not served"
    lines = [f"The ranker is {state}: {report.reason}."]
    if not report.routings:
        lines.append(DENSE)
    lines.append(f"Tasks: {', '.join(report.tasks)} ({report.tasks_reason}).")
    if report.routings:
        lines.append(
            "A candidate's experts are the same for all tasks, which have heads of their own; so "
            "routing cannot differ by task."
        )
    metric = Column(label=report.metric or "metric", numeric=True, format="metric")
    table = Table(
        key="trunks",
        title="Trunks on validation",
        note="The ranker's first; others are trained for comparison ([ranker_training] compared).",
        columns=[
            *texts("trunk"),
            metric,
            Column(label="difference to the ranker", numeric=True, format="signed"),
            Column(label="standard error", numeric=True, format="metric"),
            Column(label="operations a candidate", numeric=True, format="count"),
        ],
        rows=[
            (
                TRUNK_NAMES.get(one.trunk, one.trunk),
                one.validation,
                one.ahead if place else None,
                one.standard_error if place else None,
                one.flops,
            )
            for place, one in enumerate(report.trunks)
        ],
        origins=origins,
    )
    blocks: list[Block] = [Words(lines=lines), table]
    return Section(key="ranker", title="Ranker", blocks=blocks)


def _routing_section(
    routing: Routing, report: RankerReport, titles: Mapping[int, str], origins: Sequence[Origin]
) -> Section:
    figures = [load_figure(routing), heat_figure(routing)]
    own = f"routing-{routing.trunk}-"
    figures += [figure for figure in ranker_figures(report) if figure.key.startswith(own)]
    trunk = TRUNK_NAMES.get(routing.trunk, routing.trunk)
    return Section(
        key=f"mixture-{routing.trunk}",
        title=f"Mixture of experts: {trunk}",
        note=f"One layer of {routing.num_experts} experts, {routing.top_k} of each candidate; "
        f"measured on {routing.num_candidates:,} candidates of validation. The balance is not "
        "recorded during training: biases are settled over whole lists as it goes on.",
        blocks=[
            _tiles(routing),
            *(chart_of(figure, origins) for figure in figures),
            expert_table(routing, titles, origins),
        ],
    )


def _tiles(routing: Routing) -> Tiles:
    dead = routing.dead_experts
    most = routing.max_violation
    return Tiles(
        tiles=[
            Tile(label="experts", value=f"{routing.num_experts}", note=f"{routing.top_k} chosen"),
            Tile(
                label="dead experts",
                value=f"{dead}",
                note="no candidate goes to them" if dead else "every one is used",
                tone="bad" if dead else "good",
            ),
            Tile(
                label="largest load over the mean",
                value=f"{1 + most:.2f}",
                note="1 is even",
                tone="bad" if most > CROWDED else "good",
            ),
            Tile(label="entropy of the load", value=f"{routing.entropy:.3f}", note="1 is even"),
        ]
    )


def expert_name(place: int) -> str:
    """Name an expert, counted from 1 for a reader."""
    return f"expert {place + 1}"


def load_figure(routing: Routing) -> Chart:
    """Draw each expert's share of all visits, over what would be even."""
    even = 1 / routing.num_experts
    names = [expert_name(place) for place in range(routing.num_experts)]
    cells = [
        Cell(
            row="times even",
            column=name.removeprefix("expert "),
            value=share,
            text=f"{share / even:.2f}",
            note=f"{name}: {percent(share)}, even is {percent(even)}",
        )
        for name, share in zip(names, routing.load, strict=True)
    ]
    dead = f"{routing.dead_experts} of {routing.num_experts} experts are dead"
    return Chart(
        key=f"load-{routing.trunk}",
        title=dead if routing.dead_experts else f"Even would be {percent(even)} of the visits each",
        note="Visits that each expert gets, over what it would get if all got the same.",
        description="Share of visits of each expert.",
        spec=heat_chart(
            cells,
            color_of(2),
            rows=["times even"],
            columns=[cell.column for cell in cells],
            x_title="expert",
        ),
        legend={},
        columns=("expert", "share of visits", "times even"),
        rows=[
            (name, percent(share), f"{share / even:.2f}")
            for name, share in zip(names, routing.load, strict=True)
        ],
    )


def lifts_of(routing: Routing) -> list[tuple[str, str, list[float], list[float]]]:
    """List grouping, group, its load, and the times of each expert's overall share."""
    found = []
    for grouping in routing.by:
        for name, load in zip(grouping["groups"], grouping["load"], strict=True):
            times = [
                share / whole if whole else 0.0
                for share, whole in zip(load, routing.load, strict=True)
            ]
            if any(load):
                found.append((str(grouping["name"]), str(name), list(load), times))
    return found


def heat_figure(routing: Routing) -> Chart:
    """Draw which groups of candidates go to which experts."""
    rows, cells, table = [], [], []
    for grouping, name, load, times in lifts_of(routing):
        row = f"{grouping}: {name}"
        rows.append(row)
        for place, (share, over) in enumerate(zip(load, times, strict=True)):
            note = f"{row} \u00b7 {expert_name(place)}: {percent(share)} of its visits, "
            note += f"{over:.2f} times the expert's share of all"
            cells.append(
                Cell(row=row, column=str(place + 1), value=share, text=f"{share:.0%}", note=note)
            )
            table.append((row, expert_name(place), percent(share), f"{over:.2f}"))
    return Chart(
        key=f"heat-{routing.trunk}",
        title="Which candidates go to which experts",
        note="Each row sums to 100%: the share of the group's visits that each expert gets. Rows "
        "that look alike are treated alike.",
        description="Share of visits by expert for groups of candidates: domain, popularity and "
        "category of the item, activity of the user.",
        spec=heat_chart(
            cells,
            color_of(2),
            rows=rows,
            columns=[str(place + 1) for place in range(routing.num_experts)],
            x_title="expert",
        ),
        legend={},
        columns=("candidates", "expert", "share of visits", "times the expert's share"),
        rows=table,
    )


def titles_of(features: Path, routings: Sequence[Routing]) -> Mapping[int, str]:
    """Read the titles of the items that are named, by item row; none where they are gone."""
    rows = sorted({one["item_row"] for routing in routings for own in routing.items for one in own})
    if not rows:
        return {}
    try:
        items = pl.scan_parquet(features / "items.parquet")
        known = items.filter(pl.col("item_row").is_in(rows)).select("item_row", "display_text")
        return dict(known.collect().iter_rows())
    except (OSError, pl.exceptions.PolarsError):
        return {}


def expert_table(routing: Routing, titles: Mapping[int, str], origins: Sequence[Origin]) -> Table:
    """Say of each expert which groups and items go most to it."""
    lifts = lifts_of(routing)
    rows = []
    for place, share in enumerate(routing.load):
        own = sorted(lifts, key=lambda one: -one[3][place])
        groups = [
            f"{name} ({times[place]:.1f} times)"
            for _, name, _, times in own[:NAMED]
            if times[place] >= SPECIFIC
        ]
        items = [
            f"{titles.get(one['item_row'], one['item_row'])} ({one['share']:.0%})"
            for one in (routing.items[place] if routing.items else ())
        ]
        rows.append((expert_name(place), share, "; ".join(groups) or "none", "; ".join(items)))
    stored = "" if routing.items else " Items are not stored with this run; train it again."
    return Table(
        key=f"experts-{routing.trunk}",
        title="What each expert is for",
        note=f"Groups whose share of visits is at least {SPECIFIC} times the expert's share of "
        f"all, and items most of whose visits go to it.{stored}",
        columns=[*texts("expert"), *shares("share of visits"), *texts("groups", "items")],
        rows=rows,
        origins=origins,
    )
