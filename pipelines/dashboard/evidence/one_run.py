"""Pages about one run: which one they are about, and the control that chooses another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.runs.run import Run
from pipelines.pages.document import Control, Option

LOOKED_AT = 200
"""Newest runs among which one that has what a page needs is looked for."""
OFFERED = 20


def one_run(context: Context, query: Query, has: Callable[[Run], bool], missing: str) -> Run:
    """Take the run that a page names, else the newest complete one that has what the page needs.

    Args:
        missing: Says what to do where there is none.

    Raises:
        NotFoundError: The named run is not there, or none has what the page needs.
    """
    if key := query.text("run"):
        return context.stores.run(key)
    runs = list(context.stores.runs()[:LOOKED_AT])
    known = [run for run in runs if run.kind == "workspace"] + runs
    for status in ("complete", "unfinished"):
        for run in known:
            if run.status == status and has(run):
                return run
    raise NotFoundError(missing)


def run_control(context: Context, run: Run, clears: Sequence[str] = ()) -> list[Control]:
    """Offer other runs by `suggest_runs`, which the page names ``runs``; none in a file."""
    if context.exported:
        return []
    others = (one for one in context.stores.runs() if one.key != run.key)
    near = [run, *others][:OFFERED]
    return [
        Control(
            name="run",
            label="Run",
            kind="search",
            value=run.key,
            options=[run_option(one) for one in near],
            suggest="runs",
            clears=clears,
        )
    ]


def suggest_runs(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find runs that have files by a part of their name, data or place."""
    wanted = text.casefold()
    found = [
        run
        for run in context.stores.runs()
        if wanted in f"{run.name} {run.dataset} {run.path} {run.key}".casefold()
    ]
    return [run_option(run) for run in found[:OFFERED]]


def run_option(run: Run) -> Option:
    """Offer a run by name, kind and time."""
    time = "" if run.time is None else f", {run.time:%Y-%m-%d %H:%M}"
    return Option(value=run.key, label=f"{run.name} ({run.kind}{time})")
