"""The page of serving: the request log, a live server, drift, parity, experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import Query
from pipelines.dashboard.service.live import live_section
from pipelines.dashboard.service.request_log import Logged, request_log
from pipelines.dashboard.service.traffic import (
    View,
    build_blocks,
    build_controls,
    choose_view,
    clock,
)
from pipelines.dashboard.service.watched import (
    experiments_section,
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
PARTS = {
    "log": ("Served lists", "How lists were served: how many, how fast, from where, and what was "
            "degraded."),
    "server": ("Live server", "How a running server is doing now."),
    "watch": ("Drift, freshness, parity", "What recsys monitor and recsys parity found."),
    "experiments": ("Experiments, off-policy", "What arms and policies have shown, and what may "
                    "not be claimed yet."),
}  # fmt: skip
"""Title and lead by part."""
EXPORT_PATIENCE = 60.0
REFRESH_SECONDS = 3.0
"""While a log is being read, and of a live server if the reader wants it."""
MAX_OPTIONS = 200


def _served(logged: Logged, query: Query, run: Run) -> tuple[list[Block], View]:
    view = choose_view(logged, query)
    blocks = build_blocks(view)
    return [
        with_origins(one, [run.origin]) if isinstance(one, Section) else one for one in blocks
    ], view


def build(context: Context, query: Query) -> Page:
    """Build the part of the page that is chosen."""
    part = query.choice("part", PARTS, "log")
    title, lead = PARTS[part]
    run = None if part == "server" else _choose_run(context, query)
    labels = {name: label for name, (label, _) in PARTS.items()}
    controls, blocks, notices = [select("part", "Part", part, labels)], list[Block](), list[str]()
    refresh = False
    if part == "server":
        refresh = query.choice("refresh", ("0", "1"), "0") == "1"
        toggle = Control(
            name="refresh", label="Refresh by itself", kind="toggle", value=str(int(refresh))
        )
        controls.append(toggle)
        live, notices = live_section(context)
        blocks = [live]
    elif run is None:
        words = "There is no workspace yet. recsys run makes one, recsys serve serves its bundle."
        blocks = [Words(lines=[words], tone="note")]
    else:
        known = [run, *context.stores.workspaces()[:MAX_OPTIONS]]
        controls.append(
            select("run", "Workspace", run.key, {one.key: str(one.path) for one in known})
        )
        workspace = shop_workspace(run.path)
        if part == "watch":
            found = [monitor_section(context, workspace), parity_section(workspace)]
            blocks = [with_origins(section, [run.origin]) for section, _ in found]
            notices = [fault for _, faults in found for fault in faults]
        else:
            logged, notices = _logged(context, workspace / STORE)
            refresh = logged.is_reading
            if part == "log":
                blocks, more, faults = _log(context, query, workspace, run, logged)
            else:
                arms, more = experiments_section(context, workspace, logged, query)
                valued, faults = off_policy_section(workspace)
                blocks = [with_origins(one, [run.origin]) for one in (arms, valued)]
            controls += more
            if logged.num_lists and not logged.is_reading:
                notices += _without_lists(workspace, logged)
            notices += faults
    return Page(
        title=f"{TITLE}: {title.lower()}",
        lead=lead,
        blocks=blocks,
        controls=() if context.exported else controls,
        notices=notices,
        refresh_seconds=REFRESH_SECONDS if refresh and not context.exported else None,
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


def _logged(context: Context, store: Path) -> tuple[Logged, list[str]]:
    """Read the log, with the notices on it."""
    if not store.is_dir():
        return Logged(), []
    log = request_log(context, store)
    logged = log.now(EXPORT_PATIENCE) if context.exported else log.now()
    notices = [logged.fault] if logged.fault else []
    if logged.is_reading:
        since = "" if logged.span is None else f", back to {clock(logged.span[0])} UTC"
        notices.append(f"{logged.num_lists:,} lists are read so far{since}; more are being read")
    if logged.counted.num_unreadable:
        notices.append(f"{logged.counted.num_unreadable:,} records of lists cannot be read")
    return logged, notices


def _log(
    context: Context, query: Query, workspace: Path, run: Run, logged: Logged
) -> tuple[list[Block], Sequence[Control], Sequence[str]]:
    if not logged.num_lists:
        words = (
            f"No list of {workspace} is in its online store {workspace / STORE} yet. Serve some: "
            f"recsys serve {workspace}"
        )
        line = "The log is being read." if logged.is_reading else words
        return [Words(lines=[line], tone="note")], (), ()
    names = ("range", "step", "stage", "surface")
    blocks, view = context.cache.get(
        ("served", str(workspace), logged.number, *(query.text(name) for name in names)),
        (),
        lambda: _served(logged, query, run),
    )
    return blocks, build_controls(view), view.notices


def _without_lists(workspace: Path, logged: Logged) -> list[str]:
    """Warn if no logged list is of the champion."""
    bundles = workspace / "bundles"
    try:
        served, changes = served_version(bundles), history(bundles)
    except (ValueError, OSError):
        return []
    known = logged.counted.lists["bundle"].cast(pl.String).unique().to_list()
    if served is None or served in known:
        return []
    since = next((one.time[:16] for one in reversed(changes) if one.version == served), "")
    when = f" since {since.replace('T', ' ')} UTC" if since else ""
    return [
        f"{served} is the champion{when}, and no logged list is of it: all that is shown here is "
        f"of {', '.join(sorted(known)[:3])}. The server may not have loaded it (part Live server), "
        "or it has had no request."
    ]


def exports(context: Context, query: Query) -> Sequence[Query]:
    """List the parts that a file holds: all but the live server."""
    return [Query({**query.values, "part": (part,)}) for part in PARTS if part != "server"]


ENTRY = PageEntry(name="serving", title=TITLE, build=build, exports=exports, keeps=("run",))
