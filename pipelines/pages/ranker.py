"""The ranker on a page: decision, calibration, trunks, position bias, and its experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipelines.pages.charts import (
    figure,
    heat_chart,
    numbers,
    percent,
    share_chart,
    shares,
    texts,
)
from pipelines.pages.document import Block, Chart, Section, Table, Tile, Tiles, Words
from pipelines.pages.report_data import Document, routings_of
from pipelines.pages.wording import metric_label

TRUNKS = {
    "sparse": "sparse mixture of experts",
    "dense": "dense",
    "shared_bottom": "shared bottom",
}
CROWDED = 1.0
"""Largest load over the mean, less 1, from which balance is called bad."""
SPECIFIC = 1.25
"""Times of an expert's overall share from which a group is called its own."""
NAMED = 3
"""Groups named of each expert."""
DENSE = (
    "The ranker has no router: every candidate visits all of its layers. [ranker] "
    'trunk = "sparse" makes a mixture of experts, and [ranker_training] compared = ["sparse"] '
    "trains one for comparison."
)


def ranker_section(ranker: Document | None) -> Section:
    """Show what the ranker's order is worth, its calibration and its trunks."""
    if ranker is None:
        return Section(key="ranker", title="Ranker", blocks=[])
    order = "The ranker's order is served" if ranker["served"] else "The blend's order is served"
    lines = [f"{order}: {ranker['reason']}."]
    if ranker["tasks_reason"]:
        lines.append(f"Tasks: {', '.join(ranker['tasks'])}; {ranker['tasks_reason']}.")
    if ranker["trunks"] and not routings_of(ranker):
        lines.append(DENSE)
    examined = ranker["trunks"][0]["examined"] if ranker["trunks"] else []
    impressions = ", and on impression logs" if examined else ""
    return Section(
        key="ranker",
        title="Ranker",
        note=f"It reorders the first {ranker['num_candidates']} candidates of the fast blend. It "
        "is trained on each user's latest training events, with candidates from retrievers fitted "
        f"without those events{impressions}; validation decides whether it is served.",
        blocks=[Words(lines=lines), *_trunk_blocks(ranker, examined)],
    )


def _trunk_blocks(ranker: Document, examined: list[float]) -> Iterator[Block]:
    trunks = ranker["trunks"]
    if not trunks:
        return
    tasks = trunks[0]["tasks"]
    names = ("auc", "predicted", "observed", "calibration_error")
    yield Table(
        key="calibration",
        title="Calibration",
        note="Of the predicted probabilities, on validation, over all candidates.",
        columns=[
            *texts("task"),
            *numbers("AUC"),
            *numbers("predicted", "observed", "calibration error", format="metric"),
        ],
        rows=[(task, *(own[name] for name in names)) for task, own in tasks.items()],
    )
    yield Table(
        key="trunks",
        title="Trunks on validation",
        note="The ranker's first; others are trained for comparison ([ranker_training] compared). "
        "The error is the standard error of the paired difference.",
        columns=[
            *texts("trunk"),
            *numbers(metric_label(ranker["metric"]) or "metric", format="metric"),
            *numbers("difference from the ranker", format="signed"),
            *numbers("its error", format="metric"),
            *numbers("operations a candidate", format="count"),
            *numbers(*(f"AUC of {task}" for task in tasks)),
        ],
        rows=[
            (
                *(TRUNKS.get(one["trunk"], one["trunk"]), one["validation"]),
                *((one["ahead"], one["standard_error"]) if place else (None, None)),
                *(one["flops"], *(task["auc"] for task in one["tasks"].values())),
            )
            for place, one in enumerate(trunks)
        ],
    )
    if examined:
        yield figure(
            share_chart,
            "examined",
            "Position bias",
            "Examination probability of each slot relative to the first, learned from "
            "impressions. The ranker predicts feedback on examined items, so serving needs no "
            "slot.",
            [*texts("slot"), *shares("examined")],
            [(f"slot {place}", share) for place, share in enumerate(examined, start=1)],
            "label share",
            x_title="probability relative to the first slot",
        )


def routing_section(routing: Document, titles: Mapping[int, str] | None = None) -> Section:
    """Show the balance of a router, and what its experts are for.

    Args:
        titles: Of the items that go most to an expert, by item row.
    """
    trunk, dead, most = routing["trunk"], routing["dead_experts"], routing["max_violation"]
    experts = [f"expert {place + 1}" for place in range(routing["num_experts"])]
    tiles = [
        Tile(label="experts", value=f"{len(experts)}", note=f"{routing['top_k']} chosen"),
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
        Tile(label="entropy of the load", value=f"{routing['entropy']:.3f}", note="1 is even"),
    ]
    return Section(
        key=f"mixture-{trunk}",
        title=f"Mixture of experts: {TRUNKS.get(trunk, trunk)}",
        note=f"One layer of {len(experts)} experts, {routing['top_k']} of each candidate; measured "
        f"on {routing['num_candidates']:,} candidates of validation. A candidate's experts are the "
        "same for all tasks, which have heads of their own.",
        blocks=[
            Tiles(tiles=tiles),
            _load_chart(routing, experts),
            _heat_chart(routing),
            _expert_table(routing, experts, titles or {}),
        ],
    )


def _load_chart(routing: Document, experts: Sequence[str]) -> Chart:
    """Draw each expert's share of all visits, over what would be even."""
    dead, even = routing["dead_experts"], 1 / routing["num_experts"]
    return figure(
        heat_chart,
        f"load-{routing['trunk']}",
        f"{dead} of {len(experts)} experts are dead"
        if dead
        else f"Even would be {percent(even)} of the visits each",
        "Visits that each expert gets, over what it would get if all got the same.",
        [*texts("", "expert"), *shares("share of visits"), *texts("times even")],
        [
            ("times even", expert.removeprefix("expert "), share, f"{share / even:.2f}")
            for expert, share in zip(experts, routing["load"], strict=True)
        ],
        "label column value text",
        x_title="expert",
    )


def _heat_chart(routing: Document) -> Chart:
    """Draw which groups of candidates go to which experts."""
    return figure(
        heat_chart,
        f"heat-{routing['trunk']}",
        "Which candidates go to which experts",
        "Each row sums to 100%: the share of the group's visits that each expert gets. Rows that "
        "look alike are treated alike.",
        [
            *texts("candidates", "expert"),
            *shares("share of visits"),
            *texts("rounded"),
            *numbers("times the expert's share"),
        ],
        [
            (f"{grouping}: {name}", f"{place + 1}", share, f"{share:.0%}", round(over, 2))
            for grouping, name, loads, times in lifts_of(routing)
            for place, (share, over) in enumerate(zip(loads, times, strict=True))
        ],
        "label column value text -",
        x_title="expert",
    )


def _expert_table(routing: Document, experts: Sequence[str], titles: Mapping[int, str]) -> Table:
    """Tabulate the groups and items that go most to each expert."""
    lifts, rows = lifts_of(routing), []
    for place, share in enumerate(routing["load"]):
        own = sorted(lifts, key=lambda one: -one[3][place])[:NAMED]
        groups = [
            f"{one[1]} ({one[3][place]:.1f} times)" for one in own if one[3][place] >= SPECIFIC
        ]
        items = [
            f"{titles[one['item_row']]} ({one['share']:.0%})"
            for one in (routing["items"][place] if routing["items"] else ())
            if one["item_row"] in titles
        ]
        rows.append((experts[place], share, "; ".join(groups) or "none", "; ".join(items)))
    stored = "" if routing["items"] else " Items are not stored with this run; train it again."
    return Table(
        key=f"experts-{routing['trunk']}",
        title="What each expert is for",
        note=f"Groups whose share of visits is at least {SPECIFIC} times the expert's share of "
        f"all, and items most of whose visits go to it.{stored}",
        columns=[*texts("expert"), *shares("share of visits"), *texts("groups", "items")],
        rows=rows,
    )


def lifts_of(routing: Document) -> list[tuple[str, str, list[float], list[float]]]:
    """List grouping, group, its load, and the times of each expert's overall share."""
    return [
        (
            str(grouping["name"]),
            str(name),
            list(load),
            [
                share / whole if whole else 0.0
                for share, whole in zip(load, routing["load"], strict=True)
            ],
        )
        for grouping in routing["by"]
        for name, load in zip(grouping["groups"], grouping["load"], strict=True)
        if any(load)
    ]
