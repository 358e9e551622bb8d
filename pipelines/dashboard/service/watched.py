"""What scheduled commands found of a workspace: drift, freshness, parity, off-policy estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.dashboard.context import Context
from pipelines.dashboard.evidence.figures import chart_of
from pipelines.dashboard.runs.documents import UnreadableError, names_in, read_table
from pipelines.off_policy.page import estimates_figure
from pipelines.off_policy.words import cells, headings, words_of
from pipelines.pages.document import Block, Column, Origin, Section, Table, Words
from pipelines.pages.monitoring.figures import GROUPS, figures_of
from pipelines.parity.run import SKIPPED
from pipelines.publishing.gate.documents import MONITOR, PARITY

DAYS = Path("monitoring") / "days.parquet"
OFF_POLICY = "off_policy"
QUIET_SHOWN = 6
"""Charts of quiet signals; all others are in the table."""


def monitor_section(
    context: Context, workspace: Path, origins: Sequence[Origin]
) -> tuple[Section, list[str]]:
    """Show the latest day that was watched, with what cannot be read."""
    title = "Drift and freshness"
    path = workspace / MONITOR
    try:
        document = read_table(path)
        blocks = (
            [_none("recsys monitor", workspace, "No day was watched yet.")]
            if document is None
            else context.cache.get(
                ("monitor", str(path), context.exported),
                [path, workspace / DAYS],
                lambda: _monitored(context, document, workspace / DAYS, origins),
            )
        )
    except (UnreadableError, KeyError, TypeError, ValueError, OSError) as error:
        fault = f"{path} cannot be read ({error}); run recsys monitor"
        return Section(key="monitor", title=title, blocks=[]), [fault]
    return Section(key="monitor", title=title, blocks=blocks), []


def _monitored(
    context: Context, document: Mapping[str, Any], days: Path, origins: Sequence[Origin]
) -> list[Block]:
    lines = [str(line) for line in document["words"]]
    lines.insert(0, f"Watched at {document['time']}.")
    blocks: list[Block] = [
        Words(lines=lines, tone="bad" if document["alarm"] else "good"),
        _freshness(document, origins),
        _signals(document, origins),
    ]
    if days.is_file():
        figures = [
            figure
            for group in figures_of(document, pl.read_parquet(days)).values()
            for figure in group
        ]
        raised = {one["title"] for one in document["signals"] if one["alarm"]}
        alarms = [figure for figure in figures if figure.title in raised]
        quiet = [figure for figure in figures if figure.title not in raised]
        shown = [*alarms, *([] if context.exported else quiet[:QUIET_SHOWN])]
        blocks += [chart_of(figure, origins) for figure in shown]
    return blocks


def _freshness(document: Mapping[str, Any], origins: Sequence[Origin]) -> Table:
    return Table(
        key="freshness",
        title="Freshness of inputs",
        note="Older than the limit, which the past taught or the settings say, is an alarm.",
        columns=(
            Column(label="input"),
            Column(label="newest"),
            Column(label="age in days", numeric=True),
            Column(label="limit in days", numeric=True),
            Column(label="state"),
            Column(label="what it says"),
        ),
        rows=[
            (
                str(one["title"]),
                one["newest"],
                one["age_days"],
                one["limit_days"],
                "ALARM" if one["alarm"] else "quiet",
                str(one["words"]),
            )
            for one in document["freshness"]
        ],
        origins=origins,
    )


def _signals(document: Mapping[str, Any], origins: Sequence[Origin]) -> Table:
    order = ("alarm", "learning", "quiet", "not measured")
    signals = sorted(
        document["signals"],
        key=lambda one: order.index(one["state"]) if one["state"] in order else len(order),
    )
    return Table(
        key="signals",
        title=f"Signals of {document['day']}",
        note="Each is compared with the band that the days before it teach; alarms first.",
        columns=(
            Column(label="signal"),
            Column(label="group"),
            Column(label="state"),
            Column(label="value", numeric=True, format="metric"),
            Column(label="usual from", numeric=True, format="metric"),
            Column(label="usual to", numeric=True, format="metric"),
            Column(label="what it says"),
        ),
        rows=[
            (
                str(one["title"]),
                GROUPS.get(one["group"], str(one["group"])),
                "ALARM" if one["alarm"] else str(one["state"]),
                one["value"],
                one["low"],
                one["high"],
                str(one["words"]),
            )
            for one in signals
        ],
        origins=origins,
    )


def parity_section(workspace: Path, origins: Sequence[Origin]) -> tuple[Section, list[str]]:
    """Show the latest check of what was served against what batch computes."""
    path, title = workspace / PARITY, "Parity of serving"
    try:
        document = read_table(path)
        blocks = (
            [_none("recsys parity", workspace, "Served lists were not computed once more yet.")]
            if document is None
            else _parity(document, origins)
        )
    except (UnreadableError, KeyError, TypeError, ValueError) as error:
        fault = f"{path} cannot be read ({error}); run recsys parity"
        return Section(key="parity", title=title, blocks=[]), [fault]
    return Section(key="parity", title=title, blocks=blocks), []


def _parity(document: Mapping[str, Any], origins: Sequence[Origin]) -> list[Block]:
    recomputed, equal = int(document["recomputed"]), int(document["equal"])
    found = f"{equal:,} of {recomputed:,} recomputed lists are equal to the last bit"
    if recomputed:
        # Rounded down: 100% is said of all alone.
        found += f" ({int(10_000 * equal / recomputed) / 100:g}%)"
    lines = [
        f"{found}, of bundle {document['bundle']}, at {document['time']}.",
        f"{int(document['requests']):,} of {int(document['logged']):,} logged lists were taken.",
    ]
    lines += [
        f"{int(count):,} were not recomputed: {SKIPPED.get(reason, reason)}."
        for reason, count in document["skipped"].items()
    ]
    tone = "good" if recomputed and equal == recomputed else "bad" if recomputed else "note"
    blocks: list[Block] = [Words(lines=lines, tone=tone)]  # type: ignore[arg-type]
    if document["differences"]:
        blocks.append(
            Table(
                key="parity",
                title="What differs",
                note="Causes first; the others follow from them. Recomputed lists whose first "
                "difference it is, and the code that computes it.",
                columns=(
                    Column(label="what"),
                    Column(label="first in", numeric=True, format="count"),
                    Column(label="at most apart", numeric=True),
                    Column(label="computed by"),
                    Column(label="example"),
                ),
                rows=[
                    (str(one["what"]), one["first"], one["largest"], one["path"], one["example"])
                    for one in sorted(document["differences"], key=lambda one: -one["first"])
                ],
                origins=origins,
            )
        )
    return blocks


def off_policy_section(workspace: Path, origins: Sequence[Origin]) -> tuple[Section, list[str]]:
    """Show what policies would have earned, by the documents that were kept."""
    folder = workspace / OFF_POLICY
    blocks: list[Block] = []
    faults = []
    for name in names_in(folder):
        if not name.endswith(".json"):
            continue
        try:
            document = read_table(folder / name) or {}
            level = headings(document)
            blocks.append(Words(lines=[f"{name}:", *words_of(document)]))
            figure = replace(estimates_figure(document), key=f"off-policy-{name}")
            blocks.append(chart_of(figure, origins))
            blocks.append(
                Table(
                    key=f"estimates-{name}",
                    title="Estimates",
                    note="What each estimator says, and whether it can be trusted.",
                    columns=[Column(label=label) for label in level],
                    rows=[cells(document, row) for row in document["rows"]],
                    origins=origins,
                )
            )
        except (UnreadableError, KeyError, TypeError, ValueError, StopIteration) as error:
            faults.append(f"{folder / name} is no estimate of recsys ope ({error!r})")
    if not blocks:
        command = f"recsys ope --policy BUNDLE --log EXPORT/requests --json > {folder}/NAME.json"
        blocks.append(_none(command, None, "No estimate was kept."))
    return Section(key="off-policy", title="Off-policy estimates", blocks=blocks), faults


def _none(command: str, workspace: Path | None, words: str) -> Words:
    where = "" if workspace is None else f" --workspace {workspace}"
    if command == "recsys parity" and workspace is not None:
        where = f" --bundles {workspace / 'bundles'}"
    return Words(lines=[f"{words} Run: {command}{where}"], tone="note")
