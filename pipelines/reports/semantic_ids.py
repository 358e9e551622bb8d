"""The report of one version of semantic IDs, as one HTML file that opens anywhere and its JSON.

Axes: N item rows (row 0 is padding), I id rows (row 0 is none), D width.
"""

from __future__ import annotations

from pathlib import Path

from pipelines.reports.semantic_id_data import ReportedIds


def write_semantic_id_report(reported: ReportedIds, html: Path) -> Path:
    """Write the report to ``html`` and its numbers beside it, named alike with ``.json``.

    The caller gathers what stands where (`ReportedIds`, `read_catalogue`); nothing else is read.

    Returns:
        Where the JSON is.

    Raises:
        ValueError: If the quantiser did not make the IDs, the tables do not fit each other, or
            ``html`` does not end in .html.
    """
    raise NotImplementedError
