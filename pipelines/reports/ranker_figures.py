"""The charts of the ranker: which places are looked at, who is routed to which expert."""

from __future__ import annotations

from pipelines.reports.charts import Bar, color_of, share_chart
from pipelines.reports.figure import Figure, percent
from pipelines.reports.rankers import TRUNK_NAMES, Routing, ToldRanker

EVERYONE = "all candidates"
LOOKED_AT = "looked at"
GROUPINGS = {
    "domain": "domain of the item",
    "popularity": "how often the item is taken",
    "category": "first category of the item",
}


def ranker_figures(ranker: ToldRanker | None) -> list[Figure]:
    """Draw how often places are looked at and, for each router, where groups of candidates go."""
    if ranker is None:
        return []
    examined = [_examined(ranker.examined)] if ranker.examined else []
    return examined + [
        _figure(routing, grouping)
        for routing in ranker.routings
        for grouping in range(len(routing.by))
    ]


def _examined(curve: list[float]) -> Figure:
    places = [f"place {number}" for number in range(1, len(curve) + 1)]
    color = color_of(0)
    return Figure(
        key="examined",
        title="How often each place is looked at",
        note="Relative to the first place, as learned from what was shown and taken. The ranker's "
        "probabilities are of items that are looked at: no place is read when it serves.",
        description="Chance of each place of a shown list to be looked at.",
        spec=share_chart(
            [
                Bar(label=place, series=LOOKED_AT, share=share, note=f"{place}: {percent(share)}")
                for place, share in zip(places, curve, strict=True)
            ],
            {LOOKED_AT: color},
            x_title="chance relative to the first place",
            labels=places,
        ),
        legend={},
        columns=("place", "looked at"),
        rows=[(place, percent(share)) for place, share in zip(places, curve, strict=True)],
    )


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
