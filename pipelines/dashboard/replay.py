"""The page Replay: the page of a backtest, as `recsys backtest` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pipelines.backtest.backtest import DOCUMENT, FOLDER
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.workspaces.files import (
    UnreadableError,
    changed_at,
    names_in,
    place_key,
    read_table,
)
from pipelines.dashboard.workspaces.stores import is_workspace
from pipelines.pages.backtest import backtest_page
from pipelines.pages.document import Origin, Page, Words, select

TITLE = "Replay"
NOTHING = (
    "There is no backtest below the dashboard's folders. A backtest replays a log: models are "
    "fitted on what was known at each moment and judged by what came next, with and without "
    "retraining. Make one for a run: recsys backtest runs/shop"
)
UNFINISHED = (
    "This backtest is not finished, and its page is written at the end. recsys backtest, called "
    "once more with the same configuration, continues it."
)
EARLIEST = datetime.min.replace(tzinfo=UTC)


def run_key(path: Path) -> str:
    """Return the key of the run whose workspace a backtest is in; "" for another place."""
    return place_key(str(path.parent)) if is_workspace({*names_in(path.parent)}) else ""


def name_backtest(path: Path) -> str:
    """Name a backtest by its folder, and by the run's if it is in one."""
    return f"{path.parent.name}/{path.name}" if path.name == FOLDER else path.name


def backtests(context: Context, run: str) -> dict[str, Path]:
    """List backtests by key: those of a run, then finished ones, the newest first, then others."""

    def order(path: Path) -> tuple[bool, datetime, str]:
        written = changed_at(path / DOCUMENT) or EARLIEST
        return (bool(run) and run_key(path) == run, written, path.name)

    found = sorted(context.stores.backtests(), key=order, reverse=True)
    return {place_key(str(path)): path for path in found}


def build(context: Context, query: Query) -> Page:
    """Show the chosen backtest, by default the run's own or the newest one."""
    known = backtests(context, query.text("run"))
    if not known:
        return Page(title=TITLE, lead="Nothing was replayed yet.", blocks=[Words(lines=[NOTHING])])
    key = query.text("replay") or next(iter(known))
    if key not in known:
        raise NotFoundError(f"no backtest {key!r}: its folder is gone, or never was")
    path = known[key]
    page = context.cache.get(("backtest", key), (path / DOCUMENT,), lambda: _page(path))
    options = {one: name_backtest(place) for one, place in known.items()}
    controls = [select("replay", "Backtest", key, options)]
    return replace(page, controls=[] if context.exported else controls)


def _page(path: Path) -> Page:
    """Build the page of a backtest; one that cannot be read has the reason."""
    name = name_backtest(path)
    try:
        document = read_table(path / DOCUMENT)
        if document is None:
            lead, line = f"{name} has no results yet.", UNFINISHED
        else:
            digests = {one: document.get(one) for one in ("config_digest", "data_digest")}
            return backtest_page(document, [Origin(run=run_key(path), name=name, **digests)])
    except UnreadableError as error:
        lead, line = f"{name} cannot be read.", f"{error}"
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        lead, line = (
            f"{name} cannot be read.",
            "It was written by another version of recsys, or by hand "
            f"({type(error).__name__}: {error}); recsys backtest writes its document again.",
        )
    return Page(title=TITLE, lead=lead, blocks=[Words(lines=[line], tone="note")])


def exports(context: Context, query: Query) -> Sequence[Query]:
    """Choose the backtest of the run that a file is about."""
    run = query.text("run")
    for key, path in backtests(context, run).items():
        if run_key(path) == run:
            return [Query.of(run=run, replay=key)]
    raise NotFoundError("the run has no backtest; recsys backtest makes one")


ENTRY = PageEntry(name="replay", title=TITLE, build=build, exports=exports, keeps=("run",))
