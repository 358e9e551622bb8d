"""The only list of pages; the navigation and the server come from it."""

from __future__ import annotations

from pipelines.dashboard.compare.compare import ENTRY as COMPARE
from pipelines.dashboard.context import PageEntry
from pipelines.dashboard.releases import ENTRY as RELEASES
from pipelines.dashboard.runs.run import ENTRY as RUN
from pipelines.dashboard.runs.runs import ENTRY as RUNS
from pipelines.dashboard.summary import ENTRY as SUMMARY
from pipelines.dashboard.why import ENTRY as WHY

PAGES: tuple[PageEntry, ...] = (SUMMARY, RUNS, RUN, COMPARE, WHY, RELEASES)
"""In the navigation's order."""
