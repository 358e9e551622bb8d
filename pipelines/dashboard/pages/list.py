"""The only list of pages; the navigation, the server and the export come from it."""

from __future__ import annotations

from pipelines.dashboard.compare.page import ENTRY as COMPARE
from pipelines.dashboard.compare.summary import entry as summary
from pipelines.dashboard.context import PageEntry
from pipelines.dashboard.experts import ENTRY as EXPERTS
from pipelines.dashboard.items.page import ENTRY as ITEMS
from pipelines.dashboard.releases.page import ENTRY as RELEASES
from pipelines.dashboard.replay import ENTRY as REPLAY
from pipelines.dashboard.runs.differences import ENTRY as DIFFERENCES
from pipelines.dashboard.runs.page import ENTRY as RUNS
from pipelines.dashboard.runs.run import ENTRY as RUN
from pipelines.dashboard.semantic_ids.page import ENTRY as SEMANTIC_IDS
from pipelines.dashboard.service.page import ENTRY as SERVING
from pipelines.dashboard.why.page import ENTRY as WHY

PAGES: tuple[PageEntry, ...] = (
    # One a line, in the navigation's order.
    summary(RUN.build),
    RUNS,
    RUN,
    DIFFERENCES,
    COMPARE,
    WHY,
    ITEMS,
    REPLAY,
    RELEASES,
    SEMANTIC_IDS,
    EXPERTS,
    SERVING,
)
