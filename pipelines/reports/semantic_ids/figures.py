"""The figures of a report of semantic IDs; each title says what the chart shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.reports.charts import (
    NOBODY,
    SECOND,
    Bar,
    Dot,
    Point,
    color_of,
    crowd_color,
    gap_chart,
    line_chart,
    share_chart,
)
from pipelines.reports.curves import thinned
from pipelines.reports.figures import Figure, percent
from pipelines.reports.semantic_ids.numbers import CROWDS, Depth, SemanticIdReport
from recsys.semantic_ids.quality import LevelQuality

ENOUGH_USED = 0.95
EVEN_ENOUGH = 0.5
"""Share of a level's codes that its perplexity has to reach to count as even."""
MAX_CODES_DRAWN = 64
LEVEL_COLORS = (2, 3, 1, 0, 7)
OURS, CHANCE = "these IDs", "by chance"


def prefix_name(num_codes: int, num_levels: int) -> str:
    """Name a length of prefix."""
    if num_codes == num_levels:
        return "whole ID"
    return "first code" if num_codes == 1 else f"first {num_codes} codes"


def level_name(level: int) -> str:
    """Name a level, counted from 1 for a reader."""
    return f"level {level + 1}"


def content_levels(report: SemanticIdReport) -> tuple[LevelQuality, ...]:
    """Return the published levels that the quantiser made."""
    return report.quality.published[: report.num_content_levels]


def level_colors(report: SemanticIdReport) -> dict[str, str]:
    """Give each level of content a colour."""
    return {
        level_name(level): color_of(LEVEL_COLORS[level % len(LEVEL_COLORS)])
        for level in range(report.num_content_levels)
    }


def usage_title(report: SemanticIdReport) -> str:
    """Say how many codes are used, and how unevenly."""
    levels = content_levels(report)
    worst = min(range(len(levels)), key=lambda level: levels[level].utilisation)
    least = levels[worst]
    if least.utilisation < ENOUGH_USED:
        name = level_name(worst).capitalize()
        return f"{name} uses only {least.num_used:,} of its {least.size:,} codes"
    told = f"Each level uses at least {percent(least.utilisation)} of its codes"
    if least.utilisation == 1:
        told = "Every code of every level is used"
    place = min(range(len(levels)), key=lambda level: levels[level].perplexity / levels[level].size)
    rough = levels[place]
    if rough.perplexity < EVEN_ENOUGH * rough.size:
        told += f", {level_name(place)} as unevenly as if it had {rough.perplexity:,.0f}"
    return told


def usage_figure(report: SemanticIdReport) -> Figure:
    """Draw how many items each code of a level has."""
    points, told = [], []
    rows: list[tuple[str, ...]] = []
    for level, counts in enumerate(report.usage):
        name, total = level_name(level), max(1, sum(counts))
        ranked = [(place + 1, float(count)) for place, count in enumerate(counts)]
        for place, count in thinned(ranked, MAX_CODES_DRAWN):
            note = f"{name} \u00b7 code {place:,} of {len(counts):,}: {count:,.0f} items"
            points.append(Point(x=place, y=count, series=name, note=note))
            rows.append((name, f"{place:,}", f"{count:,.0f}", percent(count / total)))
        times = counts[0] * len(counts) / total
        told.append(f"{times:.1f} times at {name}")
    colors = level_colors(report)
    return Figure(
        key="usage",
        title=usage_title(report),
        note="Items of each code, the busiest code first; a flat line is an even one. The busiest "
        f"code has, against an even share: {', '.join(told)}.",
        description="Items of each code of each level, from the busiest code to the least busy.",
        spec=line_chart(
            points,
            colors,
            x_title="codes, busiest first",
            y_title="items",
            y_format=",.0f",
            from_zero=True,
        ),
        legend=colors,
        columns=("level", "code, by items", "items", "share of items"),
        rows=rows,
    )


def gap_figure(
    key: str, words: tuple[str, str, str], rows: Sequence[tuple[str, float, float]], *, x_title: str
) -> Figure:
    """Draw shares against what chance gives; ``words`` are title, note and description."""
    colors = {OURS: color_of(2), CHANCE: SECOND}
    dots = [
        Dot(
            label=label,
            series=series,
            mean=share,
            low=share,
            high=share,
            note=f"{label} \u00b7 {series}: {percent(share)}",
        )
        for label, ours, chance in rows
        for series, share in ((CHANCE, chance), (OURS, ours))
    ]
    return Figure(
        key=key,
        title=words[0],
        note=words[1],
        description=words[2],
        spec=gap_chart(dots, colors, x_title=x_title, labels=[row[0] for row in rows]),
        legend=colors,
        columns=("codes in common", OURS, CHANCE),
        rows=[(label, percent(ours), percent(chance)) for label, ours, chance in rows],
    )


def crowd_figure(
    key: str, words: tuple[str, str, str], rows: Mapping[str, Mapping[str, float]]
) -> Figure:
    """Draw how many items stand together; ``words`` are title, note and description."""
    colors = {name: crowd_color(place) for place, name in enumerate(CROWDS)}
    bars = [
        Bar(label=label, series=name, share=share, note=f"{label} \u00b7 {name}: {percent(share)}")
        for label, shares in rows.items()
        for name, share in shares.items()
    ]
    return Figure(
        key=key,
        title=words[0],
        note=words[1],
        description=words[2],
        spec=share_chart(
            [bar for bar in bars if bar.share], colors, x_title="share of items", labels=list(rows)
        ),
        legend=colors,
        columns=("codes", "items together", "share of items"),
        rows=[(bar.label, bar.series, percent(bar.share)) for bar in bars],
    )


def left(depth: Depth) -> str:
    """Say how many items a prefix leaves for the middle item."""
    verb = "leaves" if depth.num_codes == 1 else "leave"
    return f"the {prefix_name(depth.num_codes, 0)} {verb} {depth.median_items:,}"


def depth_figure(report: SemanticIdReport) -> Figure:
    """Draw how many items share a prefix, by its length."""
    levels, counts = len(report.level_sizes), report.counts
    title = f"Of {counts.num_with_id:,} items, {left(report.depths[0])}"
    if levels > 2:
        title += f", {left(report.depths[-2])}"
    largest = ", ".join(
        f"{depth.largest:,} ({prefix_name(depth.num_codes, levels)})" for depth in report.depths
    )
    return crowd_figure(
        "depth",
        (
            title,
            "How many items have an item's prefix, itself included; the title is about the middle "
            f"item. Most items with one prefix: {largest}.",
            "Share of items by how many items share their prefix, for each length of prefix.",
        ),
        {prefix_name(depth.num_codes, levels): depth.shares for depth in report.depths},
    )


def moved_told(report: SemanticIdReport) -> str:
    """Say what making IDs unique cost."""
    if report.num_content_levels < len(report.level_sizes):
        last = level_name(len(report.level_sizes) - 1)
        return f"{last.capitalize()} was added to tell items of equal codes apart."
    moved = [
        f"{percent(share)} at {level_name(level)}"
        for level, share in enumerate(report.quality.moved)
    ]
    if report.is_of_behaviour:
        return f"Items whose content alone would get another code: {', '.join(moved)}."
    if not any(report.quality.moved):
        return "No code had to be changed."
    return f"Items whose code differs from their nearest one: {', '.join(moved)}."


def collision_title(report: SemanticIdReport) -> str:
    """Say how many items would share an ID, and do."""
    before, after = report.quality.collisions_before, report.quality.collisions_after
    if not before:
        return "No two items were given the same codes"
    if report.is_of_behaviour:
        told = f"{after:,} do" if after else "each has an ID of its own"
        return f"By content alone {before:,} items would share their codes; {told}"
    told = f"{after:,} still share an ID" if after else "each has an ID of its own"
    return f"{before:,} items were encoded like an earlier one; {told}"


def collision_figure(report: SemanticIdReport) -> Figure:
    """Draw how many items had one sequence of codes, and have."""
    largest = report.quality.largest_group
    encoded = "by content alone" if report.is_of_behaviour else "as encoded"
    alike = "are alike so" if report.is_of_behaviour else "were encoded alike"
    return crowd_figure(
        "collisions",
        (
            collision_title(report),
            f"At most {largest:,} items {alike}. {moved_told(report)}",
            f"Share of items by how many items have their codes, {encoded} and as published.",
        ),
        {encoded: report.groups_before, "as published": report.groups_after},
    )


def reconstruction_figure(report: SemanticIdReport) -> Figure:
    """Draw how much of the content the codes hold, by the number of codes."""
    quality, count = report.quality, report.num_content_levels
    colors = {"kept": color_of(2), "lost": NOBODY}
    errors = {
        prefix_name(level + 1, 0): error for level, error in enumerate(quality.errors_by_level)
    }
    note = "Share of the variance of the content vectors that the codes rebuild."
    if any(quality.moved):
        errors["as published"] = quality.published_error
        note += (
            " As published, codes group what is taken alike, whatever its content."
            if report.is_of_behaviour
            else " As published, some items have another code than their nearest one."
        )
    bars = []
    for label, error in errors.items():
        lost = min(1.0, error)
        for series, share in (("kept", 1 - lost), ("lost", lost)):
            told = f"{label} \u00b7 {series}: {percent(share)}"
            bars.append(Bar(label=label, series=series, share=share, note=told))
    codes = "One code keeps" if count == 1 else f"{count} codes keep"
    return Figure(
        key="reconstruction",
        title=f"{codes} {percent(max(0.0, 1 - quality.reconstruction_error))} of the content",
        note=note,
        description="Share of the content's variance that the first codes keep and lose.",
        spec=share_chart(bars, colors, x_title="share of the variance", labels=list(errors)),
        legend=colors,
        columns=("codes", "kept", "error"),
        rows=[(label, percent(1 - error), f"{error:.4f}") for label, error in errors.items()],
    )


def neighbour_figure(report: SemanticIdReport) -> Figure:
    """Draw how often the nearest by content have a prefix in common."""
    levels, count = content_levels(report), len(report.level_sizes)
    first = levels[0]
    return gap_figure(
        "neighbours",
        (
            f"{percent(first.neighbour_agreement)} of the nearest items have the same first code; "
            f"of any two items {percent(first.agreement_by_chance)} have",
            "Share of an item's 10 nearest items by content that have its prefix, against two "
            "items drawn at random.",
            "Share of the nearest items by content with the same prefix, and the same by chance.",
        ),
        [
            (
                prefix_name(place + 1, count),
                level.neighbour_agreement,
                level.agreement_by_chance,
            )
            for place, level in enumerate(levels[: count - 1] or levels)
        ],
        x_title="share of neighbours",
    )


def purity_figure(report: SemanticIdReport) -> Figure | None:
    """Draw how far items of one prefix are of one category; None where there are none."""
    levels, count = content_levels(report), len(report.level_sizes)
    rows = [
        (prefix_name(place + 1, count), level.purity, level.purity_by_chance)
        for place, level in enumerate(levels[: count - 1] or levels)
        if level.purity is not None and level.purity_by_chance is not None
    ]
    if not rows:
        return None
    _, pure, chance = rows[0]
    return gap_figure(
        "purity",
        (
            f"{percent(pure)} of items are of their first code's main category; by chance "
            f"{percent(chance)} would be",
            "Share of items in the commonest category of their prefix, against the same with the "
            "categories dealt out at random: a prefix of one item is pure whatever it means. Each "
            "item counts with its commonest category, one of most items only if it has no other.",
            "Share of items in the commonest category of their prefix, and the same by chance.",
        ),
        rows,
        x_title="share of items",
    )


def drift_figure(report: SemanticIdReport) -> Figure | None:
    """Draw which share of the previous version's codes stayed."""
    if report.drift is None or report.drift.kept is None or not report.drift.kept.num_items:
        return None
    kept = report.drift.kept
    shares = {level_name(level): share for level, share in enumerate(kept.per_level)}
    shares["whole ID"] = kept.full
    colors = {"same": color_of(2), "changed": NOBODY}
    bars = [
        Bar(
            label=label,
            series=series,
            share=share,
            note=f"{label} \u00b7 {series}: {percent(share)}",
        )
        for label, same in shares.items()
        for series, share in (("same", same), ("changed", 1 - same))
    ]
    prefixes = [*(percent(share) for share in kept.per_prefix), ""]
    title = (
        f"All {kept.num_items:,} items kept their ID"
        if kept.full == 1
        else f"{percent(kept.full)} of {kept.num_items:,} items kept their whole ID"
    )
    return Figure(
        key="drift",
        title=title,
        note="Over the items that have an ID in both versions: share with the same code.",
        description="Share of items with the same code as in the previous version, by level.",
        spec=share_chart(bars, colors, x_title="share of items", labels=list(shares)),
        legend=colors,
        columns=("level", "same code", "same codes up to here"),
        rows=[
            (label, percent(share), prefix)
            for (label, share), prefix in zip(shares.items(), prefixes, strict=True)
        ],
    )
