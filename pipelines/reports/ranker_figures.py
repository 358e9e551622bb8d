"""The charts of who is routed to which expert of the ranker."""

from __future__ import annotations

from pipelines.reports.charts import Bar, color_of, share_chart
from pipelines.reports.figures import Figure, percent
from pipelines.reports.rankers import TRUNK_NAMES, Routing, ToldRanker

EVERYONE = "all candidates"
GROUPINGS = {
    "domain": "domain of the item",
    "popularity": "how often the item is taken",
    "category": "first category of the item",
}


def ranker_figures(ranker: ToldRanker | None) -> list[Figure]:
    """Draw, for each router, the experts that groups of candidates go to."""
    if ranker is None:
        return []
    return [
        _figure(routing, grouping)
        for routing in ranker.routings
        for grouping in range(len(routing.by))
    ]


def _figure(routing: Routing, grouping: int) -> Figure:
    told = routing.by[grouping]
    rows = {EVERYONE: routing.load, **dict(zip(told["groups"], told["load"], strict=True))}
    experts = [f"expert {place + 1}" for place in range(routing.num_experts)]
    bars = [
        Bar(
            label=group,
            series=expert,
            share=share,
            note=f"{group} \u00b7 {expert}: {percent(share)}",
        )
        for group, load in rows.items()
        for expert, share in zip(experts, load, strict=True)
        if share > 0
    ]
    colors = {expert: color_of(place) for place, expert in enumerate(experts)}
    by = GROUPINGS[told["name"]]
    return Figure(
        key=f"routing-{routing.trunk}-{told['name']}",
        title=f"Experts by {by}",
        note=f"Share of the choices of each group of candidates on validation; "
        f"{TRUNK_NAMES[routing.trunk]}, {routing.top_k} experts a candidate.",
        description=f"Share of each expert in the choices of candidates, by {by}.",
        spec=share_chart(bars, colors, x_title="share of the choices", labels=list(rows)),
        legend=colors,
        columns=("candidates", "expert", "share"),
        rows=[(bar.label, bar.series, percent(bar.share)) for bar in bars],
    )
