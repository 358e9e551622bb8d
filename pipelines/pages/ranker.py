"""The ranker on a page: decision, calibration, and its experts."""

from __future__ import annotations

from pipelines.pages.charts import numbers, percent, shares, texts
from pipelines.pages.document import Block, Section, Table, Tile, Tiles, Words
from pipelines.pages.report_data import Document, routings_of

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
    'trunk = "sparse" makes a mixture of experts.'
)


def ranker_section(ranker: Document | None) -> Section:
    """Show what the ranker's order is worth and its calibration."""
    if ranker is None:
        return Section(key="ranker", title="Ranker", blocks=[])
    order = "The ranker's order is served" if ranker["served"] else "The blend's order is served"
    lines = [f"{order}: {ranker['reason']}."]
    if ranker["tasks_reason"]:
        lines.append(f"Tasks: {', '.join(ranker['tasks'])}; {ranker['tasks_reason']}.")
    blocks: list[Block] = [Words(lines=lines)]
    for trunk in ranker["trunks"][:1]:
        if not routings_of(ranker):
            lines.append(DENSE)
        blocks.append(_calibration(trunk))
    return Section(
        key="ranker",
        title="Ranker",
        note=f"It reorders the first {ranker['num_candidates']} candidates of the fast blend. It "
        "is trained on each user's latest training events, with candidates from retrievers fitted "
        "without those events; validation decides whether it is served.",
        blocks=blocks,
    )


def _calibration(trunk: Document) -> Table:
    names = ("auc", "predicted", "observed", "calibration_error")
    return Table(
        key="calibration",
        title="Calibration",
        note="Of the predicted probabilities, on validation, over all candidates. The trunk is "
        f"{TRUNKS.get(trunk['trunk'], trunk['trunk'])}: {trunk['flops']:,} operations a candidate.",
        columns=[
            *texts("task"),
            *numbers("AUC"),
            *numbers("predicted", "observed", "calibration error", format="metric"),
        ],
        rows=[(task, *(own[name] for name in names)) for task, own in trunk["tasks"].items()],
    )


def routing_section(routing: Document) -> Section:
    """Show the balance of a router, and what its experts are for."""
    trunk, dead, most = routing["trunk"], routing["dead_experts"], routing["max_violation"]
    count = routing["num_experts"]
    tiles = [
        Tile(label="experts", value=f"{count}", note=f"{routing['top_k']} chosen"),
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
        note=f"One layer of {count} experts, {routing['top_k']} of each candidate; measured on "
        f"{routing['num_candidates']:,} candidates of validation. A candidate's experts are the "
        "same for all tasks, which have heads of their own.",
        blocks=[Tiles(tiles=tiles), _expert_table(routing)],
    )


def _expert_table(routing: Document) -> Table:
    """Tabulate the groups of items that go most to each expert."""
    groups, rows = group_loads(routing), []
    for place, share in enumerate(routing["load"]):
        own = sorted(groups, key=lambda one: -one[3][place])[:NAMED]
        named = [
            f"{one[1]} ({one[3][place]:.1f} times)" for one in own if one[3][place] >= SPECIFIC
        ]
        rows.append((f"expert {place + 1}", share, "; ".join(named) or "none"))
    return Table(
        key=f"experts-{routing['trunk']}",
        title="What each expert is for",
        note=f"Even would be {percent(1 / routing['num_experts'])} of the visits each. Groups "
        f"whose share of visits is at least {SPECIFIC} times the expert's share of all.",
        columns=[*texts("expert"), *shares("share of visits"), *texts("groups")],
        rows=rows,
    )


def group_loads(routing: Document) -> list[tuple[str, str, list[float], list[float]]]:
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
