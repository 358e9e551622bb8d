"""The page of a version of semantic IDs.

Codes and their use, what prefixes keep, collisions, the items of the first codes, and the changes
since another version.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.engine.artifacts import to_json
from pipelines.pages.charts import counts, numbers, percent, shares, texts
from pipelines.pages.document import Block, Cell, Code, Page, Section, Table, Tile, Tiles, Words
from pipelines.semantic_ids.measure import SAME_MEANING, Drift, IdsMeasurement, SemanticIdReport
from pipelines.semantic_ids.store import SHORT
from pipelines.semantic_ids.table import describe_first_codes

ENOUGH_USED = 0.95
SHOWN_CODES = 256
"""First codes that are listed, the largest."""
CROWDED = 10
"""Times the mean from which a code is reported as crowded."""
HARDLY_MORE = 0.05
METHODS = {"rq_kmeans": "residual k-means"}
HOW = {
    "trained": "a new quantiser; no earlier version is followed",
    "appended": "appended: new items encoded by the published quantiser; no ID moved",
    "aligned": "a new quantiser, its codes aligned to the previous version",
    "kept": "unchanged: the published version",
}
MEANING = (
    "A semantic ID is a short sequence of codes, coarse to fine, from residual quantisation of {}: "
    "items with the same prefix are similar. A generative model recommends only items that have "
    "an ID; it generalises to new items through the codes they share with others{}."
)
UNMEASURED = (
    "Errors, neighbours and collisions are measured by the run that makes a version, and its "
    "report is not here."
)


def semantic_ids_page(measured: IdsMeasurement) -> Page:
    """Build the page."""
    report, drift = measured.report, measured.drift
    source = ("content embeddings", "")
    if report.is_of_behaviour:
        source = ("a sequence model's item vectors", ", which are assigned by content")
    return Page(
        title=f"Semantic IDs of {report.title}, version {report.version[:SHORT]}",
        lead=answer(report),
        blocks=[
            tiles(report, drift),
            Words(lines=[MEANING.format(*source)]),
            codes_section(report),
            first_codes_section(measured),
            prefix_section(report),
            drift_section(report, drift),
            provenance_section(report),
        ],
        notices=notices(report),
    )


def prefix_name(num_codes: int, num_levels: int) -> str:
    """Label a prefix by its length."""
    if num_codes == num_levels:
        return "whole ID"
    return "first code" if num_codes == 1 else f"first {num_codes} codes"


def level_name(level: int) -> str:
    """Label a level, counted from 1."""
    return f"level {level + 1}"


def levels_text(level_sizes: Sequence[int]) -> str:
    """Format level sizes."""
    if len(set(level_sizes)) == 1 and len(level_sizes) > 1:
        return f"{len(level_sizes)} x {level_sizes[0]:,}"
    return ", ".join(f"{size:,}" for size in level_sizes)


def answer(report: SemanticIdReport) -> str:
    """Summarise the version."""
    everyone = report.num_with_id == report.num_items
    who = "All" if everyone else f"{report.num_with_id:,} of"
    unique = "" if report.num_shared else ", all unique"
    found = f"{who} {report.num_items:,} items have an ID of {len(report.levels)} codes{unique}."
    first = report.levels[0]
    chance = first.agreement_by_chance
    times = first.neighbour_agreement / chance if chance else 0
    if report.content is not None and times > 1:
        found += (
            f" Nearest neighbours by content share the first code {times:,.0f} times as often as "
            "random pairs."
        )
    return found


def notices(report: SemanticIdReport) -> list[str]:
    """List warnings."""

    def items_have(count: int) -> str:
        return "1 item has" if count == 1 else f"{count:,} items have"

    found, missing = [], report.num_items - report.num_with_id
    if not report.made:
        found += [f"Items without an ID in this version: {missing:,}."] if missing else []
    elif report.num_without_content:
        found.append(
            f"{items_have(report.num_without_content)} no content and therefore no ID; the "
            "generative model cannot recommend such items."
        )
    if report.made and report.num_waiting:
        found.append(
            f"{items_have(report.num_waiting)} content but no ID in this version; run recsys ids "
            "append."
        )
    for place, level in enumerate(report.levels[: report.num_content_levels]):
        if level.utilisation < ENOUGH_USED:
            found.append(
                f"{level_name(place).capitalize()} uses {level.num_used:,} of its {level.size:,} "
                f"codes ({percent(level.utilisation)}). Fewer codes a level, or balanced = true, "
                "would use more of them."
            )
    largest, first = report.usage[0][0], report.levels[0]
    times = largest * first.size / max(1, report.num_with_id)
    if times > CROWDED:
        found.append(
            f"The most used first code has {times:.0f} times the mean: {largest:,} items share it."
        )
    if (first.purity or 0) - (first.purity_by_chance or 0) < HARDLY_MORE and first.purity:
        found.append("First codes agree with the categories hardly more than by chance.")
    if report.num_shared:
        found.append(f"{report.num_shared:,} items share their ID with another item.")
    return found


def tiles(report: SemanticIdReport, drift: Drift | None) -> Tiles:
    """Show the numbers that are read at a glance."""
    content, with_id = report.content, report.num_with_id
    alone = "by content alone" if report.is_of_behaviour else "as encoded"
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
            note=f"{content.collisions_before:,} {alone}" if content else "",
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


def codes_section(report: SemanticIdReport) -> Section:
    """Show how many codes are used, and how evenly."""
    table = Table(
        key="levels",
        title="Codes of each level",
        note="Perplexity is the number of codes used as if evenly: 2 to the power of the entropy.",
        columns=[
            *texts("level"),
            *counts("codes", "used"),
            *shares("share used"),
            *numbers("perplexity", "entropy (bits)"),
            *counts("items of the largest code"),
            *shares(
                "other by content" if report.is_of_behaviour else "moved by collisions",
                note="Items whose code is not the one that encoding gave.",
            ),
        ],
        rows=[_level_row(report, place) for place in range(len(report.levels))],
    )
    return Section(
        key="codes",
        title="Codes used",
        note="Unused codes waste capacity; very frequent ones carry little information.",
        blocks=[table],
    )


def _level_row(report: SemanticIdReport, place: int) -> tuple[Cell, ...]:
    one, inside = report.levels[place], place < report.num_content_levels
    return (
        level_name(place) + ("" if inside else ", resolves collisions"),
        *(one.size, one.num_used, one.utilisation),
        *(round(one.perplexity, 1), round(one.entropy_bits, 2)),
        report.usage[place][0] if inside else None,
        report.content.moved[place] if report.content is not None and inside else None,
    )


def first_codes_section(measured: IdsMeasurement) -> Section:
    """Show the items that share a first code."""
    rows = [
        (one.code, one.num_items, one.category, one.purity, "; ".join(one.titles))
        for one in describe_first_codes(measured.table, measured.items, SHOWN_CODES)
    ]
    table = Table(
        key="first-codes",
        title="Items by first code",
        note=f"The {SHOWN_CODES} largest. The share is that of the commonest main category, of the "
        "items that have one.",
        columns=[
            *counts("first code", "items"),
            *texts("commonest category"),
            *shares("its share"),
            *texts("most popular items"),
        ],
        rows=rows,
    )
    return Section(
        key="meaning",
        title="Meaning of the first codes",
        note="Items with the same first code are alike.",
        blocks=[table],
    )


def prefix_section(report: SemanticIdReport) -> Section:
    """Show what prefixes keep: items that share them, neighbours, categories, the content."""
    content, levels = report.content, len(report.levels)
    rows: list[tuple[Cell, ...]] = []
    for place, one in enumerate(report.levels):
        inside = content is not None and place < report.num_content_levels
        near = (one.neighbour_agreement, one.agreement_by_chance) if content else (None, None)
        rows.append(
            (
                *(prefix_name(place + 1, levels), one.num_prefixes),
                *(*near, one.purity, one.purity_by_chance),
                content.errors_by_level[place] if content is not None and inside else None,
            )
        )
    chance = "The same for random pairs of items."
    table = Table(
        key="prefixes-kept",
        title="What a prefix keeps",
        note=f"{report.num_with_category:,} items have a main category. Deep prefixes hold few "
        "items and are pure by chance.",
        columns=[
            *texts("shared codes"),
            *counts("prefixes"),
            *shares("neighbours", note="Of the 10 nearest by content, those that share it."),
            *shares("neighbours by chance", note=chance),
            *shares("purity", note="Items of the commonest main category of their prefix."),
            *shares("purity by chance", note="The same with shuffled categories."),
            *numbers(
                "error", format="metric", note="Squared, over the variance of the content vectors."
            ),
        ],
        rows=rows,
    )
    words = Words(lines=[UNMEASURED] if content is None else _collisions(report), tone="note")
    return Section(
        key="prefixes",
        title="Prefixes and collisions",
        note="Each further code narrows the catalogue. Good codes give similar items the same "
        "prefix and keep the content.",
        blocks=[table, words],
    )


def _collisions(report: SemanticIdReport) -> list[str]:
    """State how many items shared codes before collisions were resolved."""
    content = report.content
    assert content is not None
    before, after = content.collisions_before, report.num_shared
    left = f"{after:,} share an ID as published" if after else "every published ID is unique"
    if report.is_of_behaviour:
        line = f"By content alone {before:,} items would share the codes of an earlier one; {left}."
    else:
        line = f"{before:,} items were encoded to the codes of an earlier one; {left}."
    group = f"The largest group of equal codes has {content.largest_group:,} items."
    return [line, group if before else "No two items were encoded to the same codes."]


def drift_section(report: SemanticIdReport, drift: Drift | None) -> Section:
    """Show what changed since another version."""
    how = str(report.made.get("how", "published"))
    if drift is None:
        words = Words(lines=["There is no version to compare with."])
        return Section(key="versions", title="Changes since another version", blocks=[words])
    blocks: list[Block] = [Words(lines=_drift_words(drift))]
    if drift.kept is not None:
        blocks.append(_kept_table(drift))
    return Section(
        key="versions",
        title=f"From version {drift.before[:SHORT]} to {drift.after[:SHORT]}",
        note=f"How the run got {drift.after[:SHORT]}: {HOW.get(how, how)}.",
        blocks=blocks,
    )


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
        f"IDs in {after} alone: {drift.num_added:,}; in {before} alone: {drift.num_removed:,}.",
    ]
    if drift.num_changed:
        found.append(
            f"{drift.num_changed:,} of {len(drift.overlaps):,} first codes share less than "
            f"{SAME_MEANING:.0%} of their items with those they had: they mean something else."
        )
    return found


def _kept_table(drift: Drift) -> Table:
    assert drift.kept is not None
    shared = zip(drift.kept.per_level, drift.kept.per_prefix, strict=True)
    return Table(
        key="kept",
        title="What items kept",
        note="Shares of the items with an ID in both versions.",
        columns=[
            *texts("level"),
            *shares("same code", "same codes up to here"),
        ],
        rows=[(level_name(level), *kept) for level, kept in enumerate(shared)],
    )


def provenance_section(report: SemanticIdReport) -> Section:
    """Show what a version was made from."""
    made, without = report.made, report.num_without_content
    method, how = str(made.get("method", "unknown")), str(made.get("how", "published"))
    content = f" ({without:,} have no content)" if without else ""
    source = "content"
    if report.is_of_behaviour:
        source = "item vectors of the sequence model; new items by content"
    rows = {
        "version": report.version,
        "parent": report.parent or "none",
        "made by": HOW.get(how, how),
        "method": f"{METHODS.get(method, method)}, levels of {levels_text(report.level_sizes)} "
        "codes",
        "source": source,
        "quantiser": str(made.get("quantizer", "unknown")),
        "content": str(made.get("origin", {}).get("encoder", "unknown")),
        "items": f"{report.num_items:,} in the catalogue: {report.num_with_id:,} with an ID, "
        f"{report.num_items - report.num_with_id:,} without{content}",
        "departed": f"{report.num_departed:,} IDs of items that are no longer in the catalogue; "
        "they are not reused",
    }
    columns = texts("of", "value")
    table = Table(key="made", title="Made from", note="", columns=columns, rows=[*rows.items()])
    settings = Code(key="settings", title="Settings", text=to_json(dict(report.settings)))
    blocks: list[Block] = [table, *([settings] if report.settings else [])]
    return Section(key="provenance", title="Provenance", blocks=blocks)
