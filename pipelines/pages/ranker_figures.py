"""The ranker on a page: decision, calibration, trunks, position bias, and its experts."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.pages.charts.heat import Cell, heat_chart
from pipelines.pages.charts.shapes import Bar, share_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.columns import numbers, shares, texts
from pipelines.pages.document import Block, Chart, Section, Table, Tile, Tiles, Words
from pipelines.pages.figure import percent
from pipelines.pages.rankers import TRUNK_NAMES, RankerReport, Routing
from pipelines.pages.wording import metric_label

EXAMINED = "examined"
CROWDED = 1.0
"""Largest load over the mean, less 1, from which balance is called bad."""
SPECIFIC = 1.25
"""Times of an expert's overall share from which a group is called its own."""
NAMED = 3
"""Groups named of each expert."""
DENSE = (
    "The ranker has no router: every candidate visits all of its layers. [ranker] "
    'trunk = "sparse" makes a mixture of experts, and [ranker_training] compared = ["sparse"] '
    "trains one beside it for comparison."
)


def ranker_section(ranker: RankerReport | None) -> Section:
    """Show what the ranker's order is worth, its calibration and its trunks."""
    if ranker is None:
        return Section(key="ranker", title="Ranker", blocks=[])
    order = "The ranker's order is served" if ranker.served else "The blend's order is served"
    lines = [f"{order}: {ranker.reason}."]
    if ranker.tasks_reason:
        lines.append(f"Tasks: {', '.join(ranker.tasks)}; {ranker.tasks_reason}.")
    if ranker.trunks and not ranker.routings:
        lines.append(DENSE)
    blocks: list[Block] = [Words(lines=lines)]
    if ranker.trunks:
        blocks += [_calibration(ranker), _trunks(ranker)]
    if ranker.examined:
        blocks.append(_examined(ranker.examined))
    impressions = ", and on impression logs" if ranker.examined else ""
    return Section(
        key="ranker",
        title="Ranker",
        note=f"It reorders the first {ranker.num_candidates} candidates of the fast blend. It is "
        "trained on each user's latest training events, with candidates from retrievers fitted "
        f"without those events{impressions}; validation decides whether it is served.",
        blocks=blocks,
    )


def _calibration(ranker: RankerReport) -> Table:
    return Table(
        key="calibration",
        title="Calibration",
        note="Of the predicted probabilities, on validation, over all candidates.",
        columns=[
            *texts("task"),
            *numbers("AUC"),
            *numbers("predicted", "observed", "calibration error", format="metric"),
        ],
        rows=[
            (one.name, one.auc, one.predicted, one.observed, one.calibration_error)
            for one in ranker.served_tasks
        ],
    )


def _trunks(ranker: RankerReport) -> Table:
    tasks = [f"AUC of {task.name}" for task in ranker.served_tasks]
    return Table(
        key="trunks",
        title="Trunks on validation",
        note="The ranker's first; others are trained for comparison ([ranker_training] compared). "
        "The error is the standard error of the paired difference.",
        columns=[
            *texts("trunk"),
            *numbers(metric_label(ranker.metric) or "metric", format="metric"),
            *numbers("difference from the ranker", format="signed"),
            *numbers("its error", format="metric"),
            *numbers("operations a candidate", format="count"),
            *numbers(*tasks),
        ],
        rows=[
            (
                *(TRUNK_NAMES.get(one.trunk, one.trunk), one.validation),
                *((one.ahead, one.standard_error) if place else (None, None)),
                *(one.flops, *(task.auc for task in one.tasks)),
            )
            for place, one in enumerate(ranker.trunks)
        ],
    )


def _examined(curve: list[float]) -> Chart:
    slots = [f"slot {number}" for number in range(1, len(curve) + 1)]
    color = color_of(0)
    return Chart(
        key="examined",
        title="Position bias",
        note="Examination probability of each slot relative to the first, learned from "
        "impressions. The ranker predicts feedback on examined items, so serving needs no slot.",
        description="Examination probability of each slot of a shown list.",
        spec=share_chart(
            [
                Bar(label=slot, series=EXAMINED, share=share, note=f"{slot}: {percent(share)}")
                for slot, share in zip(slots, curve, strict=True)
            ],
            {EXAMINED: color},
            x_title="probability relative to the first slot",
            labels=slots,
        ),
        legend={},
        columns=("slot", "examined"),
        rows=[(slot, percent(share)) for slot, share in zip(slots, curve, strict=True)],
    )


def routing_section(routing: Routing, titles: Mapping[int, str] | None = None) -> Section:
    """Show the balance of a router, and what its experts are for.

    Args:
        titles: Of the items that go most to an expert, by item row.
    """
    return Section(
        key=f"mixture-{routing.trunk}",
        title=f"Mixture of experts: {TRUNK_NAMES.get(routing.trunk, routing.trunk)}",
        note=f"One layer of {routing.num_experts} experts, {routing.top_k} of each candidate; "
        f"measured on {routing.num_candidates:,} candidates of validation. A candidate's experts "
        "are the same for all tasks, which have heads of their own.",
        blocks=[
            _tiles(routing),
            load_figure(routing),
            heat_figure(routing),
            expert_table(routing, titles or {}),
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


def expert_table(routing: Routing, titles: Mapping[int, str]) -> Table:
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
            f"{titles[one['item_row']]} ({one['share']:.0%})"
            for one in (routing.items[place] if routing.items else ())
            if one["item_row"] in titles
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
    )
