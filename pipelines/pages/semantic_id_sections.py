"""Sections of a page of semantic IDs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.pages.charts import (
    NOBODY,
    SECOND,
    Row,
    color_of,
    counts,
    figure,
    gap_chart,
    line_chart,
    numbers,
    percent,
    share_chart,
    shares,
    texts,
)
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
)
from pipelines.pages.report_data import thinned
from pipelines.semantic_ids.measure import (
    GROUP_SIZES,
    Collisions,
    Drift,
    SemanticIdReport,
)

ENOUGH_USED = 0.95
EVEN_ENOUGH = 0.5
"""Share of a level's codes that its perplexity has to reach to count as even."""
MAX_CODES_DRAWN = 64
LEVEL_COLORS = (2, 3, 1, 0, 7)
OURS, CHANCE = "these IDs", "by chance"
METHODS = {"rq_kmeans": "residual k-means"}
HOW = {
    "trained": "a new quantiser; no earlier version is followed",
    "appended": "appended: new items encoded by the published quantiser; no ID moved",
    "aligned": "a new quantiser, its codes aligned to the previous version",
    "kept": "unchanged: the published version",
    "published": "published by recsys ids or another run after this workspace's own",
}
TIERS = {"head": "head", "torso": "torso", "tail": "tail", "cold": "cold (no event)"}
UNMEASURED = (
    "Content neighbours are measured by the run that makes a version, and its report is not here. "
    "recsys ids report measures the workspace's current version."
)


def prefix_name(num_codes: int, num_levels: int) -> str:
    """Label a prefix by its length."""
    if num_codes == num_levels:
        return "whole ID"
    return "first code" if num_codes == 1 else f"first {num_codes} codes"


def level_name(level: int) -> str:
    """Label a level, counted from 1."""
    return f"level {level + 1}"


def _level_colors(count: int) -> dict[str, str]:
    return {
        level_name(level): color_of(LEVEL_COLORS[level % len(LEVEL_COLORS)])
        for level in range(count)
    }


def levels_text(level_sizes: Sequence[int]) -> str:
    """Format level sizes."""
    if len(set(level_sizes)) == 1 and len(level_sizes) > 1:
        return f"{len(level_sizes)} x {level_sizes[0]:,}"
    return ", ".join(f"{size:,}" for size in level_sizes)


def tiles(report: SemanticIdReport, drift: Drift | None = None) -> Tiles:
    """Show the numbers that are read at a glance."""
    content, with_id = report.content, report.num_with_id
    found = [
        Tile(
            label="items with an ID",
            value=f"{with_id:,} of {report.num_items:,}",
            tone="good" if with_id == report.num_items else "note",
        ),
        Tile(
            label="levels",
            value=levels_text(report.level_sizes),
            note=METHODS.get(report.made.get("method", ""), "method not recorded"),
        ),
        Tile(
            label="codes in use",
            value=percent(min(level.utilisation for level in report.levels)),
            note="at the level that uses fewest",
        ),
        Tile(
            label="items that share an ID",
            value=f"{report.num_shared:,}",
            note=f"{content.collisions_before:,} {_encoded(report)}" if content else "",
            tone="bad" if report.num_shared else "good",
        ),
    ]
    if content is not None:
        kept = percent(max(0.0, 1 - content.reconstruction_error))
        note = "of the variance of the content vectors"
        found.append(Tile(label="content kept", value=kept, note=note))
    if drift is not None and drift.kept is not None:
        note = "since the version it is compared with"
        found.append(Tile(label="kept their ID", value=percent(drift.kept.full), note=note))
    return Tiles(tiles=found)


def _encoded(report: SemanticIdReport) -> str:
    return "by content alone" if report.is_of_behaviour else "as encoded"


def _usage_title(report: SemanticIdReport) -> str:
    """State how many codes are used, and how unevenly."""
    levels = list(enumerate(report.levels[: report.num_content_levels]))
    worst, least = min(levels, key=lambda one: one[1].utilisation)
    if least.utilisation < ENOUGH_USED:
        name = level_name(worst).capitalize()
        return f"{name} uses only {least.num_used:,} of its {least.size:,} codes"
    title = f"Each level uses at least {percent(least.utilisation)} of its codes"
    if least.utilisation == 1:
        title = "Every code of every level is used"
    place, rough = min(levels, key=lambda one: one[1].perplexity / one[1].size)
    if rough.perplexity < EVEN_ENOUGH * rough.size:
        title += f"; the perplexity of {level_name(place)} is {rough.perplexity:,.0f}"
    return title


def usage_section(report: SemanticIdReport) -> Section:
    """Show how many codes are used, and how evenly."""
    drawn: list[Row] = []
    busiest = []
    for level, usage in enumerate(report.usage):
        name, total = level_name(level), max(1, sum(usage))
        ranked = [(place + 1, float(count)) for place, count in enumerate(usage)]
        drawn += [
            (name, place, count, count / total) for place, count in thinned(ranked, MAX_CODES_DRAWN)
        ]
        busiest.append(f"{usage[0] * len(usage) / total:.1f} at {name}")
    chart = figure(
        line_chart,
        "usage",
        _usage_title(report),
        "Items of each code, most used first; flat means uniform. Largest over mean: "
        f"{', '.join(busiest)}.",
        [*texts("level"), *counts("rank of the code", "items"), *shares("share of items")],
        drawn,
        "series x y -",
        colors=_level_colors(report.num_content_levels),
        x_title="codes, most used first",
        y_title="items",
        y_format=",.0f",
        from_zero=True,
    )
    return Section(
        key="codes",
        title="Codes used",
        note="Unused codes waste capacity; very frequent ones carry little information.",
        blocks=[chart, _levels_table(report)],
    )


def _levels_table(report: SemanticIdReport) -> Table:
    """Tabulate the codes of each level."""
    content, num_content = report.content, report.num_content_levels
    rows = []
    for place, one in enumerate(report.levels):
        name, inside = level_name(place), place < num_content
        measured: tuple[Cell, ...] = (None, None)
        if content is not None and inside:
            measured = content.errors_by_level[place], content.moved[place]
        rows.append(
            (
                name if inside else f"{name}, resolves collisions",
                *(one.size, one.num_used, one.utilisation),
                *(round(one.perplexity, 1), round(one.entropy_bits, 2)),
                report.usage[place][0] if inside else None,
                *(one.num_prefixes, one.purity, *measured),
            )
        )
    changed = "other by content" if report.is_of_behaviour else "moved by collisions"
    return Table(
        key="levels",
        title="Codes of each level",
        note="Perplexity is the number of codes used as if evenly: 2 to the power of the entropy. "
        "Purity is the share of items in the commonest main category of their prefix.",
        columns=[
            *texts("level"),
            *counts("codes", "used"),
            *shares("share used"),
            *numbers("perplexity", "entropy (bits)"),
            *counts("items of the largest code", "prefixes"),
            *shares("purity"),
            *numbers(
                "error",
                format="metric",
                note="Of the codes up to this level, squared, over the variance of the content.",
            ),
            *shares(changed, note="Items whose code is not the one that encoding gave."),
        ],
        rows=rows,
    )


def _groups_chart(
    key: str, title: str, note: str, groups: Mapping[str, Mapping[str, float]]
) -> Chart:
    """Draw the sizes of groups of items."""
    return figure(
        share_chart,
        key,
        title,
        note,
        [*texts("codes", "items in the group"), *shares("share of items")],
        [(label, name, share) for label, parts in groups.items() for name, share in parts.items()],
        "label series share",
        colors={name: f"var(--group{place})" for place, name in enumerate(GROUP_SIZES)},
        shown=lambda row: bool(row[2]),
        x_title="share of items",
    )


def prefix_section(
    report: SemanticIdReport, collisions: Collisions | None = None, rows: Sequence[Row] = ()
) -> Section:
    """Show how many items share a prefix, and which were encoded to the same codes.

    Args:
        rows: Codes, items, titles and IDs of the groups of ``collisions``.
    """
    levels = len(report.levels)
    narrowed = [
        f"the {prefix_name(one.num_codes, 0)} {'leaves' if one.num_codes == 1 else 'leave'} "
        f"{one.median_items:,}"
        for one in (report.depths[0], *(report.depths[-2:-1] if levels > 2 else ()))
    ]
    largest = ", ".join(
        f"{one.largest:,} ({prefix_name(one.num_codes, levels)})" for one in report.depths
    )
    depth = _groups_chart(
        "depth",
        f"Of {report.num_with_id:,} items, {', '.join(narrowed)}",
        "Items with an item's prefix, itself included; the title gives the median. Largest "
        f"prefix: {largest}.",
        {prefix_name(one.num_codes, levels): one.shares for one in report.depths},
    )
    blocks: list[Block] = [depth]
    if report.content is not None:
        title, note = _collision_words(report)
        groups = {_encoded(report): report.groups_before, "published": report.depths[-1].shares}
        blocks.append(_groups_chart("collisions", title, note, groups))
    if collisions is not None:
        blocks.append(Words(lines=[collisions.words]))
    if rows and collisions is not None:
        table = Table(
            key="groups",
            title=f"{collisions.num_items:,} items in {collisions.num_groups:,} groups of equal "
            "codes",
            note=f"The {len(rows):,} largest groups: titles of the first items, and the IDs that "
            "they were given.",
            columns=[*texts("codes"), *counts("items"), *texts("titles", "their IDs")],
            rows=rows,
            page_length=10,
        )
        blocks.append(table)
    return Section(
        key="prefixes",
        title="Prefixes and collisions",
        note="Each further code narrows the catalogue; a whole ID is one item.",
        blocks=blocks,
    )


def _collision_words(report: SemanticIdReport) -> tuple[str, str]:
    """State how many items shared codes before collisions were resolved, and what changed."""
    content = report.content
    assert content is not None
    before, after = content.collisions_before, report.num_shared
    title = "No two items were encoded to the same codes"
    if before and report.is_of_behaviour:
        now = f"{after:,} do" if after else "every ID is unique"
        title = f"By content alone {before:,} items would share their codes; {now}"
    elif before:
        now = f"{after:,} still share an ID" if after else "every ID is unique"
        title = f"{before:,} items collided with an earlier one when encoded; {now}"
    moved = [
        f"{percent(share)} at {level_name(level)}" for level, share in enumerate(content.moved)
    ]
    changed = "No code had to be changed."
    if report.is_of_behaviour:
        changed = f"Items with another code by content alone: {', '.join(moved)}."
    elif any(content.moved):
        changed = f"Items that did not get their nearest code: {', '.join(moved)}."
    largest = f"Largest collision {_encoded(report)}: {content.largest_group:,} items."
    return title, f"{largest} {changed}"


def content_section(report: SemanticIdReport) -> Section:
    """Show how well prefixes agree with content and categories."""
    levels = len(report.levels)
    shorter = report.levels[: report.num_content_levels]
    prefixes = [
        (prefix_name(place, levels), level)
        for place, level in enumerate(shorter[: levels - 1] or shorter, start=1)
    ]
    blocks: list[Block] = [Words(lines=[UNMEASURED], tone="note")]
    if report.content is not None:
        first = report.levels[0]
        near = _gap(
            "neighbours",
            f"{percent(first.neighbour_agreement)} of nearest neighbours share the first code; "
            f"of random pairs {percent(first.agreement_by_chance)} do",
            "Share of an item's 10 nearest neighbours by content that have its prefix, and that "
            "of random pairs of items.",
            [(name, one.neighbour_agreement, one.agreement_by_chance) for name, one in prefixes],
        )
        blocks = [near, _reconstruction(report)]
    pure = [
        (name, one.purity, one.purity_by_chance)
        for name, one in prefixes
        if one.purity is not None and one.purity_by_chance is not None
    ]
    if pure and levels > 1:
        chart = _gap(
            "purity",
            f"{percent(pure[0][1])} of items have the main category of their first code; by "
            f"chance {percent(pure[0][2])}",
            "Purity: share of items in the most common category of their prefix, and that with "
            "shuffled categories (a prefix of one item is always pure). Each item counts with its "
            "most common category that at most half of the items have, if it has one.",
            pure,
        )
        blocks.append(chart)
    else:
        blocks.append(Words(lines=["Without categories of items, purity cannot be measured."]))
    return Section(
        key="content",
        title="What the codes keep",
        note="Good codes reconstruct the content and give similar items the same prefix. "
        f"{report.num_with_category:,} items have one of {report.num_categories:,} categories; "
        "categories that are part of the encoded text agree more.",
        blocks=blocks,
    )


def _gap(key: str, title: str, note: str, rows: Sequence[tuple[str, float, float]]) -> Chart:
    """Draw shares next to those by chance."""
    return figure(
        gap_chart,
        key,
        title,
        note,
        [*texts("shared codes", "of"), *shares("share")],
        [
            (label, series, share)
            for label, ours, chance in rows
            for series, share in ((OURS, ours), (CHANCE, chance))
        ],
        "label series mean",
        colors={OURS: color_of(2), CHANCE: SECOND},
        x_title="share",
    )


def halves(
    key: str,
    words: tuple[str, str, str],
    rows: Mapping[str, tuple[float, str]],
    names: tuple[str, str],
) -> Chart:
    """Draw shares and the rest; ``words``: title, note, title of the axis."""
    title, note, x_title = words
    return figure(
        share_chart,
        key,
        title,
        note,
        [*texts("of", "part"), *shares("share"), *texts("value")],
        [
            (label, name, part, text)
            for label, (share, text) in rows.items()
            for name, part in zip(names, (share, 1 - share), strict=True)
        ],
        "label series share -",
        colors=dict(zip(names, (color_of(2), NOBODY), strict=True)),
        x_title=x_title,
    )


def _reconstruction(report: SemanticIdReport) -> Chart:
    """Draw the explained variance of the content by the number of codes."""
    content, count = report.content, report.num_content_levels
    assert content is not None
    errors = {prefix_name(place, 0): one for place, one in enumerate(content.errors_by_level, 1)}
    note = "Share of the variance of the content vectors that the codes reconstruct."
    if any(content.moved):
        errors["published"] = content.published_error
        note += (
            " Published codes group items by behaviour, not by content."
            if report.is_of_behaviour
            else " As published, some items do not have their nearest code."
        )
    codes = "One code keeps" if count == 1 else f"{count} codes keep"
    kept = percent(max(0.0, 1 - content.reconstruction_error))
    rows = {name: (1 - min(1.0, one), f"error {one:.4f}") for name, one in errors.items()}
    words = (f"{codes} {kept} of the content", note, "share of the variance")
    return halves("reconstruction", words, rows, ("kept", "lost"))


def popularity_section(report: SemanticIdReport, counted: str) -> Section:
    """Show which codes popular and rare items have."""
    levels = len(report.levels)
    colors = _level_colors(levels)
    chart = figure(
        gap_chart,
        "tier-codes",
        "Share of codes that popular and rare items use",
        "Of all codes of a level, those that at least one item of the group has. A code that "
        "no head item has is learned from rare items alone. Head: the most popular items with "
        f"half of the events; torso: the next 40%; tail: the rest. Counted: {counted}.",
        [
            *texts("items", "level"),
            *shares("codes used", "alone in the prefix", "with an ID"),
            *counts("items"),
        ],
        [
            (
                *(TIERS[tier.name], name, used, alone),
                *(tier.num_with_id / tier.num_items, tier.num_items),
            )
            for tier in report.tiers
            for name, used, alone in zip(colors, tier.codes_used, tier.alone, strict=True)
        ],
        "label series mean - - -",
        colors=colors,
        x_title="share of the level's codes",
    )
    return Section(key="popularity", title="Codes by popularity of items", blocks=[chart])
