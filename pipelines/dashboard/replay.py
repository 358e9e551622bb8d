"""The page Replay: the page of a backtest, as `recsys backtest` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

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
from pipelines.dashboard.workspaces.find import is_workspace
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
OFFERED = 40


class FoundBacktest(NamedTuple):
    """A folder with a backtest."""

    key: str
    name: str
    path: Path
    run: str
    """Key of the run whose workspace it is in; "" for another place."""
    written: datetime | None
    """Time of its document (UTC); None if it is not finished."""


def backtests(context: Context) -> list[FoundBacktest]:
    """List all backtests: the finished ones, the newest first, then the others."""
    found = []
    for path in context.stores.backtests():
        own = path.name == FOLDER
        found.append(
            FoundBacktest(
                key=place_key(str(path)),
                name=f"{path.parent.name}/{path.name}" if own else path.name,
                path=path,
                run=place_key(str(path.parent)) if is_workspace({*names_in(path.parent)}) else "",
                written=changed_at(path / DOCUMENT),
            )
        )
    return sorted(found, key=lambda one: (one.written or EARLIEST, one.name), reverse=True)


def build(context: Context, query: Query) -> Page:
    """Show the chosen backtest, by default the run's own or the newest one."""
    known = backtests(context)
    if not known:
        return Page(title=TITLE, lead="Nothing was replayed yet.", blocks=[Words(lines=[NOTHING])])
    own = [one for one in known if one.run and one.run == query.text("run")]
    by_key = {one.key: one for one in [*own, *known]}
    key = query.text("replay") or next(iter(by_key))
    if key not in by_key:
        raise NotFoundError(f"no backtest {key!r}: its folder is gone, or never was")
    chosen = by_key[key]
    page = context.cache.get(("backtest", key), (chosen.path / DOCUMENT,), lambda: _page(chosen))
    options = {key: chosen.name, **{one.key: one.name for one in known[:OFFERED]}}
    control = select("replay", "Backtest", key, options)
    return replace(page, controls=[] if context.exported else [control])


def _page(found: FoundBacktest) -> Page:
    """Build the page of a backtest; one that cannot be read has the reason."""
    try:
        document = read_table(found.path / DOCUMENT)
        if document is None:
            lead, line = f"{found.name} has no results yet.", UNFINISHED
        else:
            digests = document.get("config_digest"), document.get("data_digest")
            origin = Origin(
                run=found.run, name=found.name, config_digest=digests[0], data_digest=digests[1]
            )
            return backtest_page(document, [origin])
    except UnreadableError as error:
        lead, line = f"{found.name} cannot be read.", f"{error}"
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        lead, line = (
            f"{found.name} cannot be read.",
            "It was written by another version of recsys, or by hand "
            f"({type(error).__name__}: {error}); recsys backtest writes its document again.",
        )
    return Page(title=TITLE, lead=lead, blocks=[Words(lines=[line], tone="note")])


def exports(context: Context, query: Query) -> Sequence[Query]:
    """Choose the backtest of the run that a file is about."""
    run = query.text("run")
    found = [one for one in backtests(context) if one.run == run]
    if not found:
        raise NotFoundError("the run has no backtest; recsys backtest makes one")
    return [Query.of(run=run, replay=found[0].key)]


ENTRY = PageEntry(name="replay", title=TITLE, build=build, exports=exports, keeps=("run",))
