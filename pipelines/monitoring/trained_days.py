"""Up to which day the last full run behind the served bundle was trained."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pipelines.config.run import RunConfig
from pipelines.engine.workspace import bundles_dir
from pipelines.publishing.released import RELEASED, Released, released_folder
from serving.bundle.manifest import CURRENT

BUNDLE = "bundle-"


def full_run_until(config: RunConfig) -> date | None:
    """Name the day of the newest event that the last full run knows; None where none is kept.

    Increments since then do not count: they follow drift, and a full run may still do better.
    """
    current = (bundles_dir(config) / CURRENT).resolve()
    served = kept_in(released_folder(config.workspace, current.name.removeprefix(BUNDLE)))
    if served is None:
        return None
    for folder in (config.workspace / RELEASED).glob("*/"):
        found = kept_in(folder)
        if found and found.kind == "full" and found.time == served.full_time and found.until:
            return datetime.fromtimestamp(found.until, UTC).date()
    # Its folder was removed: it cannot have known the day on which it ended.
    return datetime.fromisoformat(served.full_time).date() - timedelta(days=1)


def kept_in(folder: Path) -> Released | None:
    """Read what a bundle was made from; None where it is not kept, or by another version."""
    try:
        return Released.read(folder)
    except (ValueError, TypeError):
        return None
