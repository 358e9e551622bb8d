"""The page of serving: the request log, a live server, drift, parity, experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import Query
from pipelines.dashboard.service.latency import latency_section
from pipelines.dashboard.service.live import live_section
from pipelines.dashboard.service.request_log import Logged, request_log
from pipelines.dashboard.service.traffic import (
    degraded_section,
    sources_section,
    tiles_of,
    traffic_section,
)
from pipelines.dashboard.service.trials import experiments_section
from pipelines.dashboard.service.view import clock, controls_of, select, view_of
from pipelines.dashboard.service.watched import monitor_section, off_policy_section, parity_section
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Block, Control, Page, Words
from pipelines.publishing.promotion import served_version
from pipelines.publishing.released import shop_workspace
from pipelines.tracking.decisions import history

TITLE = "Serving"
STORE = "online"
PARTS = {
    "log": "Served lists",
    "server": "Live server",
    "watch": "Drift, freshness, parity",
    "experiments": "Experiments, off-policy",
}
LEADS = {
    "log": "How lists were served: how many, how fast, from where, and what was degraded.",
    "server": "How a running server is doing now.",
    "watch": "What recsys monitor and recsys parity found.",
    "experiments": "What arms and policies have shown, and what may not be claimed yet.",
}
EXPORT_PATIENCE = 60.0
REFRESH_SECONDS = 3.0
"""While a log is being read, and of a live server where the reader wants it."""
MAX_OPTIONS = 200


def build(context: Context, query: Query) -> Page:
    """Make the part of the page that is chosen."""
    part = query.choice("part", PARTS, "log")
    run = None if part == "server" else _run_of(context, query)
    controls, blocks, notices = [select("part", "Part", part, PARTS)], list[Block](), list[str]()
    refresh = False
    if part == "server":
        refresh = query.choice("refresh", ("0", "1"), "0") == "1"
        controls.append(
            Control(
                name="refresh", label="Refresh by itself", kind="toggle", value=str(int(refresh))
            )
        )
        live, notices = live_section(context)
        blocks = [live]
    elif run is None:
        words = "There is no workspace yet. recsys run makes one, recsys serve serves its bundle."
        blocks = [Words(lines=[words], tone="note")]
    else:
        controls.append(_run_control(context, run))
        workspace = shop_workspace(run.path)
        if part == "watch":
            blocks, notices = _watch(context, workspace, run)
        else:
            logged, notices = _logged(context, workspace / STORE)
            refresh = logged.is_reading
            make = _log if part == "log" else _experiments
            blocks, more, faults = make(context, query, workspace, run, logged)
            controls += more
            if not logged.columns.lists.is_empty() and not logged.is_reading:
                notices += _without_lists(workspace, logged)
            notices += faults
    return Page(
        title=f"{TITLE}: {PARTS[part].lower()}",
        lead=LEADS[part],
        blocks=blocks,
        controls=() if context.exported else controls,
        notices=notices,
        refresh_seconds=REFRESH_SECONDS if refresh and not context.exported else None,
    )


def _run_of(context: Context, query: Query) -> Run | None:
    """Choose a workspace: the one named, else the newest that has served lists, else the newest."""
    if key := query.text("run"):
        run = context.stores.run(key)
        maker = context.stores.run(run.made_by) if run.made_by else run
        return maker if maker.kind == "workspace" else None
    workspaces = context.stores.workspaces()
    for run in workspaces:
        if (shop_workspace(run.path) / STORE).is_dir():
            return run
    return workspaces[0] if workspaces else None


def _run_control(context: Context, run: Run) -> Control:
    known = [run, *context.stores.workspaces()[:MAX_OPTIONS]]
    return select("run", "Workspace", run.key, {one.key: str(one.path) for one in known})


def _logged(context: Context, store: Path) -> tuple[Logged, list[str]]:
    """Read the log, with what to say of it first."""
    if not store.is_dir():
        return Logged(), []
    log = request_log(context, store)
    logged = log.now(EXPORT_PATIENCE) if context.exported else log.now()
    notices = [logged.fault] if logged.fault else []
    if logged.is_reading:
        since = "" if logged.since_ms is None else f", back to {clock(logged.since_ms)} UTC"
        number = logged.columns.lists.height
        notices.append(f"{number:,} lists are read so far{since}; more are being read")
    elif logged.is_cut and logged.since_ms is not None:
        number = logged.columns.lists.height
        notices.append(
            f"the newest {number:,} lists are shown, since {clock(logged.since_ms)} UTC; there are "
            "older ones"
        )
    if logged.columns.num_unreadable:
        notices.append(f"{logged.columns.num_unreadable:,} records of lists cannot be read")
    return logged, notices


Part = tuple[list[Block], Sequence[Control], Sequence[str]]


def _log(context: Context, query: Query, workspace: Path, run: Run, logged: Logged) -> Part:
    if logged.columns.lists.is_empty():
        words = (
            f"No list of {workspace} is in its online store {workspace / STORE} yet. Serve some: "
            f"recsys serve {workspace}"
        )
        said = "The log is being read." if logged.is_reading else words
        return [Words(lines=[said], tone="note")], (), ()
    names = ("range", "step", "stage", "surface")
    return context.cache.get(
        ("served", str(workspace), logged.number, *(query.text(name) for name in names)),
        (),
        lambda: _served(logged, query, run),
    )


def _served(logged: Logged, query: Query, run: Run) -> Part:
    view = view_of(logged, query, (run.origin,))
    blocks: list[Block] = [
        tiles_of(view),
        traffic_section(view),
        latency_section(view),
        degraded_section(view),
        sources_section(view),
    ]
    return blocks, controls_of(view), view.notices


def _without_lists(workspace: Path, logged: Logged) -> list[str]:
    """Say where what is served now has no logged list: nothing below is of it."""
    bundles = workspace / "bundles"
    try:
        served = served_version(bundles)
        changes = history(bundles)
    except (ValueError, OSError):
        return []
    known = logged.columns.lists["bundle"].cast(pl.String).unique().to_list()
    if served is None or served in known:
        return []
    since = next((one.time[:16] for one in reversed(changes) if one.version == served), "")
    when = f" since {since.replace('T', ' ')} UTC" if since else ""
    return [
        f"{served} is the champion{when}, and no logged list is of it: all that is shown here is "
        f"of {', '.join(sorted(known)[:3])}. The server may not have loaded it (part Live server), "
        "or it has had no request."
    ]


def _watch(context: Context, workspace: Path, run: Run) -> tuple[list[Block], list[str]]:
    monitored, faults = monitor_section(context, workspace, (run.origin,))
    parity, more = parity_section(workspace, (run.origin,))
    return [monitored, parity], [*faults, *more]


def _experiments(context: Context, query: Query, workspace: Path, run: Run, logged: Logged) -> Part:
    arms, controls = experiments_section(context, workspace, logged, query, (run.origin,))
    valued, faults = off_policy_section(workspace, (run.origin,))
    return [arms, valued], controls, faults


def exports(context: Context, query: Query) -> Sequence[Query]:
    """List the parts that a file holds: all but the live server."""
    return [Query({**query.values, "part": (part,)}) for part in PARTS if part != "server"]


ENTRY = PageEntry(name="serving", title=TITLE, build=build, exports=exports, keeps=("run",))
