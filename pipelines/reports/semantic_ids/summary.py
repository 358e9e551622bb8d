"""What a report of semantic IDs says in sentences."""

from __future__ import annotations

from pipelines.reports.figures import percent
from pipelines.reports.semantic_ids.figures import ENOUGH_USED, content_levels, level_name
from pipelines.reports.semantic_ids.numbers import SemanticIdReport

CROWDED = 10
"""Times an even share from which a code is called crowded."""
HARDLY_MORE = 0.05
METHODS = {"rq_kmeans": "residual k-means", "rq_vae": "RQ-VAE"}
HOW = {
    "trained": "a fresh quantiser was trained; no earlier version was followed",
    "appended": "new items got IDs by the quantiser of the version before; no ID moved",
    "aligned": "the quantiser was trained again, its codes renamed after the version before",
    "kept": "nothing changed: this is the published version",
    "published": "published after this workspace's own run, by recsys ids or by another run",
}
SHORT = 12
"""Characters of a digest that a person compares."""


def levels_told(level_sizes: tuple[int, ...]) -> str:
    """Write level sizes as a person does."""
    if len(set(level_sizes)) == 1 and len(level_sizes) > 1:
        return f"{len(level_sizes)} x {level_sizes[0]:,}"
    return ", ".join(f"{size:,}" for size in level_sizes)


def items_told(count: int) -> str:
    """Begin a sentence about some items."""
    return "1 item has" if count == 1 else f"{count:,} items have"


def answer(report: SemanticIdReport) -> list[tuple[str, bool]]:
    """Sum the version up in words; True marks what is said with emphasis."""
    counts, quality = report.counts, report.quality
    everyone = counts.num_with_id == counts.num_items
    who = (
        f"All {counts.num_items:,} items"
        if everyone
        else (f"{counts.num_with_id:,} of {counts.num_items:,} items")
    )
    told = [
        (f"{who} have an ID of {len(report.level_sizes)} codes", True),
        (", each its own. " if not quality.collisions_after else ". ", False),
    ]
    first = quality.published[0]
    times = (
        first.neighbour_agreement / first.agreement_by_chance if first.agreement_by_chance else 0
    )
    if times > 1:
        told.append(
            (
                "Items of like content have the first code in common "
                f"{times:,.0f} times as often as any two items.",
                False,
            )
        )
    return told


def notices(report: SemanticIdReport) -> list[str]:
    """List what a reader should be careful about."""
    counts, told = report.counts, []
    if counts.num_without_content:
        told.append(
            f"{items_told(counts.num_without_content)} no content to encode and so no ID; what "
            "works by ID alone cannot recommend such items."
        )
    waiting = counts.num_without_id - counts.num_without_content
    if waiting:
        told.append(
            f"{items_told(waiting)} content and no ID in this version; recsys ids append gives one."
        )
    for place, level in enumerate(content_levels(report)):
        name = level_name(place).capitalize()
        if level.utilisation < ENOUGH_USED:
            told.append(
                f"{name} uses {level.num_used:,} of its {level.size:,} codes "
                f"({percent(level.utilisation)}). Unused codes are room that the IDs pay for and "
                "do not have; fewer codes a level, or balanced = true, use them better."
            )
    times = report.usage[0][0] * report.level_sizes[0] / max(1, counts.num_with_id)
    if times > CROWDED:
        told.append(
            f"The busiest first code has {times:.0f} times an even share of the items: "
            f"{report.usage[0][0]:,} of them begin alike."
        )
    first = report.quality.published[0]
    if (
        first.purity is not None
        and first.purity_by_chance is not None
        and first.purity - first.purity_by_chance < HARDLY_MORE
    ):
        told.append("First codes hardly follow the categories: they agree about as by chance.")
    if report.quality.collisions_after:
        told.append(f"{report.quality.collisions_after:,} items share their ID with another one.")
    return told


def drift_told(report: SemanticIdReport) -> str:
    """Say what happened since the previous version."""
    drift = report.drift
    if drift is None:
        return "There is no version to compare with."
    if drift.previous_version == report.version:
        return "This is the very version that is published: every ID is the same."
    if drift.kept is None:
        return (
            f"The version before has levels {levels_told(drift.previous_level_sizes)}, this one "
            f"{levels_told(report.level_sizes)}: no code means the same, every model that uses "
            "the IDs starts anew."
        )
    changed = [f"{drift.num_added:,} items gained an ID", f"{drift.num_removed:,} lost theirs"]
    return (
        f"Of {drift.kept.num_items:,} items with an ID in both versions, "
        f"{percent(drift.kept.full)} kept all codes. {' and '.join(changed)}. A model that was "
        "trained on the version before knows the codes that stayed."
    )
