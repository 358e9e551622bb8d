"""Newest results of daily commands, which others read: one JSON file each in the workspace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import to_json
from recsys.data.durable import write_durably

PARITY = Path("parity") / "parity.json"
MONITOR = Path("monitoring") / "monitor.json"
JUDGES = Path("judge") / "judges.json"


def write_result(workspace: Path, name: Path, document: Mapping[str, Any]) -> Path:
    """Replace the newest result of a command."""
    path = workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, to_json(document))
    return path


def read_result(workspace: Path | None, name: Path) -> dict[str, Any]:
    """Read the newest result of a command; empty without one.

    Raises:
        ValueError: Names the file that cannot be read.
    """
    path = None if workspace is None else workspace / name
    if path is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not JSON ({error}); run its command again, or delete it"
        ) from None
    return found if isinstance(found, dict) else {}
