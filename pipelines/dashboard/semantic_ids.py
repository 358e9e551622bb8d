"""Page ``semantic-ids``: codes, collisions and drift of a run's semantic IDs.

All numbers are those of the stage build_semantic_ids, which measures each version that it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.files import read_table
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import counts, numbers, percent, shares, texts
from pipelines.pages.document import Page, Table, Tile, Tiles, Words
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
    "trained": "A new quantiser; no earlier version is followed.",
    "appended": "New items were encoded by the quantiser of version {parent}; no ID moved.",
    "aligned": "A new quantiser; its codes are aligned to those of version {parent}.",
    "kept": "The published version is unchanged.",
}
MEANING = (
    "A semantic ID is a short sequence of codes, coarse to fine: items with the same prefix are "
    "similar. A generative model recommends only items that have one."
)
ENOUGH_USED = 0.95


def read_report(context: Context, run: Run) -> Mapping[str, Any] | None:
    """Read the report of the stage that made a run's IDs; None without one."""
    places = [run.path]
    if run.kind == "bundle":
        maker, kept = context.stores.maker(run), context.stores.kept_stages(run)
        is_newest = maker is not None and maker.bundles[:1] == (run.name.partition("+")[0],)
        # The maker's stages are those of its newest bundle.
        places = [*([kept] if kept else []), *([maker.path] if maker and is_newest else [])]
    for place in places:
        if (report := read_table(place / STAGE / REPORT)) and "version" in report:
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
    parent = str(report["parent"] or "none")[:SHORT]
    lines = [MEANING, HOW.get(report["how"], "").format(parent=parent)]
    if drift is not None:
        lines.append(
            f"Of {drift.num_items:,} items with an ID in both versions {percent(drift.full)} kept "
            f"it whole, {percent(drift.per_prefix[0])} their first code."
        )
    return Page(
        title=f"Semantic IDs of {run.name}, version {report['version'][:SHORT]}",
        lead=_lead(report, quality),
        blocks=[
            _tiles(report, quality, drift),
            Words(lines=lines),
            _levels(run, quality, drift),
        ],
        controls=controls,
        notices=_notices(report, quality),
    )


def _lead(report: Mapping[str, Any], quality: QualityReport) -> str:
    num, all_items = report["num_with_id"], report["num_items"]
    who = "All" if num == all_items else f"{num:,} of"
    unique = "" if quality.collisions_after else ", all unique"
    return f"{who} {all_items:,} items have an ID of {len(quality.published)} codes{unique}."


def _notices(report: Mapping[str, Any], quality: QualityReport) -> list[str]:
    found = []
    if without := report["num_without_content"]:
        found.append(
            f"Items without content and therefore without an ID: {without:,}; the generative model "
            "cannot recommend them."
        )
    found += [
        f"Level {place} uses {percent(one.utilisation)} of its codes."
        for place, one in enumerate(quality.levels, 1)
        if one.utilisation < ENOUGH_USED
    ]
    if quality.collisions_after:
        found.append(f"{quality.collisions_after:,} items share their ID with another item.")
    return found


def _tiles(report: Mapping[str, Any], quality: QualityReport, drift: KeptShares | None) -> Tiles:
    """Show the numbers that are read at a glance."""
    with_id, shared = report["num_with_id"], quality.collisions_after
    as_encoded = f"{quality.collisions_before:,} as encoded; most with one ID: "
    found = [
        Tile(label="items with an ID", value=f"{with_id:,} of {report['num_items']:,}"),
        Tile(label="new in this version", value=f"{report['num_new']:,}"),
        Tile(
            label="items that share an ID",
            value=f"{shared:,}",
            note=f"{as_encoded}{quality.largest_group:,}",
            tone="bad" if shared else "good",
        ),
        Tile(
            label="content kept",
            value=percent(max(0.0, 1 - quality.reconstruction_error)),
            note="of the variance of the content vectors",
        ),
    ]
    if drift is not None:
        found.append(Tile(label="kept their ID", value=percent(drift.full)))
    return Tiles(tiles=found)


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
