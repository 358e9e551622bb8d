"""The page of a run's semantic IDs, in any published version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.semantic_id_versions import IdVersions, find_versions, has_ids
from pipelines.pages.document import Control, Page, Section, select, with_origins
from pipelines.pages.semantic_ids import semantic_ids_page
from pipelines.semantic_ids.measure import IdsMeasurement, measure, measure_drift
from pipelines.semantic_ids.store import SHORT
from pipelines.semantic_ids.table import IdTable

PAGE, TITLE = "semantic-ids", "Semantic IDs"
HOW_TO = (
    "No run here has semantic IDs. They are made by the stage build_semantic_ids if items have "
    'text: set semantic_ids.method = "rq_kmeans" in the run\'s TOML file and run '
    "recsys run --until build_semantic_ids"
)


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    try:
        source = find_versions(context, one_run(context, query, has_ids, HOW_TO))
    except NotFoundError as error:
        if query.text("run") or str(error) != HOW_TO:
            raise
        return Page(title=TITLE, lead=str(error), blocks=[])
    run = source.run
    if not source.versions:
        problems = "; ".join(source.problems)
        raise NotFoundError(f"{run.name} has no semantic IDs. {problems or HOW_TO}")
    table = source.table(source.named(query.text("version") or source.versions[0]))
    if not len(table.rows):
        words = "No item of this run's catalogue has an ID in this version."
        return Page(title=TITLE, lead=words, blocks=[], controls=_controls(source, table))
    page = semantic_ids_page(_measure(source, table))
    blocks = [
        with_origins(one, [run.origin]) if isinstance(one, Section) else one for one in page.blocks
    ]
    return replace(
        page,
        blocks=blocks,
        controls=_controls(source, table),
        notices=[*source.problems, *page.notices],
    )


def _measure(source: IdVersions, table: IdTable) -> IdsMeasurement:
    """Measure a version, and what changed since its parent if that was published, once."""
    made = source.report if source.report.get("version") == table.version else {}
    cache, title, items = source.context.cache, source.run.name, source.items()
    key = ("id measures", table.version, str(made.get("version")))
    report = source.once(cache, key, lambda: measure(table, items, made, title=title))
    drift = None
    if table.parent and table.parent in source.published:
        before = source.table(table.parent)
        names = ("id drift", before.version, table.version)
        drift = source.once(cache, names, lambda: measure_drift(before, table))
    return IdsMeasurement(report=report, drift=drift, table=table, items=items)


def _controls(source: IdVersions, table: IdTable) -> Sequence[Control]:
    if source.context.exported:
        return []
    version = table.version[:SHORT]
    versions = {
        one[:SHORT]: f"{one[:SHORT]} (of this run)" if one == source.own else one[:SHORT]
        for one in source.versions
    }
    found = run_control(source.context, source.run, clears=("version",))
    if len(versions) > 1:
        found.append(select("version", "Version", version, versions))
    return found


ENTRY = PageEntry(
    name=PAGE,
    title=TITLE,
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("run",),
)
