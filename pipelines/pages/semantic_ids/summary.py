"""The sentences of a report of semantic IDs."""

from __future__ import annotations

from pipelines.pages.figure import percent
from pipelines.pages.semantic_ids.figures import ENOUGH_USED, content_levels, level_name
from pipelines.pages.semantic_ids.numbers import SemanticIdReport

CROWDED = 10
"""Times the mean from which a code is reported as crowded."""
HARDLY_MORE = 0.05
METHODS = {"rq_kmeans": "residual k-means"}
HOW = {
    "trained": "a new quantiser; no earlier version is followed",
    "appended": "appended: new items encoded by the published quantiser; no ID moved",
    "aligned": "a new quantiser, its codes aligned to the previous version",
    "kept": "unchanged: the published version",
    "published": "published by recsys ids or another run after this workspace's own",
}
SHORT = 12
"""Characters of a digest that are shown."""


def levels_text(level_sizes: tuple[int, ...]) -> str:
    """Format level sizes."""
    if len(set(level_sizes)) == 1 and len(level_sizes) > 1:
        return f"{len(level_sizes)} x {level_sizes[0]:,}"
    return ", ".join(f"{size:,}" for size in level_sizes)


def items_have(count: int) -> str:
    """Begin a sentence about a number of items."""
    return "1 item has" if count == 1 else f"{count:,} items have"


def answer(report: SemanticIdReport) -> str:
    """Summarise the version."""
    counts, quality = report.counts, report.quality
    everyone = counts.num_with_id == counts.num_items
    who = "All" if everyone else f"{counts.num_with_id:,} of"
    unique = "" if quality.collisions_after else ", all unique"
    found = (
        f"{who} {counts.num_items:,} items have an ID of {len(report.level_sizes)} codes{unique}."
    )
    first = quality.published[0]
    chance = first.agreement_by_chance
    times = first.neighbour_agreement / chance if chance else 0
    if times > 1:
        found += (
            f" Nearest neighbours by content share the first code {times:,.0f} times as often as "
            "random pairs."
        )
    return found


def notices(report: SemanticIdReport) -> list[str]:
    """List warnings."""
    counts, found = report.counts, []
    if counts.num_without_content:
        found.append(
            f"{items_have(counts.num_without_content)} no content and therefore no ID; the "
            "generative model cannot recommend such items."
        )
    waiting = counts.num_without_id - counts.num_without_content
    if waiting:
        found.append(
            f"{items_have(waiting)} content but no ID in this version; run recsys ids append."
        )
    for place, level in enumerate(content_levels(report)):
        name = level_name(place).capitalize()
        if level.utilisation < ENOUGH_USED:
            found.append(
                f"{name} uses {level.num_used:,} of its {level.size:,} codes "
                f"({percent(level.utilisation)}). Fewer codes a level, or balanced = true, "
                "would use more of them."
            )
    times = report.usage[0][0] * report.level_sizes[0] / max(1, counts.num_with_id)
    if times > CROWDED:
        found.append(
            f"The most used first code has {times:.0f} times the mean: "
            f"{report.usage[0][0]:,} items share it."
        )
    first = report.quality.published[0]
    if (
        first.purity is not None
        and first.purity_by_chance is not None
        and first.purity - first.purity_by_chance < HARDLY_MORE
    ):
        found.append("First codes agree with the categories hardly more than by chance.")
    if report.quality.collisions_after:
        found.append(f"{report.quality.collisions_after:,} items share their ID with another item.")
    return found


def drift_text(report: SemanticIdReport) -> str:
    """Summarise the changes since the previous version."""
    drift = report.drift
    if drift is None:
        return "There is no previous version."
    if drift.previous_version == report.version:
        return "This is the published version: every ID is the same."
    if drift.kept is None:
        return (
            f"The previous version has levels {levels_text(drift.previous_level_sizes)}, this one "
            f"{levels_text(report.level_sizes)}: no ID is kept, and every model that uses the IDs "
            "must be trained from scratch."
        )
    changed = [f"{drift.num_added:,} items gained an ID", f"{drift.num_removed:,} lost theirs"]
    return (
        f"Of {drift.kept.num_items:,} items with an ID in both versions, "
        f"{percent(drift.kept.full)} kept all codes. {' and '.join(changed)}. A model trained on "
        "the previous version still fits the codes that were kept."
    )
