"""The sections of the page beside the tree: codes, collisions, content, popularity, versions."""

from __future__ import annotations

from dataclasses import replace

from pipelines.dashboard.semantic_ids.collisions import Collisions
from pipelines.dashboard.semantic_ids.drift import SAME_MEANING, Drift
from pipelines.dashboard.semantic_ids.measures import Measured
from pipelines.dashboard.semantic_ids.tree import Group
from pipelines.dashboard.semantic_ids.versions import IdTable
from pipelines.dashboard.semantic_ids.walk import Shown
from pipelines.pages.charts.shapes import Dot, gap_chart
from pipelines.pages.columns import counts, shares, texts
from pipelines.pages.document import (
    Block,
    Chart,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
)
from pipelines.pages.figure import chart_of, percent, with_origins
from pipelines.pages.semantic_ids.figures import (
    drift_figure,
    level_color,
    level_name,
    prefix_name,
)
from pipelines.pages.semantic_ids.numbers import SemanticIdReport, VersionDrift
from pipelines.pages.semantic_ids.page import prefix_charts, version_tiles
from pipelines.pages.semantic_ids.summary import HOW, SHORT, levels_text

TITLES = 4
"""Of a group of items with the same codes."""
EXPORTED = 25
"""Rows of a table in a file."""
NAMES = {"head": "head", "torso": "torso", "tail": "tail", "cold": "cold (no event)"}


def summary_tiles(measured: Measured, drift: Drift | None) -> Tiles:
    """Show the numbers that are read at a glance."""
    tiles = version_tiles(measured.report, has_content=measured.has_content)
    if drift is not None:
        words = "since the version it is compared with"
        tiles.append(Tile(label="kept their ID", value=percent(drift.everyone.full), note=words))
    return Tiles(tiles=tiles)


def collision_section(shown: Shown, measured: Measured, found: Collisions) -> Section:
    """Show how many items share a prefix, and which were encoded to the same codes."""
    blocks: list[Block] = [
        *prefix_charts(measured.report, has_content=measured.has_content),
        Words(lines=[found.words]),
    ]
    if found.groups:
        title, table = shown.items.title, shown.table
        blocks.append(
            Table(
                key="groups",
                title=f"{found.num_items:,} items in {found.num_groups:,} groups of equal codes",
                note=f"The {len(found.groups):,} largest groups: titles of the first items, and "
                "the IDs that they were given.",
                columns=[*texts("codes"), *counts("items"), *texts("titles", "their IDs")],
                rows=[
                    (
                        group.codes,
                        len(group.rows),
                        "; ".join(title(row) for row in group.rows[:TITLES]),
                        ", ".join(table.text(row) for row in group.rows[:TITLES]),
                    )
                    for group in found.groups
                ],
                page_length=10,
            )
        )
    section = Section(key="prefixes", title="Prefixes and collisions", blocks=blocks)
    return with_origins(section, shown.origins)


def popularity_section(shown: Shown, measured: Measured) -> Section:
    """Show which codes popular and rare items have."""
    levels = len(measured.report.level_sizes)
    colors = {level_name(level): level_color(level) for level in range(levels)}
    dots = [
        Dot(
            label=NAMES[tier.name],
            series=series,
            mean=share,
            low=share,
            high=share,
            note=f"{NAMES[tier.name]} \u00b7 {series}: {percent(share)} of its codes",
        )
        for tier in measured.tiers
        for series, share in zip(colors, tier.codes_used, strict=True)
    ]
    figure = Chart(
        key="tier-codes",
        title="Share of codes that popular and rare items use",
        note="Of all codes of a level, those that at least one item of the group has. A code that "
        "no head item has is learned from rare items alone. Head: the most popular items with "
        f"half of the events; torso: the next 40%; tail: the rest. Counted: {shown.items.counted}.",
        description="Share of each level's codes used by head, torso, tail and cold items.",
        spec=gap_chart(
            dots,
            colors,
            x_title="share of the level's codes",
            labels=[NAMES[tier.name] for tier in measured.tiers],
        ),
        legend=colors,
        columns=(
            *("items", "count", "with an ID"),
            *(f"{name} used" for name in colors),
            *(f"alone in their {prefix_name(level + 1, levels)}" for level in range(levels - 1)),
        ),
        rows=[
            (
                NAMES[tier.name],
                f"{tier.num_items:,}",
                percent(tier.num_with_id / tier.num_items),
                *map(percent, tier.codes_used),
                *map(percent, tier.alone[:-1]),
            )
            for tier in measured.tiers
        ],
    )
    return Section(
        key="popularity",
        title="Codes by popularity of items",
        blocks=[chart_of(figure, shown.origins)],
    )


def drift_words(drift: Drift | None, before: IdTable, after: IdTable) -> list[str]:
    """Say what changed between two versions."""
    names = before.version[:SHORT], after.version[:SHORT]
    if drift is None:
        return [
            f"Version {names[0]} has levels {levels_text(before.level_sizes)}, {names[1]} has "
            f"{levels_text(after.level_sizes)}: no code means the same, so every model that uses "
            "the IDs is trained from scratch."
        ]
    found = [
        f"Of {drift.everyone.num_items:,} items with an ID in both versions "
        f"{percent(drift.everyone.full)} kept it whole, {percent(drift.everyone.per_prefix[0])} "
        "their first code.",
        f"IDs in {names[1]} alone: {drift.num_added:,}; in {names[0]} alone: "
        f"{drift.num_removed:,}. Ever given out: {drift.id_rows[0]:,} before, "
        f"{drift.id_rows[1]:,} after.",
    ]
    if drift.num_changed:
        found.append(
            f"{drift.num_changed:,} of {len(drift.codes):,} first codes share less than "
            f"{SAME_MEANING:.0%} of their items with what they had: they mean something else."
        )
    return found


def drift_section(
    shown: Shown, report: SemanticIdReport, drift: Drift | None, before: IdTable
) -> Section:
    """Show what changed since another version."""
    blocks: list[Block] = [Words(lines=drift_words(drift, before, shown.table))]
    if drift is not None:
        compared = VersionDrift(
            previous_version=before.version,
            previous_level_sizes=before.level_sizes,
            kept=drift.everyone,
            num_added=drift.num_added,
            num_removed=drift.num_removed,
            moved=[],
        )
        figure = drift_figure(replace(report, drift=compared))
        blocks += [] if figure is None else [chart_of(figure, shown.origins)]
        blocks += [_kept_table(shown, drift), _vocabulary_table(shown, drift)]
        blocks += _changed_tables(shown, drift)
    return Section(
        key="versions",
        title=f"From version {before.version[:SHORT]} to {shown.table.version[:SHORT]}",
        note=f"How the run got {shown.table.version[:SHORT]}: {HOW.get(report.how, report.how)}.",
        blocks=blocks,
    )


def _kept_table(shown: Shown, drift: Drift) -> Table:
    levels = shown.table.num_levels
    return Table(
        key="kept",
        title="What items kept, by popularity",
        note="Of the items with an ID in both versions, those with the same first codes.",
        columns=[
            *texts("items"),
            *counts("count"),
            *shares(*(prefix_name(level + 1, levels) for level in range(levels))),
        ],
        rows=[
            (NAMES[part.name], part.kept.num_items, *part.kept.per_prefix) for part in drift.parts
        ],
        origins=shown.origins,
    )


def _vocabulary_table(shown: Shown, drift: Drift) -> Table:
    return Table(
        key="vocabularies",
        title="Codes that came and went",
        note="A model's vocabulary of codes grows only where a level gets larger.",
        columns=[
            *texts("level"),
            *counts("codes", "used before", "used after", "newly used", "no longer used"),
        ],
        rows=[
            (level_name(level), one.size, one.used_before, one.used_after, one.appended, one.gone)
            for level, one in enumerate(drift.vocabularies)
        ],
        origins=shown.origins,
    )


def _changed_tables(shown: Shown, drift: Drift) -> list[Block]:
    changed = [code for code in drift.codes if code.overlap < 1]
    codes = Table(
        key="changed",
        title="First codes whose items changed most",
        note="Overlap: items that have the code in both versions, over those that have it in "
        "either; of the items with an ID in both.",
        columns=[
            *texts("code"),
            *shares("overlap"),
            *counts("items before", "items after"),
            *texts("category before", "category after", "popular before", "popular after"),
        ],
        rows=[
            (
                shown.cell(one.after.text),
                one.overlap,
                one.before.num_items,
                one.after.num_items,
                _category(one.before),
                _category(one.after),
                "; ".join(one.before.titles),
                "; ".join(one.after.titles),
            )
            for one in (changed[:EXPORTED] if shown.context.exported else changed)
        ],
        page_length=10,
        origins=shown.origins,
    )
    moves = Table(
        key="moves",
        title="Largest moves between first codes",
        note="Items that went from one first code to another.",
        columns=[*texts("from", "to"), *counts("items"), *texts("most popular")],
        rows=[
            (str(move.before), str(move.after), move.num_items, "; ".join(move.titles))
            for move in drift.moves
        ],
        page_length=10,
        origins=shown.origins,
    )
    return [*([codes] if changed else []), *([moves] if drift.moves else [])]


def _category(group: Group) -> str:
    return f"{group.category} ({group.purity:.0%})" if group.purity is not None else ""
