"""The chart of what each source adds to the blends."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.reports.blends import MODEL_OF_SOURCE, ToldBlend, source_label
from pipelines.reports.charts import Bar, color_of, share_chart
from pipelines.reports.figures import Figure, percent


def blend_figures(blends: Sequence[ToldBlend], models: Sequence[str]) -> list[Figure]:
    """Draw what each source adds to the first places of each profile's lists."""
    sources = list(dict.fromkeys(source for blend in blends for source in blend.shares))
    bars = [
        Bar(
            label=blend.profile,
            series=source_label(source),
            share=share,
            note=f"{blend.profile} \u00b7 {source_label(source)}: {percent(share)}",
        )
        for blend in blends
        for source, share in blend.shares.items()
        if share > 0
    ]
    if not bars:
        return []
    colors = {}
    for place, source in enumerate(sources):
        model = MODEL_OF_SOURCE.get(source, source)
        known = models.index(model) if model in models else place
        colors[source_label(source)] = color_of(known)
    return [
        Figure(
            key="blend-shares",
            title="What each model adds to the blend",
            note="Share of the scores of the first ten places, over the validation users.",
            description="Share of each model in the scores of the blend's first places.",
            spec=share_chart(
                bars,
                colors,
                x_title="share of the score",
                labels=[blend.profile for blend in blends],
            ),
            legend=colors,
            columns=("profile", "model", "share"),
            rows=[(bar.label, bar.series, percent(bar.share)) for bar in bars],
        )
    ]
