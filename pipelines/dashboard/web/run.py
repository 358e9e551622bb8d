"""The dashboard as a process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import uvicorn

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.web.access import Access
from pipelines.dashboard.web.app import Site, create_app
from pipelines.pages.assets import version


def serve(context: Context, pages: Sequence[PageEntry], access: Access, port: int) -> None:
    """Serve until a signal ends it."""
    # The chart library takes a second to put together; runs are read meanwhile too.
    for prepare in (version, context.stores.runs):
        threading.Thread(target=prepare, daemon=True).start()
    site = Site(context=context, pages=pages, access=access)
    uvicorn.run(
        create_app(site),
        host=access.host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
