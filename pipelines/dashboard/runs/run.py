"""Page ``run``: what one run measured, cost, was made from, and released."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile
from operator import itemgetter
from typing import NamedTuple

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import run_control, suggest_runs
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.runs import nothing_there, tags_text, time_text
from pipelines.dashboard.runs.semantic_ids import semantic_ids_section
from pipelines.dashboard.workspaces.files import names_in, number, read_or_empty
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.artifacts import MANIFEST, RUN
from pipelines.engine.formats import duration, size
from pipelines.engine.workspace import Workspace
from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import (
    Block,
    Column,
    Link,
    Page,
    Section,
    Table,
    Tile,
    Tiles,
    Tone,
    Words,
)
from pipelines.pages.report import measured_parts
from pipelines.pages.report_data import TRAININGS, read_measured
from pipelines.pages.wording import (
    METRICS,
    by_fame,
    metric_label,
    metric_meaning,
    model_label,
    parted,
)

OTHER_PAGES = (
    ("summary", "Which bundle to release"),
    ("releases", "Releases"),
    ("why", "Why a model wins"),
)
ANALYSIS, METRICS_FILE = "evaluate/analysis.json", "evaluate/metrics.json"
SHOWN_FILES = (
    "report/report.html",
    "monitoring/monitor.html",
    "backtest/backtest.html",
    "config.toml",
    METRICS_FILE,
    ANALYSIS,
    "release/release.json",
    "refused.json",
    "manifest.json",
)
TONES: dict[str, Tone] = {"complete": "good", "unfinished": "note", "unreadable": "bad"}


class Measured(NamedTuple):
    """Facts of a run that its report shows."""

    answer: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]


def build(context: Context, query: Query) -> Page:
    """Build the page of the query's run, else of the newest complete one."""
    if key := query.text("run"):
        run = context.stores.run(key)
    else:
        runs = context.stores.runs()
        if not runs:
            return nothing_there(context)
        complete = (one for one in runs if one.status == "complete" and one.kind == "workspace")
        run = next(complete, runs[0])
    data = f" on {run.dataset}" if run.dataset else ""
    ended = (time_text(run) or "no time")[:16].replace("T", " ")
    kind = "Bundle" if run.kind == "bundle" else "Run"
    lead = f"{kind}{data}, {run.status}, {ended} UTC"
    served = f"; it serves: {model_label(run.served)}" if run.served else ""
    plain = plain_table(run)
    sections = [Section(key="results", title="Results", blocks=[plain])] if plain.rows else []
    found, notices = Measured(f"{lead}{served}.", (), sections), list(run.problems)
    try:
        if run.kind == "workspace" and (run.path / ANALYSIS).exists():
            measured = measure(context, run)
            found = measured._replace(answer=f"{measured.answer} {lead}.")
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        notices.append(f"its analysis cannot be read ({why}); metrics are shown without intervals")
    ids: Sequence[Section] = ()
    try:
        ids = semantic_ids_section(run)
    except (ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        notices.append(f"the report of its semantic IDs cannot be read ({why})")
    return Page(
        title=run.name,
        lead=found.answer,
        blocks=[
            Tiles(tiles=[*found.tiles, *_tiles(run)]),
            _words(context, run),
            *found.sections,
            *ids,
            *_record(run),
        ],
        controls=run_control(context, run),
        notices=notices,
    )


def measure(context: Context, run: Run) -> Measured:
    """Draw the report's answer, tiles and sections; kept, since drawing takes most of the time."""
    stages = {name: run.path / name for name in ("evaluate", "fit_blend", *TRAININGS)}
    files = [run.path / ANALYSIS, run.path / METRICS_FILE]
    files += [stage / MANIFEST for stage in stages.values()]

    def draw() -> Measured:
        return Measured(*measured_parts(read_measured(stages, run.name), [run.origin]))

    return context.cache.get(("report of a run", run.key), files, draw)


def plain_table(run: Run) -> Table:
    """Show metrics on test without intervals, such as those of bundles."""
    models: dict[str, dict[str, float]] = {}
    for name, value in run.metrics.items():
        split, model, metric = name.split("/", 2)
        if split == "test":
            models.setdefault(model, {})[metric] = value
    every = by_fame(dict.fromkeys(metric for one in models.values() for metric in one))
    metrics = [name for name in every if parted(name)[0] in METRICS][:12] or every[:12]
    columns = texts("Model")
    for name in metrics:
        columns += numbers(metric_label(name), format="metric", note=metric_meaning(name))
    return Table(
        key="metrics-test",
        title="Metrics on test",
        note="Without intervals: page Compare has them if there are per-user results.",
        columns=columns,
        rows=[[model_label(one), *map(models[one].get, metrics)] for one in models],
        origins=[run.origin],
    )


def _tiles(run: Run) -> list[Tile]:
    tiles = [Tile(label="status", value=run.status, tone=TONES[run.status])]
    if run.seconds is not None:
        tiles.append(Tile(label="all stages", value=duration(run.seconds)))
    if run.peak_memory:
        value = size(run.peak_memory)
        tiles.append(Tile(label="peak memory", value=value, note="of the largest stage"))
    try:
        looks = 0 if run.kind == "bundle" else len(Workspace(run.path).ledger())
    except (OSError, UnicodeDecodeError):
        looks = 0
    if looks:
        note = "evaluations that read it; the more, the more a lead on it may be chance"
        tiles.append(Tile(label="looks at the test split", value=f"{looks:,}", note=note))
    return tiles


def _words(context: Context, run: Run) -> Words:
    tags = tags_text(run)
    lines = [f"Tags: {tags}."] if tags else []
    links = []
    if run.kind == "bundle" and run.made_by:
        parameters = {"run": run.made_by}
        links.append(Link(label="The run that made it", page="run", parameters=parameters))
    if (before := _one_before(context.stores.runs(), run)) is not None:
        runs = {"runs": (before.key, run.key)}
        links.append(Link(label=f"Compare with {before.name}", page="summary", parameters=runs))
    links += [
        Link(label=label, page=page, parameters={"run": run.key}) for page, label in OTHER_PAGES
    ]
    return Words(lines=lines, links=links)


def _one_before(runs: Sequence[Run], run: Run) -> Run | None:
    """Find the complete run of the same kind and data that ended before this one."""
    later = dropwhile(lambda one: one.key != run.key, runs)
    alike = (one for one in later if (one.kind, one.dataset) == (run.kind, run.dataset))
    complete = (one for one in alike if one.status == "complete" and one.key != run.key)
    return next(complete, None)


def _record(run: Run) -> list[Section]:
    settings: Block = Words(lines=["Its settings are not on record here."])
    if run.config:
        settings = Table(
            key="settings",
            title="Configuration",
            note="Every setting by its dotted name, as the run resolved it from preset, file and "
            "--set. Search by name or value.",
            columns=[*texts("Setting", "Value")],
            rows=sorted(run.config.items()),
            origins=[run.origin],
        )
    return [
        Section(key="costs", title="Cost", blocks=[_costs(run)]),
        Section(key="made-from", title="What it was made from", blocks=[settings]),
        Section(key="files", title="Files", blocks=[_files(run)]),
    ]


def _costs(run: Run) -> Block:
    """Tabulate time and memory of each stage, from its ``run.json``."""
    rows = []
    for stage in [run.path / name for name in names_in(run.path)]:
        record, manifest = (read_or_empty(stage / file) for file in (RUN, MANIFEST))
        if (seconds := number(record.get("seconds"))) is not None:
            memory, made = number(record.get("peak_memory_bytes")), manifest.get("rows")
            out = number(made.get("out")) if isinstance(made, dict) else None
            rows.append((stage.name, seconds, memory, out, str(record.get("started", ""))))
    table = Table(
        key="cost",
        title="Time by stage",
        note="In the order they ran. A stage whose inputs did not change is kept from an earlier "
        "run, with its time then.",
        columns=[
            *texts("stage"),
            *numbers("time", format="seconds"),
            *numbers("peak memory", format="bytes"),
            *counts("rows out"),
            Column(label="started (UTC)", format="time"),
        ],
        rows=sorted(rows, key=itemgetter(4, 0)),
        origins=[run.origin],
    )
    return table if rows else Words(lines=["Time and memory of its stages are not on record."])


def _files(run: Run) -> Words:
    there = [name for name in SHOWN_FILES if (run.path / name).is_file()]
    return Words(
        lines=[f"In {run.path}:" if there else "It has no files here."],
        links=[Link(label=name, file=f"{run.key}/{name}") for name in there],
    )


ENTRY = PageEntry(
    name="run", title="Run", build=build, suggest={"runs": suggest_runs}, in_navigation=False
)
