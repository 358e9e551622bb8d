"""Sources of every page: stores and caches, and the entry of a page in the list of pages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pipelines.dashboard.query import Query
from pipelines.dashboard.workspaces.files import file_stamp
from pipelines.dashboard.workspaces.stores import Stores
from pipelines.pages.document import Option, Page, Rows, Window

T = TypeVar("T")


class Cache:
    """The values used last; two threads that need one value at once wait for one computation."""

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, files: Iterable[Path], make: Callable[[], T]) -> T:
        """Return the value of a key, computed again after one of its files changed."""
        full = (key, file_stamp(files))
        with self._lock:
            computing = self._locks.setdefault(full, threading.Lock())
        with computing:
            with self._lock:
                if full in self._values:
                    self._values.move_to_end(full)
                    found: T = self._values[full]
                    return found
            value = make()
            with self._lock:
                self._values[full] = value
                while len(self._values) > self._size:
                    self._locks.pop(self._values.popitem(last=False)[0], None)
        return value


@dataclass(frozen=True, kw_only=True)
class Context:
    """One dashboard."""

    stores: Stores
    cache: Cache = field(default_factory=lambda: Cache(512))
    tables: Cache = field(default_factory=lambda: Cache(16))
    """Tables with a row for each user."""


Build = Callable[[Context, Query], Page]
RowsOf = Callable[[Context, Query, Window], Rows]
Suggest = Callable[[Context, Query, str], Sequence[Option]]


@dataclass(frozen=True, kw_only=True)
class PageEntry:
    """A page in the list of pages."""

    name: str
    title: str
    build: Build
    """Makes the page; raises QueryError or NotFoundError with words for the reader."""
    rows: Mapping[str, RowsOf] = field(default_factory=dict)
    """Windows of long tables, by `Table.source`."""
    suggest: Mapping[str, Suggest] = field(default_factory=dict)
    """Options of a search, by `Control.suggest`: at most 20, the best first."""
    in_navigation: bool = True
    keeps: tuple[str, ...] = ()
    """Parameters that the navigation takes along from the page it leaves, such as ``run``."""
