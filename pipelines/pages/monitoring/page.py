"""The page of monitoring: one HTML file that opens anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.pages.monitoring.figures import GROUPS, figures_of
from pipelines.pages.page import rendered
from recsys.data.durable import write_durably


def monitoring_html(document: Mapping[str, Any], rows: pl.DataFrame) -> str:
    """Write the page.

    Args:
        document: What ``monitor.json`` holds.
        rows: What ``days.parquet`` holds.
    """
    figures = figures_of(document, rows)
    return rendered("monitoring.html.jinja", figures, document=document, groups=GROUPS)


def write_monitoring_page(document: Mapping[str, Any], rows: pl.DataFrame, path: Path) -> None:
    """Write the page as a file, whole or not at all."""
    write_durably(path, monitoring_html(document, rows))
