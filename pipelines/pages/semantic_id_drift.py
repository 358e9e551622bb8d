"""Changes of semantic IDs from one version to another, as sections of a page."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.pages.charts import counts, percent, shares, texts
from pipelines.pages.document import Block, Cell, LinkedCell, Section, Table, Words
from pipelines.pages.semantic_id_sections import (
    HOW,
    TIERS,
    halves,
    level_name,
    levels_text,
    prefix_name,
)
from pipelines.semantic_ids.measure import SAME_MEANING, Drift, SemanticIdReport
from pipelines.semantic_ids.store import SHORT


def _drift_words(drift: Drift) -> list[str]:
    """State what changed between two versions."""
    before, after = drift.before[:SHORT], drift.after[:SHORT]
    if drift.before == drift.after:
        return ["This is the published version: every ID is the same."]
    if drift.kept is None:
        return [
            f"Version {before} has levels {levels_text(drift.sizes[0])}, {after} has "
            f"{levels_text(drift.sizes[1])}: no code means the same, so every model that uses "
            "the IDs must be trained from scratch."
        ]
    found = [
        f"Of {drift.kept.num_items:,} items with an ID in both versions "
        f"{percent(drift.kept.full)} kept it whole, {percent(drift.kept.per_prefix[0])} their "
        "first code. A model trained on the previous version still fits the codes that were kept.",
        f"IDs in {after} alone: {drift.num_added:,}; in {before} alone: {drift.num_removed:,}. "
        f"Ever given out: {drift.id_rows[0]:,} before, {drift.id_rows[1]:,} after.",
    ]
    if drift.num_changed:
        found.append(
            f"{drift.num_changed:,} of {len(drift.codes):,} first codes share less than "
            f"{SAME_MEANING:.0%} of their items with those they had: they mean something else."
        )
    return found


def drift_section(
    report: SemanticIdReport,
    drift: Drift | None,
    *,
    most: int | None = None,
    cell: Callable[[str], Cell | LinkedCell] = str,
) -> Section:
    """Show what changed since another version.

    Args:
        most: Rows of the table of codes; all by default.
        cell: Writes a prefix in a table.
    """
    how = str(report.made.get("how", "published"))
    if drift is None:
        blocks: list[Block] = [Words(lines=["There is no previous version."])]
        return Section(key="versions", title="Changes since the previous version", blocks=blocks)
    blocks = [Words(lines=_drift_words(drift))]
    if drift.kept is not None:
        blocks += [*_kept_blocks(report, drift), *_change_tables(drift, most, cell)]
    return Section(
        key="versions",
        title=f"From version {drift.before[:SHORT]} to {drift.after[:SHORT]}",
        note=f"How the run got {drift.after[:SHORT]}: {HOW.get(how, how)}.",
        blocks=blocks,
    )


def _kept_blocks(report: SemanticIdReport, drift: Drift) -> list[Block]:
    levels, kept = len(report.levels), drift.kept
    assert kept is not None
    rows = {level_name(level): (share, "") for level, share in enumerate(kept.per_level)}
    title = f"{percent(kept.full)} of {kept.num_items:,} items kept their whole ID"
    if kept.full == 1:
        title = f"All {kept.num_items:,} items kept their ID"
    note = "Share of the items with an ID in both versions that have the same code."
    rows["whole ID"] = (kept.full, "")
    chart = halves("drift", (title, note, "share of items"), rows, ("same", "changed"))
    by_popularity = Table(
        key="kept",
        title="What items kept, by popularity",
        note="Of the items with an ID in both versions, those with the same first codes.",
        columns=[
            *texts("items"),
            *counts("count"),
            *shares(*(prefix_name(level + 1, levels) for level in range(levels))),
        ],
        rows=[
            (label, one.num_items, *one.per_prefix)
            for label, one in (
                ("all", kept),
                *((TIERS[name], one) for name, one in drift.by_popularity.items()),
            )
        ],
    )
    vocabularies = Table(
        key="vocabularies",
        title="Codes that came and went",
        note="A model's vocabulary of codes grows only if a level gets larger.",
        columns=[
            *texts("level"),
            *counts("codes", "used before", "used after", "newly used", "no longer used"),
        ],
        rows=[(level_name(level), *one) for level, one in enumerate(drift.vocabularies)],
    )
    return [chart, by_popularity, vocabularies]


def _change_tables(
    drift: Drift, most: int | None, cell: Callable[[str], Cell | LinkedCell]
) -> list[Block]:
    changed = [code for code in drift.codes if code.overlap < 1][:most]
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
                *(cell(one.after.text), one.overlap),
                *(side.num_items for side in (one.before, one.after)),
                *(
                    "" if side.purity is None else f"{side.category} ({side.purity:.0%})"
                    for side in (one.before, one.after)
                ),
                *("; ".join(side.titles) for side in (one.before, one.after)),
            )
            for one in changed
        ],
        page_length=10,
    )
    moves = Table(
        key="moves",
        title="Largest moves between first codes",
        note="Items that went from one first code to another.",
        columns=[*texts("from", "to"), *counts("items"), *texts("most popular")],
        rows=[
            (str(before), str(after), count, "; ".join(titles))
            for before, after, count, titles in drift.moves
        ],
        page_length=10,
    )
    moved = Table(
        key="moved",
        title="Items that moved",
        note="The most popular ones by the first level that differs; codes that stayed are in "
        "brackets.",
        columns=texts("item", "before", "after"),
        rows=[
            (title, marked_id(before, kept), marked_id(after, kept))
            for title, before, after, kept in drift.moved
        ],
    )
    return [one for one in (codes, moves, moved) if one.rows]


def marked_id(semantic_id: str, num_shared: int) -> str:
    """Write an ID with its shared codes in brackets, such as ``[12-4]-7``."""
    codes = semantic_id.split("-")
    shared, rest = "-".join(codes[:num_shared]), "-".join(codes[num_shared:])
    return "-".join(filter(None, [f"[{shared}]" if shared else "", rest]))
