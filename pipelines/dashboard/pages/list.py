"""The only list of pages; the navigation, the server and the export come from it."""

from __future__ import annotations

from pipelines.dashboard.context import PageEntry

PAGES: tuple[PageEntry, ...] = ()
