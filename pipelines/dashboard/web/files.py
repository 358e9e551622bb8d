"""Files of a run: its report, configuration and metrics, and nothing else of the machine."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import FileResponse, Response

from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.stores import Stores

TEXT = "text/plain; charset=utf-8"
TYPES = {
    ".csv": TEXT,
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".jsonl": TEXT,
    ".log": TEXT,
    ".md": TEXT,
    ".toml": TEXT,
    ".txt": TEXT,
}
SANDBOX = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""A report's own script runs, in an origin of its own from which nothing can be reached."""


def file_of_run(stores: Stores, key: str, path: str) -> Path:
    """Find a file of a run."""
    folder = stores.run(key).path
    missing = NotFoundError(f"no file {path!r} in that run; see its page for those it has")
    parts = Path(path).parts
    if folder is None or "\0" in path or any(part.startswith((".", "/")) for part in parts):
        raise missing
    if Path(path).suffix.lower() not in TYPES:
        shown = ", ".join(sorted(TYPES))
        raise NotFoundError(f"{path!r} is not shown here; files of these kinds are: {shown}")
    try:
        found = (folder / path).resolve(strict=True)
        inside = found.is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):
        raise missing from None
    # A link may have another suffix than what it leads to.
    if not inside or not found.is_file() or found.suffix.lower() not in TYPES:
        raise missing
    return found


def sent(path: Path) -> Response:
    """Send a file."""
    kind = TYPES[path.suffix.lower()]
    headers = {"cache-control": "no-cache", "content-security-policy": SANDBOX}
    return FileResponse(path, media_type=kind, headers=headers)
