"""Page ``run``: what one run measured, cost, was made from, and released."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import run_control, suggest_runs
from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.runs import link_to, nothing_there, tags_text, time_text
from pipelines.dashboard.workspaces.files import (
    UnreadableError,
    names_in,
    number,
    read_or_empty,
)
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.artifacts import MANIFEST, RUN
from pipelines.engine.formats import duration, size
from pipelines.engine.workspace import Workspace
from pipelines.evaluation.analysis import ANALYSIS
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
from pipelines.pages.report import headline_tiles, measured_sections
from pipelines.pages.report_data import TRAININGS, ReportData, read_measured
from pipelines.pages.summary import answer
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
    ("why", "Why a model wins"),
    ("items", "Items"),
    ("semantic-ids", "Semantic IDs"),
    ("experts", "Experts and adapters"),
)
SHOWN_FILES = (
    ("report/report.html", "the report"),
    ("config.toml", "the configuration"),
    ("evaluate/metrics.json", "all metrics"),
    ("evaluate/analysis.json", "intervals, slices and tests"),
    ("release/release.json", "what was released"),
    ("refused.json", "why the last bundle was refused"),
    ("ledger.jsonl", "looks at the test split"),
    ("history.jsonl", "commands that ran here"),
    ("manifest.json", "the manifest"),
)
MAX_LISTED = 50
TONES: dict[str, Tone] = {"complete": "good", "unfinished": "note", "unreadable": "bad"}


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
    notices = list(run.problems)
    sections: list[Section] = []
    kind = {"workspace": "Run", "bundle": "Bundle"}[run.kind]
    data = f" on {run.dataset}" if run.dataset else ""
    ended = (time_text(run) or "no time")[:16].replace("T", " ")
    lead = f"{kind}{data}, {run.status}, {ended} UTC"
    served = f"; it serves: {model_label(run.served)}" if run.served else ""
    page_lead, tiles = f"{lead}{served}.", _measured_tiles(run)
    try:
        reported = read_reported(context, run)
        if reported is not None:
            page_lead = f"{answer(reported)} {lead}."
            tiles = list(headline_tiles(reported).tiles)
            # Drawing again what stays the same would take most of the page's time.
            sections = context.cache.get(
                ("sections of a run", run.key),
                evaluated_files(run),
                lambda: measured_sections(reported, [run.origin]),
            )
    except LookupError as error:
        notices.append(f"its figures lack {error}; metrics are shown without intervals")
    except UnreadableError as error:
        notices.append(f"{error}; metrics are shown without intervals")
    if not sections and (tables := plain_table(run)):
        sections = [Section(key="results", title="Results", blocks=tables)]
    return Page(
        title=run.name,
        lead=page_lead,
        blocks=[
            Tiles(tiles=[*tiles, *_tiles(run)]),
            _words(context, run),
            *sections,
            *_record(context, run),
        ],
        controls=run_control(context, run),
        notices=notices,
    )


def evaluated_files(run: Run) -> list[Path]:
    """List the files that the figures of a run are drawn from."""
    names = ["evaluate/analysis.json", "evaluate/metrics.json", "fit_blend/manifest.json"]
    names += [f"{stage}/manifest.json" for stage in TRAININGS]
    return [run.path / name for name in names]


def read_reported(context: Context, run: Run) -> ReportData | None:
    """Read what the report's figures are drawn from; None if nothing was analysed."""
    path = run.path
    if run.kind != "workspace" or not (path / "evaluate" / ANALYSIS).exists():
        return None
    stages = {name: path / name for name in ("evaluate", "fit_blend", *TRAININGS)}
    try:
        return context.cache.get(
            ("reported", str(path)), evaluated_files(run), lambda: read_measured(stages, run.name)
        )
    except UnreadableError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise UnreadableError(f"its analysis cannot be read ({why})") from error


def plain_table(run: Run) -> list[Block]:
    """Show metrics on test without intervals, such as those of bundles; none if there is none."""
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
    table = Table(
        key="metrics-test",
        title="Metrics on test",
        note="Without intervals: page Compare has them if there are per-user results.",
        columns=columns,
        rows=[[model_label(one), *map(models[one].get, metrics)] for one in models],
        origins=[run.origin],
    )
    return [table] if models else []


def _measured_tiles(run: Run) -> list[Tile]:
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
    there = False
    for other in runs:
        same = other.kind == run.kind and other.dataset == run.dataset
        if there and same and other.status == "complete":
            return other
        there = there or other.key == run.key
    return None


def _record(context: Context, run: Run) -> list[Section]:
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
        *_released(context, run),
        Section(key="costs", title="Cost", blocks=[_costs(context, run)]),
        Section(key="made-from", title="What it was made from", blocks=[settings]),
        Section(key="files", title="Files", blocks=[_files(run)]),
    ]


def _released(context: Context, run: Run) -> list[Section]:
    if run.kind != "workspace" or not run.bundles:
        return []
    there = [one for one in context.stores.bundles() if one.made_by == run.key][:MAX_LISTED]
    lines = [f"{one.name}: {time_text(one) or 'no time'}, {tags_text(one)}" for one in there]
    if not there:
        lines = [f"Released, and no longer there: {', '.join(run.bundles)}."]
    words = Words(lines=lines, links=[link_to(one) for one in there])
    return [Section(key="bundles", title="Bundles that it released", blocks=[words])]


def _costs(context: Context, run: Run) -> Block:
    """Tabulate time and memory of each stage, from its ``run.json``."""
    folder = run.path if run.kind == "workspace" else context.stores.kept_stages(run)
    rows = []
    for stage in [] if folder is None else [folder / name for name in names_in(folder)]:
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
    there = [(name, label) for name, label in SHOWN_FILES if (run.path / name).is_file()]
    return Words(
        lines=[f"In {run.path}:" if there else "It has no files here."],
        links=[Link(label=label, file=f"{run.key}/{name}") for name, label in there],
    )


ENTRY = PageEntry(
    name="run",
    title="Run",
    build=build,
    suggest={"runs": suggest_runs},
    in_navigation=False,
)
