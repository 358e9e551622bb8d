"""What every page is made from, and how a page enters the list of pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.dashboard.cache import Cache
from pipelines.dashboard.query import Query
from pipelines.dashboard.workspaces.stores import Stores
from pipelines.pages.document import Option, Page, Rows, Window


@dataclass(frozen=True, kw_only=True)
class Context:
    """One dashboard."""

    stores: Stores
    cache: Cache = field(default_factory=lambda: Cache(512))
    """Of small values."""
    tables: Cache = field(default_factory=lambda: Cache(16))
    """Tables with a row for each user."""
    server: str | None = None
    """Address of the API whose metrics are shown, such as ``http://127.0.0.1:8000``."""
    key: str | None = None
    """That an action needs; None where actions are switched off."""
    exported: bool = False
    """Whether the page goes into a file, where nothing can be queried later."""


Build = Callable[[Context, Query], Page]
RowsOf = Callable[[Context, Query, Window], Rows]
Suggest = Callable[[Context, Query, str], Sequence[Option]]
Act = Callable[[Context, Mapping[str, str]], str]


@dataclass(frozen=True, kw_only=True)
class PageEntry:
    """A page in the list of pages."""

    name: str
    """In its address."""
    title: str
    """In the navigation."""
    build: Build
    """Makes the page; raises QueryError or NotFoundError with words for the reader."""
    rows: Mapping[str, RowsOf] = field(default_factory=dict)
    """Windows of long tables, by `Table.source`."""
    suggest: Mapping[str, Suggest] = field(default_factory=dict)
    """Options of a search, by `Control.suggest`: at most 20, the best first."""
    actions: Mapping[str, Act] = field(default_factory=dict)
    """What the page can have done, by `Action.name`; returns what was done, in words."""
    exports: Callable[[Context, Query], Sequence[Query]] | None = None
    """Queries whose pages an exported file holds, for the runs that it is about; the given one
    alone without."""
    in_navigation: bool = True
    keeps: tuple[str, ...] = ()
    """Parameters that the navigation takes along from the page it leaves, such as ``run``."""
