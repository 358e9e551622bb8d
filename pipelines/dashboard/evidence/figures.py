"""Figures of the reports as blocks of a page."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.pages.document import Chart, Origin
from pipelines.pages.figure import Figure


def chart_of(figure: Figure, origins: Sequence[Origin] = ()) -> Chart:
    """Show a report's figure on a page."""
    return Chart(**vars(figure), origins=origins)
