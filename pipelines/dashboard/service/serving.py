"""Page ``serving``: the request log, drift, parity, experiments, off-policy estimates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import Query
from pipelines.dashboard.service.request_log import Logged, request_log
from pipelines.dashboard.service.traffic import Served, arms_table, build_blocks, clock
from pipelines.dashboard.service.watched import (
    monitor_section,
    off_policy_section,
    parity_section,
)
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Block, Control, Page, Section, Words, select, with_origins
from pipelines.publishing.promotion import served_version
from pipelines.publishing.released import shop_workspace
from pipelines.tracking.decisions import history

TITLE = "Serving"
STORE = "online"
LEAD = (
    "How lists were served, by the request log. What a server does now: its /metrics, with the "
    "files for Prometheus and Grafana in deploy/."
)
EXPORT_PATIENCE = 60.0
REFRESH_SECONDS = 3.0
"""While a log is being read."""
MAX_OPTIONS = 200
NONE = (
    "No list of an experiment was served. An experiment is a table [[experiments]] of the server's "
    "configuration (docs/control.md)."
)


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    run = _choose_run(context, query)
    if run is None:
        words = "There is no workspace yet. recsys run makes one, recsys serve serves its bundle."
        return Page(title=TITLE, lead=LEAD, blocks=[Words(lines=[words], tone="note")])
    workspace = shop_workspace(run.path)
    logged, notices = _read_log(context, workspace / STORE)
    served, controls = _lists(context, query, workspace, logged)
    found = [monitor_section(workspace), parity_section(workspace), off_policy_section(workspace)]
    sections = [served, *(section for section, _ in found)]
    sections.insert(3, _experiments(workspace, logged))
    if logged.num_lists and not logged.is_reading:
        notices += _without_lists(workspace, logged)
    known = {one.key: str(one.path) for one in [run, *context.stores.workspaces()[:MAX_OPTIONS]]}
    chosen = select("run", "Workspace", run.key, known)
    is_live = logged.is_reading and not context.exported
    return Page(
        title=TITLE,
        lead=LEAD,
        blocks=[with_origins(section, [run.origin]) for section in sections],
        controls=() if context.exported else [chosen, *controls],
        notices=[*notices, *(fault for _, faults in found for fault in faults)],
        refresh_seconds=REFRESH_SECONDS if is_live else None,
    )


def _choose_run(context: Context, query: Query) -> Run | None:
    """Choose a workspace: the one named, else the newest that has served lists, else the newest."""
    if key := query.text("run"):
        run = context.stores.run(key)
        maker = context.stores.maker(run) or run
        return maker if maker.kind == "workspace" else None
    workspaces = context.stores.workspaces()
    served = (run for run in workspaces if (shop_workspace(run.path) / STORE).is_dir())
    return next(served, workspaces[0] if workspaces else None)


def _read_log(context: Context, store: Path) -> tuple[Logged, list[str]]:
    """Read the log, with the notices on it."""
    if not store.is_dir():
        return Logged(), []
    log = request_log(context, store)
    logged = log.now(EXPORT_PATIENCE) if context.exported else log.now()
    notices = [logged.fault] if logged.fault else []
    if logged.is_reading:
        since = "" if logged.span is None else f", back to {clock(logged.span[0])} UTC"
        notices.append(f"{logged.num_lists:,} lists are read so far{since}; more are being read")
    if logged.num_unreadable:
        notices.append(f"{logged.num_unreadable:,} records of lists cannot be read")
    return logged, notices


def _lists(
    context: Context, query: Query, workspace: Path, logged: Logged
) -> tuple[Section, Sequence[Control]]:
    """Show the chosen lists of the log."""
    blocks: list[Block]
    controls: Sequence[Control] = ()
    if logged.num_lists:

        def draw() -> tuple[list[Block], Sequence[Control]]:
            served, offered = Served.choose(logged, query)
            return build_blocks(served), offered

        chosen = (query.text("range"), query.text("surface"))
        key = ("served", str(workspace), logged.number, *chosen)
        blocks, controls = context.cache.get(key, (), draw)
    else:
        words = (
            f"No list of {workspace} is in its online store {workspace / STORE} yet. Serve some: "
            f"recsys serve {workspace}"
        )
        line = "The log is being read." if logged.is_reading else words
        blocks = [Words(lines=[line], tone="note")]
    return Section(key="log", title="Served lists", blocks=blocks), controls


def _experiments(workspace: Path, logged: Logged) -> Section:
    """Count the lists of arms, and name the command that compares them."""
    table = arms_table(logged)
    lines = [NONE]
    if table is not None:
        lines = [
            "Compare the arms, with intervals that hold at any time: recsys data export --store "
            f"sqlite:{workspace / STORE} --out EXPORT, then recsys experiments --exported EXPORT "
            "--serving-config serving.toml"
        ]
    words = Words(lines=lines, tone="note")
    blocks: list[Block] = [words] if table is None else [table, words]
    return Section(key="experiments", title="Experiments", blocks=blocks)


def _without_lists(workspace: Path, logged: Logged) -> list[str]:
    """Warn if no logged list is of the champion."""
    bundles = workspace / "bundles"
    try:
        served, changes = served_version(bundles), history(bundles)
    except (ValueError, OSError):
        return []
    of_bundles = logged.counts.filter(pl.col("kind") == "bundle")
    known = of_bundles["name"].cast(pl.String).unique().to_list()
    if served is None or served in known:
        return []
    since = next((one.time[:16] for one in reversed(changes) if one.version == served), "")
    when = f" since {since.replace('T', ' ')} UTC" if since else ""
    return [
        f"{served} is the champion{when}, and no logged list is of it: all that is shown here is "
        f"of {', '.join(sorted(known)[:3])}. The server may not have loaded it (see its /metrics), "
        "or it has had no request."
    ]


ENTRY = PageEntry(name="serving", title=TITLE, build=build, keeps=("run",))
