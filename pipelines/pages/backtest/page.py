"""The page of a backtest: one HTML file that opens anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.pages.backtest.figures import figures_of
from pipelines.pages.backtest.words import (
    PEER,
    SERVED,
    Document,
    fit_seconds,
    peers_of,
    value_of,
)
from pipelines.pages.page import rendered
from pipelines.pages.wording import metric_label, model_label
from recsys.data.durable import write_durably


def backtest_html(document: Document) -> str:
    """Write the page.

    Args:
        document: What ``backtest.json`` holds.
    """
    return rendered(
        "backtest.html.jinja",
        figures_of(document),
        document=document,
        metrics=list(document["summary"][0]["metrics"]),
        metric_label=metric_label,
        own=summary_table(document),
        peers=peers_of(document),
        failures=failures_of(document),
        slices=slice_table(document),
        SERVED=SERVED,
    )


def write_backtest_page(document: Document, path: Path) -> None:
    """Write the page as a file, whole or not at all."""
    write_durably(path, backtest_html(document))


def summary_table(document: Document) -> list[dict[str, Any]]:
    """List each policy's rows, ``served`` first, with its cost and quality relative to ``full``."""
    found = []
    full = {
        one["row"]: value_of(document, one)
        for one in document["summary"]
        if one["policy"] == "full"
    }
    whole = fit_seconds(document, "full")
    for one in document["summary"]:
        if one["policy"] == PEER:
            continue
        of_full = full.get(one["row"], 0.0)
        seconds = one["fit_seconds"]
        if one["row"] == SERVED:
            seconds = fit_seconds(document, one["policy"])
        found.append(
            {
                **one,
                "name": model_label(one["row"]),
                "relative": value_of(document, one) / of_full if of_full else None,
                "seconds": seconds,
                "cost": seconds / whole if whole and one["row"] == SERVED else None,
            }
        )
    return found


def failures_of(document: Document) -> list[tuple[str, list[int], str]]:
    """Collect failures of a row by their text: row, steps, text."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in document["rows"]:
        if "error" in row:
            found.setdefault((row["row"], row["error"]), []).append(row["step"])
    return [(row, steps, text) for (row, text), steps in found.items()]


def slice_table(document: Document) -> list[dict[str, Any]]:
    """Average the served lists of each slice over the queries of all steps."""
    metric = document["metric"]
    totals: dict[str, dict[str, tuple[int, float]]] = {}
    for one in document["slices"]:
        if one["row"] != SERVED:
            continue
        of_slice = totals.setdefault(one["slice"], {})
        number, total = of_slice.get(one["policy"], (0, 0.0))
        value = one["metrics"][metric] * one["num_queries"]
        of_slice[one["policy"]] = (number + one["num_queries"], total + value)
    return [
        {
            "slice": name,
            "num_queries": max(number for number, _ in policies.values()),
            "values": means(policies),
        }
        for name, policies in totals.items()
    ]


def means(totals: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Divide totals by their numbers."""
    return {name: total / number for name, (number, total) in totals.items()}
