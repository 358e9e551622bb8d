"""The results page of a card: our rows and the literature's, as JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.config.run import RunConfig
from tests.benchmarks.recipes.recipe import REFITTED
from tests.benchmarks.reproduction.card import Card, PublishedRow
from tests.benchmarks.reproduction.summary import OutOfBand, expected_toml, published_rows

NAMES = {
    "popularity": "popularity",
    "item_to_item": "item-to-item",
    "ease": "EASE",
    "repeats": "repeats",
    "next_basket": "next basket",
    "content_similarity": "content similarity",
    "two_tower": "two-tower",
    "sequence": "sequence model",
    "ensemble": "its members of profile full together",
    "generative": "generative, semantic IDs alone",
    "blend_fast": "blend, profile fast",
    "blend": "blend, profile full",
    "sequence_refit": "sequence model, refitted",
    "blend_refit": "blend of profile fast, refitted",
}
AS_SERVED = "refitted with the validation event, as served"
RUN_HERE = "other libraries on the same queries"
PROTOCOL = (
    "Full catalogue, hits on items; items of the history are left out of every list, as the "
    "benchmarks of eSASRec and S3-Rec do. Given order: events of one day ascend by item, as in the "
    "literature's files. Means over users; \u00b1 is the deviation over seeds."
)

BOARD = (
    "The rules of time-to-split: validation and test begin at the 0.9 quantiles of the events' "
    "times, first of all events, then of those before test. Each user's last event after a moment "
    "is the target, whether training met its item or not; all events before it are given. The "
    "published model was fitted on the events before validation, as the strict rows are."
)

IDS, TEXT, DATES = "ids", "text", "dates of past events"


class Table(NamedTuple):
    """A table of texts."""

    title: str
    header: list[str]
    rows: list[list[str]]


def find_tables(
    card: Card, summary: Mapping[str, Any], published: Sequence[PublishedRow]
) -> list[Table]:
    """Lay out one table an order, the literature in the first, and one of goals."""
    tables = []
    literature = published_rows(card, published)
    peers = published_rows(card, published, run_here=True)
    for order, rows in summary["orders"].items():
        title = f"{summary['split'].capitalize()}, tied times in {order} order"
        header = ["model", *summary["shown"], "reads", "source"]
        lines = [
            [row.model, *written(numbers, len(summary["shown"])), row.reads, row.source]
            for row, numbers in literature
        ]
        strict, refitted = (
            measured(rows, summary["shown"], card, refitted=refitted) for refitted in (False, True)
        )
        lines += strict
        tables.append(Table(title, header, lines))
        if refitted:
            tables.append(Table(f"{title}: {AS_SERVED}", header, refitted))
        if peers:
            tables.append(peers_table(f"{title}: {RUN_HERE}", summary["shown"], peers))
        literature = peers = []
    if summary["goals"]:
        lines = [
            [
                NAMES.get(goal["row"], goal["row"]),
                goal["metric"],
                f">= {goal['goal']}",
                f"{goal['value']:.4f}",
                "yes" if goal["met"] else "no",
            ]
            for goal in summary["goals"]
        ]
        header = ["model", "metric", "goal", "measured", "met"]
        tables.append(Table("Goals", header, lines))
    return tables


def reads(row: str, card: Card) -> str:
    """Name the inputs of a row; a blend's are those of all models that it merges.

    Rows are only comparable with others that read the same.
    """
    config = card.config(Path())
    models = card.sources() if row.startswith("blend") else (row.removesuffix("_refit"),)
    found = {one for model in models for one in inputs_of(model, config, dates=card.dates)}
    return ", ".join(one for one in (IDS, TEXT, DATES) if one in found)


def inputs_of(model: str, config: RunConfig, *, dates: bool) -> set[str]:
    """Name what a model reads; the generative one, also what its teacher does."""
    text = {TEXT} if config.content.encoder != "none" else set()
    of_sequence = config.sequence.calendar_days > 0 or config.sequence.time_buckets > 0
    read_dates = {
        "popularity": config.popularity.half_life_days is not None,
        "sequence": of_sequence,
        "ensemble": of_sequence,
        "generative": of_sequence and config.generative_training.teaching.share > 0,
    }
    found = {DATES} if dates and read_dates.get(model, False) else set()
    if model == "content_similarity":
        return found | {TEXT}
    return found | {IDS} | (text if model not in ("popularity", "item_to_item") else set())


def peers_table(
    title: str, shown: Sequence[str], peers: Sequence[tuple[PublishedRow, tuple[float, ...]]]
) -> Table:
    """Lay out other libraries, with the events that each was fitted on."""
    lines = [
        [row.model, *written(numbers, len(shown)), row.reads, row.fitted_on, row.source]
        for row, numbers in peers
    ]
    header = ["model", *shown, "reads", "fitted on", "source"]
    return Table(title, header, lines)


def measured(
    rows: Mapping[str, Any], shown: Sequence[str], card: Card, *, refitted: bool
) -> list[list[str]]:
    """Write what was measured here, either the strict rows or those of refitted models."""
    return [
        [
            NAMES.get(row, row),
            *(with_deviation(metrics[name]) if name in metrics else "" for name in shown),
            reads(row, card),
            "measured here",
        ]
        for row, metrics in rows.items()
        if (row in REFITTED) == refitted
    ]


def written(numbers: Sequence[float], places: int) -> list[str]:
    """Write published numbers, empty where none is reported."""
    texts = [f"{number:.4f}" for number in numbers[:places]]
    return texts + [""] * (places - len(texts))


def with_deviation(metric: Mapping[str, Any]) -> str:
    """Write a mean, and its deviation over seeds where there are several."""
    if metric["deviation"] is None:
        return f"{metric['mean']:.4f}"
    return f"{metric['mean']:.4f} \u00b1 {metric['deviation']:.4f}"


def facts_of(summary: Mapping[str, Any], wrong: Sequence[OutOfBand]) -> list[str]:
    """Say what the tables are of."""
    seeds = ", ".join(str(seed) for seed in summary["seeds"])
    total = sum(summary["seconds"].values())
    facts = [
        f"Data {summary['data_set']}, digest {summary['data_digest']}; recipe "
        f"{summary['recipe']}; seeds {seeds}.",
        f"{'; '.join(summary['device'])}; {total / 60:.1f} minutes of training and evaluation in "
        f"{len(summary['seconds'])} runs, {max(summary['seconds'].values()):.0f} s the longest.",
        PROTOCOL,
    ]
    if summary["protocol"] == "time_to_split":
        facts.append(BOARD)
    if summary["invalid_ids"] is not None:
        facts.append(
            f"Semantic IDs generated that name no item: {summary['invalid_ids']:.2%} (the search "
            "walks a trie of valid ones)."
        )
    if any(row in REFITTED for rows in summary["orders"].values() for row in rows):
        facts.append(
            "Refitted: trained again for as many passes as validation chose, with the validation "
            "event among the labels, as what is released is; blended by the weights of before. "
            "Goals and published numbers are of models that never saw that event."
        )
    if summary["missing"]:
        facts.append(f"Not measured yet: {', '.join(summary['missing'])}.")
    facts += [f"Out of band: {one.text()}." for one in wrong]
    return facts


def markdown_page(title: str, facts: Sequence[str], tables: Sequence[Table]) -> str:
    """Write the page as Markdown."""
    lines = [f"# {title}", "", *(f"- {fact}" for fact in facts)]
    for table in tables:
        lines += ["", f"## {table.title}", "", "| " + " | ".join(table.header) + " |"]
        lines.append("| --- " * len(table.header) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def write_page(
    folder: Path,
    card: Card,
    summary: Mapping[str, Any],
    published: Sequence[PublishedRow],
    wrong: Sequence[OutOfBand],
) -> Path:
    """Write results.json and .md, and the bands they would set; return the page's place."""
    facts, tables = facts_of(summary, wrong), find_tables(card, summary, published)
    document = {
        **summary,
        "published": [
            {"model": row.model, "source": row.source, "reads": row.reads, "numbers": list(numbers)}
            for row, numbers in published_rows(card, published)
        ],
        "out_of_band": [one.text() for one in wrong],
    }
    (folder / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "bands.toml").write_text(expected_toml(summary))
    path = folder / "results.md"
    path.write_text(markdown_page(card.title, facts, tables), encoding="utf-8")
    return path
