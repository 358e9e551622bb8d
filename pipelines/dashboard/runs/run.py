"""The page of one run: what it measured, cost, was made from, and released."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.page import link_to, nothing_there, suggested, tags_text, time_text
from pipelines.dashboard.runs.record import (
    cost_blocks,
    digests_table,
    files_words,
    ledger_blocks,
    num_looks,
    settings_table,
    stages_of,
)
from pipelines.dashboard.runs.results import (
    evaluated_files,
    plain_tables,
    read_reported,
)
from pipelines.dashboard.workspaces.files import UnreadableError
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.formats import duration, size
from pipelines.pages.columns import texts
from pipelines.pages.document import (
    Block,
    Column,
    Control,
    Link,
    LinkedCell,
    Option,
    Page,
    Section,
    Table,
    Tile,
    Tiles,
    Tone,
    Words,
)
from pipelines.pages.report import headline_tiles, measured_sections
from pipelines.pages.summary import answer
from pipelines.pages.wording import by_fame, metric_label, model_label

OTHER_PAGES = (
    ("summary", "Which bundle to release"),
    ("why", "Why a model wins"),
    ("items", "Items"),
    ("semantic-ids", "Semantic IDs"),
    ("experts", "Experts and adapters"),
)


def chosen_run(context: Context, query: Query) -> Run | None:
    """Return the run of the query, or the newest complete one; None where there is none.

    Raises:
        NotFoundError: The query's run is gone.
    """
    if key := query.text("run"):
        return context.stores.run(key)
    runs = context.stores.runs()
    complete = (run for run in runs if run.status == "complete" and run.kind == "workspace")
    return next(complete, runs[0] if runs else None)


def build(context: Context, query: Query) -> Page:
    """Make the page.

    Raises:
        NotFoundError: The run is gone.
    """
    run = chosen_run(context, query)
    if run is None:
        return nothing_there(context)
    notices = list(run.problems)
    sections: list[Section] = []
    lead, tiles = _lead(run, says_served=True), _measured_tiles(run)
    try:
        reported = read_reported(context, run)
        if reported is not None:
            lead = f"{answer(reported)} {_lead(run, says_served=False)}"
            tiles = headline_tiles(reported).tiles
            # Drawing anew what stays the same would take most of the page's time.
            sections = context.cache.get(
                ("sections of a run", run.key),
                evaluated_files(run),
                lambda: measured_sections(reported, [run.origin]),
            )
    except LookupError as error:
        notices.append(f"its figures lack {error}; metrics are shown without intervals")
    except UnreadableError as error:
        notices.append(f"{error}; metrics are shown without intervals")
    if not sections and (tables := plain_tables(run)):
        sections = [Section(key="results", title="Results", blocks=tables)]
    return Page(
        title=run.name,
        lead=lead,
        blocks=[
            Tiles(tiles=[*tiles, *_tiles(run)]),
            _words(context, run),
            *sections,
            *_record(context, run),
        ],
        controls=_controls(context, run),
        notices=notices,
    )


def _lead(run: Run, *, says_served: bool) -> str:
    kind = {"workspace": "Run", "bundle": "Bundle"}[run.kind]
    data = f" on {run.dataset}" if run.dataset else ""
    served = f"; it serves: {model_label(run.served)}" if says_served and run.served else ""
    when = (time_text(run) or "").replace("T", " ").replace("Z", " UTC")
    return f"{kind}{data}, {run.status}, {when}{served}."


def _controls(context: Context, run: Run) -> list[Control]:
    if context.exported:
        return []
    return [
        Control(
            name="run",
            label="Run",
            kind="search",
            value=run.key,
            options=[Option(value=run.key, label=run.name)],
            suggest="runs",
        ),
    ]


def _measured_tiles(run: Run) -> Sequence[Tile]:
    prefix = f"test/{run.served}/"
    served = [name.removeprefix(prefix) for name in run.metrics if name.startswith(prefix)]
    note = f"of the served list: {model_label(run.served or '')}"
    return [
        Tile(
            label=f"{metric_label(name)} on test",
            value=f"{run.metrics[prefix + name]:.4f}",
            note=note,
        )
        for name in by_fame(served)[:2]
    ]


def _tiles(run: Run) -> list[Tile]:
    tones: dict[str, Tone] = {"complete": "good", "unfinished": "note", "unreadable": "bad"}
    tiles = [Tile(label="status", value=run.status, tone=tones[run.status])]
    if run.seconds is not None:
        tiles.append(Tile(label="all stages", value=duration(run.seconds)))
    if run.peak_memory:
        value = size(run.peak_memory)
        tiles.append(Tile(label="peak memory", value=value, note="of the largest stage"))
    if run.kind == "workspace" and (looks := num_looks(run)):
        note = "evaluations that read it"
        tiles.append(Tile(label="looks at the test split", value=f"{looks:,}", note=note))
    return tiles


def _words(context: Context, run: Run) -> Words:
    tags = tags_text(run)
    lines = [f"Tags: {tags}."] if tags else []
    if (database := run.path / "tracking/mlflow.db").is_file():
        store = f"mlflow ui --backend-store-uri sqlite:///{database.absolute()}"
        lines.append(f"Its stages and earlier evaluations are in MLflow: {store}")
    links = []
    if run.kind == "bundle" and run.made_by:
        links.append(
            Link(label="The run that made it", page="run", parameters={"run": run.made_by})
        )
    before = _one_before(context.stores.runs(), run)
    if before is not None:
        runs = {"runs": (before.key, run.key)}
        links.append(Link(label=f"Compare with {before.name}", page="compare", parameters=runs))
        label = f"What differs from {before.name}"
        links.append(Link(label=label, page="differences", parameters=runs))
    links += [
        Link(label=label, page=page, parameters={"run": run.key}) for page, label in OTHER_PAGES
    ]
    return Words(lines=lines, links=links)


def _one_before(runs: Sequence[Run], run: Run) -> Run | None:
    """Find the complete run of the same kind and data that ended before this one."""
    there = False
    for other in runs:
        same = other.kind == run.kind and other.dataset == run.dataset
        if there and same and other.status == "complete":
            return other
        there = there or other.key == run.key
    return None


def _record(context: Context, run: Run) -> list[Section]:
    origins, stages = [run.origin], stages_of(context, run)
    sections = [
        Section(key="bundles", title="Bundles that it released", blocks=_bundles(context, run)),
        Section(key="costs", title="Cost", blocks=cost_blocks(stages, origins)),
        Section(
            key="made-from",
            title="What it was made from",
            blocks=[
                settings_table(run, origins)
                if run.config
                else Words(lines=["Its settings are not on record here."]),
                digests_table(run, stages, origins),
            ],
        ),
    ]
    if run.kind == "workspace":
        sections.append(Section(key="looks", title="Test split", blocks=ledger_blocks(run)))
    sections.append(Section(key="files", title="Files", blocks=[files_words(run)]))
    return [section for section in sections if section.blocks]


def _bundles(context: Context, run: Run) -> list[Block]:
    if run.kind != "workspace" or not run.bundles:
        return []
    released = [one for one in context.stores.bundles() if one.made_by == run.key]
    if not released:
        return [Words(lines=[f"Released, and no longer there: {', '.join(run.bundles)}."])]
    return [
        Table(
            key="released",
            title="Released bundles",
            note="The newest first; the page Releases has why each was released or refused.",
            columns=[*texts("Bundle"), Column(label="When", format="time"), *texts("Tags")],
            rows=[
                (LinkedCell(text=one.name, link=link_to(one)), time_text(one), tags_text(one))
                for one in released[:200]
            ],
        )
    ]


ENTRY = PageEntry(
    name="run",
    title="Run",
    build=build,
    suggest={"runs": suggested},
    in_navigation=False,
)
