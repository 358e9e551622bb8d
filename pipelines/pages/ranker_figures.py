"""Charts of the ranker: position bias and expert routing."""

from __future__ import annotations

from pipelines.pages.charts.shapes import Bar, share_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.document import Chart
from pipelines.pages.figure import percent, share_figure
from pipelines.pages.rankers import TRUNK_NAMES, RankerReport, Routing

EVERYONE = "all candidates"
EXAMINED = "examined"
GROUPINGS = {
    "domain": "domain of the item",
    "popularity": "popularity of the item",
    "category": "first category of the item",
    "activity": "events in the user's history",
}


def ranker_figures(ranker: RankerReport | None) -> list[Chart]:
    """Draw the position bias and, for each router, the load of experts by group."""
    if ranker is None:
        return []
    examined = [_examined(ranker.examined)] if ranker.examined else []
    return examined + [
        _figure(routing, grouping)
        for routing in ranker.routings
        for grouping in range(len(routing.by))
    ]


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


def _figure(routing: Routing, grouping: int) -> Chart:
    by_group = routing.by[grouping]
    rows = {
        EVERYONE: routing.load,
        **dict(zip(by_group["groups"], by_group["load"], strict=True)),
    }
    experts = [f"expert {place + 1}" for place in range(routing.num_experts)]
    by = GROUPINGS[by_group["name"]]
    return share_figure(
        f"routing-{routing.trunk}-{by_group['name']}",
        (
            f"Experts by {by}",
            "Share of the visits of each group's candidates on validation; "
            f"{TRUNK_NAMES[routing.trunk]}, {routing.top_k} experts a candidate.",
            f"Share of each expert in the visits of candidates, by {by}.",
        ),
        {
            group: {expert: share for expert, share in zip(experts, load, strict=True) if share > 0}
            for group, load in rows.items()
        },
        {expert: color_of(place) for place, expert in enumerate(experts)},
        x_title="share of visits",
        columns=("candidates", "expert", "share"),
    )
