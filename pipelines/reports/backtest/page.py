"""The page of a backtest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_backtest_page(document: Mapping[str, Any], path: Path) -> None:
    """Write the page."""
    path.write_text(f"<title>{len(document['steps'])} steps</title>", encoding="utf-8")
