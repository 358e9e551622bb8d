"""Codes, collisions and drift of a run's semantic IDs, as build_semantic_ids measured them."""

from __future__ import annotations

from pydantic import TypeAdapter

from pipelines.dashboard.workspaces.files import read_table
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import counts, numbers, percent, shares, texts
from pipelines.pages.document import Block, Section, Table, Words
from pipelines.semantic_ids.store import REPORT, SHORT
from recsys.semantic_ids.lifecycle import KeptShares
from recsys.semantic_ids.quality import QualityReport

STAGE = "build_semantic_ids"


def semantic_ids_section(run: Run) -> list[Section]:
    """Show the report of a run's semantic IDs; nothing where it has none."""
    report = read_table(run.path / STAGE / REPORT)
    if not report or "version" not in report:
        return []
    quality = TypeAdapter(QualityReport).validate_python(report["quality"])
    drift = report["kept"] and TypeAdapter(KeptShares).validate_python(report["kept"])
    lines = [
        f"{report['num_with_id']:,} of {report['num_items']:,} items have an ID of "
        f"{len(quality.published)} codes; {report['num_without_content']:,} have no content, and "
        "the generative model cannot recommend them.",
        f"IDs of version {report['version'][:SHORT]} were {report['how']}, with "
        f"{report['num_new']:,} new items. The quantiser gave {quality.collisions_before:,} items "
        f"the codes of another one; {quality.collisions_after:,} share an ID as published.",
    ]
    if drift:
        lines.append(
            f"Of {drift.num_items:,} items that version {report['parent'][:SHORT]} has too, "
            f"{percent(drift.full)} kept their ID."
        )
    blocks: list[Block] = [Words(lines=lines), _levels(run, quality, drift)]
    return [Section(key="semantic-ids", title="Semantic IDs", blocks=blocks)]


def _levels(run: Run, quality: QualityReport, drift: KeptShares | None) -> Table:
    """List use, neighbours, collisions and drift of each level."""
    rows = []
    for place, one in enumerate(quality.published):
        inside = place < len(quality.levels)
        rows.append(
            (
                f"level {place + 1}" + ("" if inside else ", resolves collisions"),
                *(one.size, one.num_used, one.utilisation, round(one.perplexity, 1)),
                *(one.num_prefixes, one.neighbour_agreement, one.agreement_by_chance),
                quality.errors_by_level[place] if inside else None,
                quality.moved[place] if inside else None,
                drift.per_level[place] if drift else None,
                drift.per_prefix[place] if drift else None,
            )
        )
    return Table(
        key="semantic-id-levels",
        title="Codes, collisions and drift",
        note="Unused codes waste capacity. Perplexity is the number of codes used as if evenly.",
        columns=[
            *texts("level"),
            *counts("codes", "used"),
            *shares("share used"),
            *numbers("perplexity"),
            *counts("prefixes", note="Different codes up to this level."),
            *shares("neighbours", note="Of the 10 nearest by content, those with the prefix."),
            *shares("neighbours by chance", note="The same for random pairs of items."),
            *numbers("error", format="metric", note="Squared, over the variance of the content."),
            *shares("moved", note="Items whose code was changed to make IDs unique."),
            *shares("kept code", "kept prefix", note="Items with an ID in both versions."),
        ],
        rows=rows,
        origins=[run.origin],
    )
