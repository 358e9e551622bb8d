"""The figures of a report of semantic IDs; each title states the finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipelines.pages.charts.shapes import Dot, Point, gap_chart, line_chart
from pipelines.pages.charts.style import NOBODY, SECOND, color_of, group_color
from pipelines.pages.curves import thinned
from pipelines.pages.document import Chart
from pipelines.pages.figure import percent, share_figure
from pipelines.pages.semantic_ids.numbers import GROUP_SIZES, Depth, SemanticIdReport
from recsys.semantic_ids.quality import LevelQuality

ENOUGH_USED = 0.95
EVEN_ENOUGH = 0.5
"""Share of a level's codes that its perplexity has to reach to count as even."""
MAX_CODES_DRAWN = 64
LEVEL_COLORS = (2, 3, 1, 0, 7)
OURS, CHANCE = "these IDs", "by chance"


def prefix_name(num_codes: int, num_levels: int) -> str:
    """Name a prefix by its length."""
    if num_codes == num_levels:
        return "whole ID"
    return "first code" if num_codes == 1 else f"first {num_codes} codes"


def level_name(level: int) -> str:
    """Name a level, counted from 1 for a reader."""
    return f"level {level + 1}"


def content_levels(report: SemanticIdReport) -> tuple[LevelQuality, ...]:
    """Return the published levels of the quantiser, without one that resolves collisions."""
    return report.quality.published[: report.num_content_levels]


def level_color(level: int) -> str:
    """Name a level's colour."""
    return color_of(LEVEL_COLORS[level % len(LEVEL_COLORS)])


def level_colors(report: SemanticIdReport) -> dict[str, str]:
    """Give each level of the quantiser a colour."""
    return {level_name(level): level_color(level) for level in range(report.num_content_levels)}


def usage_title(report: SemanticIdReport) -> str:
    """State how many codes are used, and how unevenly."""
    levels = content_levels(report)
    worst = min(range(len(levels)), key=lambda level: levels[level].utilisation)
    least = levels[worst]
    if least.utilisation < ENOUGH_USED:
        name = level_name(worst).capitalize()
        return f"{name} uses only {least.num_used:,} of its {least.size:,} codes"
    title = f"Each level uses at least {percent(least.utilisation)} of its codes"
    if least.utilisation == 1:
        title = "Every code of every level is used"
    place = min(range(len(levels)), key=lambda level: levels[level].perplexity / levels[level].size)
    rough = levels[place]
    if rough.perplexity < EVEN_ENOUGH * rough.size:
        title += f"; the perplexity of {level_name(place)} is {rough.perplexity:,.0f}"
    return title


def usage_figure(report: SemanticIdReport) -> Chart:
    """Draw how many items each code of a level has."""
    points, busiest = [], []
    rows: list[tuple[str, ...]] = []
    for level, counts in enumerate(report.usage):
        name, total = level_name(level), max(1, sum(counts))
        ranked = [(place + 1, float(count)) for place, count in enumerate(counts)]
        for place, count in thinned(ranked, MAX_CODES_DRAWN):
            note = f"{name} \u00b7 code {place:,} of {len(counts):,}: {count:,.0f} items"
            points.append(Point(x=place, y=count, series=name, note=note))
            rows.append((name, f"{place:,}", f"{count:,.0f}", percent(count / total)))
        times = counts[0] * len(counts) / total
        busiest.append(f"{times:.1f} at {name}")
    colors = level_colors(report)
    return Chart(
        key="usage",
        title=usage_title(report),
        note="Items of each code, most used first; flat means uniform. Largest over mean: "
        f"{', '.join(busiest)}.",
        description="Items of each code of each level, from the most to the least used.",
        spec=line_chart(
            points,
            colors,
            x_title="codes, most used first",
            y_title="items",
            y_format=",.0f",
            from_zero=True,
        ),
        legend=colors,
        columns=("level", "rank of the code", "items", "share of items"),
        rows=rows,
    )


def gap_figure(
    key: str, words: tuple[str, str, str], rows: Sequence[tuple[str, float, float]], *, x_title: str
) -> Chart:
    """Draw shares beside those by chance; ``words`` are title, note and description."""
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
    return Chart(
        key=key,
        title=words[0],
        note=words[1],
        description=words[2],
        spec=gap_chart(dots, colors, x_title=x_title, labels=[row[0] for row in rows]),
        legend=colors,
        columns=("shared codes", OURS, CHANCE),
        rows=[(label, percent(ours), percent(chance)) for label, ours, chance in rows],
    )


def group_figure(
    key: str, words: tuple[str, str, str], shares: Mapping[str, Mapping[str, float]]
) -> Chart:
    """Draw the sizes of groups of items; ``words`` are title, note and description."""
    return share_figure(
        key,
        words,
        shares,
        {name: group_color(place) for place, name in enumerate(GROUP_SIZES)},
        x_title="share of items",
        columns=("codes", "items in the group", "share of items"),
    )


def narrowed(depth: Depth) -> str:
    """State to how many items a prefix narrows the catalogue, at the median item."""
    verb = "leaves" if depth.num_codes == 1 else "leave"
    return f"the {prefix_name(depth.num_codes, 0)} {verb} {depth.median_items:,}"


def depth_figure(report: SemanticIdReport) -> Chart:
    """Draw how many items share a prefix, by its length."""
    levels, counts = len(report.level_sizes), report.counts
    title = f"Of {counts.num_with_id:,} items, {narrowed(report.depths[0])}"
    if levels > 2:
        title += f", {narrowed(report.depths[-2])}"
    largest = ", ".join(
        f"{depth.largest:,} ({prefix_name(depth.num_codes, levels)})" for depth in report.depths
    )
    return group_figure(
        "depth",
        (
            title,
            "Items with an item's prefix, itself included; the title gives the median. Largest "
            f"prefix: {largest}.",
            "Share of items by the number of items with the same prefix, for each prefix length.",
        ),
        {prefix_name(depth.num_codes, levels): depth.shares for depth in report.depths},
    )


def resolution_note(report: SemanticIdReport) -> str:
    """State what resolving collisions changed."""
    if report.num_content_levels < len(report.level_sizes):
        last = level_name(len(report.level_sizes) - 1)
        return f"{last.capitalize()} was added to resolve collisions."
    moved = [
        f"{percent(share)} at {level_name(level)}"
        for level, share in enumerate(report.quality.moved)
    ]
    if report.is_of_behaviour:
        return f"Items with another code by content alone: {', '.join(moved)}."
    if not any(report.quality.moved):
        return "No code had to be changed."
    return f"Items that did not get their nearest code: {', '.join(moved)}."


def collision_title(report: SemanticIdReport) -> str:
    """State how many items shared codes before collisions were resolved, and do now."""
    before, after = report.quality.collisions_before, report.quality.collisions_after
    if not before:
        return "No two items were encoded to the same codes"
    if report.is_of_behaviour:
        now = f"{after:,} do" if after else "every ID is unique"
        return f"By content alone {before:,} items would share their codes; {now}"
    now = f"{after:,} still share an ID" if after else "every ID is unique"
    return f"{before:,} items collided with an earlier one when encoded; {now}"


def collision_figure(report: SemanticIdReport) -> Chart:
    """Draw the sizes of groups with the same codes, as encoded and as published."""
    largest = report.quality.largest_group
    encoded = "by content alone" if report.is_of_behaviour else "as encoded"
    return group_figure(
        "collisions",
        (
            collision_title(report),
            f"Largest collision {encoded}: {largest:,} items. {resolution_note(report)}",
            f"Share of items by the number with the same codes, {encoded} and as published.",
        ),
        {encoded: report.groups_before, "as published": report.groups_after},
    )


def reconstruction_figure(report: SemanticIdReport) -> Chart:
    """Draw the explained variance of the content by the number of codes."""
    quality, count = report.quality, report.num_content_levels
    errors = {
        prefix_name(level + 1, 0): error for level, error in enumerate(quality.errors_by_level)
    }
    note = "Share of the variance of the content vectors that the codes reconstruct."
    if any(quality.moved):
        errors["as published"] = quality.published_error
        note += (
            " Published codes group items by behaviour, not by content."
            if report.is_of_behaviour
            else " As published, some items do not have their nearest code."
        )
    kept = {label: 1 - min(1.0, error) for label, error in errors.items()}
    codes = "One code keeps" if count == 1 else f"{count} codes keep"
    figure = share_figure(
        "reconstruction",
        (
            f"{codes} {percent(max(0.0, 1 - quality.reconstruction_error))} of the content",
            note,
            "Share of the content's variance that the first codes keep and lose.",
        ),
        {label: {"kept": share, "lost": 1 - share} for label, share in kept.items()},
        {"kept": color_of(2), "lost": NOBODY},
        x_title="share of the variance",
        columns=("codes", "kept", "error"),
    )
    rows = [(label, percent(1 - error), f"{error:.4f}") for label, error in errors.items()]
    return replace(figure, rows=rows)


def content_prefixes(report: SemanticIdReport) -> list[tuple[str, LevelQuality]]:
    """Name the prefixes that are shorter than an ID, if there are any, with their quality."""
    levels, count = content_levels(report), len(report.level_sizes)
    shown = levels[: count - 1] or levels
    return [(prefix_name(place, count), level) for place, level in enumerate(shown, start=1)]


def neighbour_figure(report: SemanticIdReport) -> Chart:
    """Draw how often nearest neighbours by content share a prefix."""
    first = content_levels(report)[0]
    return gap_figure(
        "neighbours",
        (
            f"{percent(first.neighbour_agreement)} of nearest neighbours share the first code; "
            f"of random pairs {percent(first.agreement_by_chance)} do",
            "Share of an item's 10 nearest neighbours by content that have its prefix, beside that "
            "of random pairs of items.",
            "Share of nearest neighbours by content with the same prefix, and by chance.",
        ),
        [
            (name, level.neighbour_agreement, level.agreement_by_chance)
            for name, level in content_prefixes(report)
        ],
        x_title="share of neighbours",
    )


def purity_figure(report: SemanticIdReport) -> Chart | None:
    """Draw the category purity of prefixes; None without categories."""
    rows = [
        (name, level.purity, level.purity_by_chance)
        for name, level in content_prefixes(report)
        if level.purity is not None and level.purity_by_chance is not None
    ]
    if not rows:
        return None
    _, pure, chance = rows[0]
    return gap_figure(
        "purity",
        (
            f"{percent(pure)} of items have the main category of their first code; by chance "
            f"{percent(chance)}",
            "Purity: share of items in the most common category of their prefix, beside that with "
            "shuffled categories (a prefix of one item is always pure). Each item counts with its "
            "most common category that at most half of the items have, if it has one.",
            "Share of items in the most common category of their prefix, and by chance.",
        ),
        rows,
        x_title="share of items",
    )


def drift_figure(report: SemanticIdReport) -> Chart | None:
    """Draw the share of codes kept since the previous version."""
    if report.drift is None or report.drift.kept is None or not report.drift.kept.num_items:
        return None
    kept = report.drift.kept
    shares = {level_name(level): share for level, share in enumerate(kept.per_level)}
    shares["whole ID"] = kept.full
    prefixes = [*(percent(share) for share in kept.per_prefix), ""]
    title = (
        f"All {kept.num_items:,} items kept their ID"
        if kept.full == 1
        else f"{percent(kept.full)} of {kept.num_items:,} items kept their whole ID"
    )
    figure = share_figure(
        "drift",
        (
            title,
            "Share of the items with an ID in both versions that have the same code.",
            "Share of items with the same code as in the previous version, by level.",
        ),
        {label: {"same": share, "changed": 1 - share} for label, share in shares.items()},
        {"same": color_of(2), "changed": NOBODY},
        x_title="share of items",
        columns=("level", "same code", "same prefix"),
    )
    rows = [
        (label, percent(share), prefix)
        for (label, share), prefix in zip(shares.items(), prefixes, strict=True)
    ]
    return replace(figure, rows=rows)
