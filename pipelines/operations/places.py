"""Where a workspace's bundles are."""

from __future__ import annotations

import tomllib
from pathlib import Path


def bundles_of(workspace: Path) -> Path:
    """Return the folder of a workspace's bundles; by default beside its artefacts."""
    try:
        table = tomllib.loads((workspace / "config.toml").read_text(encoding="utf-8"))
        named = table.get("release", {}).get("bundles")
    except (OSError, ValueError, AttributeError):
        named = None
    return Path(named) if named else workspace / "bundles"
