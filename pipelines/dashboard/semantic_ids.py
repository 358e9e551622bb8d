"""Page ``semantic-ids``: codes, collisions and drift of a run's semantic IDs.

All numbers are those of the stage build_semantic_ids, which measures each version that it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, stage_folders, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.files import read_table
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import counts, numbers, percent, shares, texts
from pipelines.pages.document import Page, Table, Words
from pipelines.semantic_ids.artefact import REPORT
from pipelines.semantic_ids.store import SHORT
from recsys.semantic_ids.lifecycle import KeptShares
from recsys.semantic_ids.quality import QualityReport

TITLE, STAGE = "Semantic IDs", "build_semantic_ids"
HOW_TO = (
    "No run here has semantic IDs. They are made by the stage build_semantic_ids if items have "
    'text: set semantic_ids.method = "rq_kmeans" in the run\'s TOML file and run '
    "recsys run --until build_semantic_ids"
)
HOW = {
    "trained": "by a new quantiser",
    "aligned": "by a new quantiser, whose codes follow those before",
    "appended": "by the quantiser before, and no ID moved",
    "kept": "unchanged",
}
"""Meaning of each way to make a version."""
MEANING = (
    "A semantic ID is a short sequence of codes, coarse to fine: items with the same prefix are "
    "similar. A generative model recommends only items that have one."
)


def read_report(context: Context, run: Run) -> Mapping[str, Any] | None:
    """Read the report of the stage that made a run's IDs; None without one."""
    for folder in stage_folders(context, run):
        if (report := read_table(folder / STAGE / REPORT)) and "version" in report:
            return report
    return None


def build(context: Context, query: Query) -> Page:
    """Build the page."""

    def has_ids(run: Run) -> bool:
        return run.kind == "workspace" and (run.path / STAGE / "semantic_ids.json").exists()

    try:
        run = one_run(context, query, has_ids, HOW_TO)
    except NotFoundError as error:
        if query.text("run"):
            raise
        return Page(title=TITLE, lead=str(error), blocks=[])
    controls = run_control(context, run)
    try:
        if (report := read_report(context, run)) is None:
            raise NotFoundError(
                f"{run.name} has no semantic IDs, or their report is gone. {HOW_TO}"
            )
        quality = TypeAdapter(QualityReport).validate_python(report["quality"])
        drift = report["kept"] and TypeAdapter(KeptShares).validate_python(report["kept"])
    except (ValueError, KeyError) as error:
        raise NotFoundError(
            f"the report of {run.name}'s semantic IDs cannot be read ({type(error).__name__}: "
            f"{error}); run its stage {STAGE} again"
        ) from error
    notices = []
    if without := report["num_without_content"]:
        notices.append(
            f"Items without content and therefore without an ID: {without:,}; the generative model "
            "cannot recommend them."
        )
    how = f"{report['how']} ({HOW.get(report['how'], 'in another way')})"
    before = (
        f"It follows version {report['parent'][:SHORT]}" if report["parent"] else "It is the first"
    )
    lines = [
        MEANING,
        f"{before}; IDs were {how}, with {report['num_new']:,} new items.",
        f"The quantiser gave {quality.collisions_before:,} items the codes of another one, at most "
        f"{quality.largest_group:,} the same; {quality.collisions_after:,} share an ID as "
        "published.",
    ]
    if drift is not None:
        lines.append(
            f"Of {drift.num_items:,} items with an ID in both versions {percent(drift.full)} kept "
            "it whole."
        )
    return Page(
        title=f"Semantic IDs of {run.name}, version {report['version'][:SHORT]}",
        lead=_lead(report, quality),
        blocks=[Words(lines=lines), _levels(run, quality, drift)],
        controls=controls,
        notices=notices,
    )


def _lead(report: Mapping[str, Any], quality: QualityReport) -> str:
    num, all_items = report["num_with_id"], report["num_items"]
    who = "All" if num == all_items else f"{num:,} of"
    unique = "" if quality.collisions_after else ", all unique"
    return f"{who} {all_items:,} items have an ID of {len(quality.published)} codes{unique}."


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
        key="levels",
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


ENTRY = PageEntry(
    name="semantic-ids",
    title=TITLE,
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
