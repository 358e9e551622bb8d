"""Gather what the cards measured into one page with goals and times.

The runs are made by ``python -m tests.benchmarks.reproduction``, or by its module ``train``;
each card's lie in a folder of its name below RUNS, as either writes them:

    RUNS/beauty/given-0/result.json  RUNS/*/ledger.jsonl

    python -m tests.benchmarks.evaluation.benchmark_reproduction RUNS --seconds beauty=140

Writes results/evaluation/reproduction.{json,md}; each look at a test split is added to
results/test_split_ledger.jsonl once, and --bands writes the numbers into the cards as their bands.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import RESULTS, Row, command_line, write_results
from tests.benchmarks.recipes.recipe import REFITTED
from tests.benchmarks.reproduction.card import FOLDER, Card, card_names, read_card, read_published
from tests.benchmarks.reproduction.page import AS_SERVED, facts_of, find_tables, markdown_page
from tests.benchmarks.reproduction.summary import expected_toml, out_of_band, summary_of

LEDGER = RESULTS / "test_split_ledger.jsonl"
BEAUTY_SECONDS = 300


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("runs", type=Path, help="folder with a folder for each card")
    parser.add_argument("--seconds", nargs="*", default=[], metavar="CARD=S", help="wall time")
    parser.add_argument("--page", default="reproduction", help="name of the page of results")
    parser.add_argument("--bands", action="store_true", help="write bands into the cards")
    return parser.parse_args()


def results_of(folder: Path) -> list[dict[str, Any]]:
    """Read every finished run of a card."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))]


def rows_of(name: str, card: Card, summary: dict[str, Any]) -> Iterable[Row]:
    """One row for each goal of a card, and for each shown number of its best rows."""
    reached = {(goal["row"], goal["metric"]) for goal in summary["goals"]}
    for goal in summary["goals"]:
        yield Row(
            name=f"{name}, {goal['row']}: {goal['metric']}",
            value=goal["value"],
            goal=f">= {goal['goal']}",
            met=goal["met"],
        )
    for order, rows in summary["orders"].items():
        for row, metrics in rows.items():
            for metric in (metric for metric in summary["shown"] if metric in metrics):
                if order != "given" or (row, metric) not in reached:
                    value = metrics[metric]["mean"]
                    label = f"{row} ({AS_SERVED})" if row in REFITTED else row
                    yield Row(name=f"{name}, {order}, {label}: {metric}", value=value)
    if summary["invalid_ids"] is not None:
        met = summary["invalid_ids"] == 0
        yield Row(
            name=f"{name}: share of generated IDs that name no item",
            value=summary["invalid_ids"],
            goal="0 by construction",
            met=met,
        )


def add_looks(runs: Path) -> None:
    """Add the looks at test of all cards that the ledger does not have yet."""
    known = set(LEDGER.read_text().splitlines())
    with LEDGER.open("a") as file:
        for path in sorted(runs.glob("*/ledger.jsonl")):
            for line in path.read_text().splitlines():
                if line not in known:
                    known.add(line)
                    file.write(line + "\n")


def looks_of(data_set: str) -> str:
    """Say how often the test split of a data set was looked at, each seed and model set counted."""
    entries = [json.loads(line) for line in LEDGER.read_text().splitlines()]
    count = sum(data_set in entry["data_set"].split(", ") and "model" in entry for entry in entries)
    return f"Lines of {data_set} in the ledger of looks at test, all cards together: {count}."


def write_bands(name: str, summary: dict[str, Any]) -> None:
    """Put the numbers of these runs into the card as the bands of later ones."""
    path = FOLDER / f"{name}.toml"
    kept = path.read_text().partition("[[expected]]")[0].rstrip()
    path.write_text(f"{kept}\n\n{expected_toml(summary)}".rstrip() + "\n")


def main() -> None:
    options = parsed_arguments()
    seconds = {name: float(value) for name, value in (one.split("=") for one in options.seconds)}
    rows, parts = [], []
    devices: set[str] = set()
    add_looks(options.runs)
    for name in card_names():
        folder = options.runs / name
        results = results_of(folder) if folder.is_dir() else []
        if not results:
            continue
        card = read_card(name)
        summary = summary_of(name, card, results)
        devices |= set(summary["device"])
        if options.bands:
            write_bands(name, summary)
        facts = [*facts_of(summary, out_of_band(card, summary)), looks_of(summary["data_set"])]
        tables = find_tables(card, summary, read_published())
        parts.append(markdown_page(card.title, facts, tables).replace("\n#", "\n##"))
        rows += rows_of(name, card, summary)
        if name in seconds:
            goal = BEAUTY_SECONDS if name == "beauty" else None
            rows.append(
                Row(
                    name=f"{name}: one seed's strict rows, alone on the device, arrays prepared",
                    value=seconds[name],
                    unit="s",
                    goal=None if goal is None else f"<= {goal} s on one H200",
                    met=None if goal is None else seconds[name] <= goal,
                )
            )
    notes = "\n".join(f"#{part}" for part in parts)
    write_results(options.page, rows, notes=notes, device="; ".join(sorted(devices)), in_page=False)


if __name__ == "__main__":
    main()
