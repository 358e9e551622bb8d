"""The report of one version of semantic IDs, as one HTML file that opens anywhere and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pipelines.engine.artifacts import to_json
from pipelines.pages.document import Chart
from pipelines.pages.page import rendered
from pipelines.pages.semantic_ids.data import ReportedIds
from pipelines.pages.semantic_ids.figures import (
    collision_figure,
    content_levels,
    depth_figure,
    drift_figure,
    neighbour_figure,
    prefix_name,
    purity_figure,
    reconstruction_figure,
    usage_figure,
)
from pipelines.pages.semantic_ids.numbers import SemanticIdReport, numbers_of
from pipelines.pages.semantic_ids.summary import (
    HOW,
    METHODS,
    SHORT,
    answer,
    drift_text,
    levels_text,
    notices,
)

ENDING = ".html"
KINDS = {"popular": "popular", "tail": "of the tail", "spread": "one of many"}


def figures_of(report: SemanticIdReport) -> Mapping[str, list[Chart]]:
    """Draw every figure of the page, by section."""
    return {
        "levels": [usage_figure(report)],
        "prefixes": [depth_figure(report), collision_figure(report)],
        "content": [
            reconstruction_figure(report),
            neighbour_figure(report),
            *filter(None, [purity_figure(report)]),
        ],
        "drift": [*filter(None, [drift_figure(report)])],
    }


def parted_id(semantic_id: str, num_shared: int) -> tuple[str, str]:
    """Split an ID into the codes that are shared, with their dash, and the others."""
    codes = semantic_id.split("-")
    shared, rest = "-".join(codes[:num_shared]), "-".join(codes[num_shared:])
    return (f"{shared}-" if shared and rest else shared), rest


def semantic_ids_html(report: SemanticIdReport) -> str:
    """Write the page."""
    return rendered(
        "semantic_ids.html.jinja",
        figures_of(report),
        report=report,
        answer=answer(report),
        notices=notices(report),
        drift_text=drift_text(report),
        levels=content_levels(report),
        levels_text=levels_text,
        prefix_name=prefix_name,
        parted_id=parted_id,
        method=METHODS.get(report.method, report.method),
        how=HOW.get(report.how, report.how),
        kinds=KINDS,
        short=SHORT,
        settings=to_json(dict(report.settings)),
    )


def write_semantic_id_report(reported: ReportedIds, html: Path) -> Path:
    """Write the report to ``html`` and its values beside it with ``.json``.

    Returns:
        Where the JSON is.

    Raises:
        ValueError: If the quantiser did not make the IDs, no item of the catalogue has one, the
            tables do not fit each other, or ``html`` does not end in .html.
    """
    if html.suffix != ENDING:
        raise ValueError(f"{html} must end in {ENDING}; the numbers are written beside it")
    report = numbers_of(reported)
    numbers = html.with_suffix(".json")
    html.write_text(semantic_ids_html(report), encoding="utf-8")
    numbers.write_text(to_json(asdict(report)), encoding="utf-8")
    return numbers
