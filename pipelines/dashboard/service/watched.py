"""Results for a workspace: drift, freshness, parity, experiments, off-policy estimates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import polars as pl

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query
from pipelines.dashboard.service.request_log import Logged
from pipelines.dashboard.workspaces.files import UnreadableError, names_in, read_table
from pipelines.engine.history import MONITOR, PARITY
from pipelines.experiments.analysis import METRICS, AnalysisConfig, ExperimentResult, analyse
from pipelines.experiments.collected import EVENTS, Collected
from pipelines.experiments.page import experiment_blocks, outcome_name
from pipelines.monitoring.page import monitoring_blocks
from pipelines.off_policy.page import estimate_blocks, summarize
from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import Block, Control, Section, Table, Words, select
from pipelines.parity.run import SKIPPED
from serving.online.events import EventType

WINDOWS = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
NONE = (
    "No list of an experiment was served. An experiment is a table [[experiments]] of the server's "
    "configuration (docs/control.md)."
)

WAITING = "Arms are compared once all of the log is read: a user counts by their first list."
DAYS = Path("monitoring") / "days.parquet"
OFF_POLICY = "off_policy"


def monitor_section(context: Context, workspace: Path) -> tuple[Section, list[str]]:
    """Show the latest day that was watched, and the faults of its files."""
    path, days = workspace / MONITOR, workspace / DAYS

    def draw(document: Mapping[str, Any]) -> list[Block]:
        return context.cache.get(
            ("monitor", str(path)), [path, days], lambda: _monitored(document, days)
        )

    none = f"No day was watched yet. Run: recsys monitor {workspace}"
    return _section(path, "monitor", "Drift and freshness", none, draw)


def parity_section(workspace: Path) -> tuple[Section, list[str]]:
    """Show the latest check of served lists against what batch computes."""
    none = f"Served lists were not computed once more yet. Run: recsys parity {workspace}"
    return _section(workspace / PARITY, "parity", "Parity of serving", none, _parity)


def _section(
    path: Path, key: str, title: str, none: str, draw: Callable[[Mapping[str, Any]], list[Block]]
) -> tuple[Section, list[str]]:
    """Draw a command's document; ``key`` is the command."""
    try:
        document = read_table(path)
        blocks = [Words(lines=[none], tone="note")] if document is None else draw(document)
    except (UnreadableError, KeyError, TypeError, ValueError, OSError) as error:
        fault = f"{path} cannot be read ({error}); run recsys {key}"
        return Section(key=key, title=title, blocks=[]), [fault]
    return Section(key=key, title=title, blocks=blocks), []


def _monitored(document: Mapping[str, Any], days: Path) -> list[Block]:
    lines = [f"Watched at {document['time']}.", *map(str, document["words"])]
    rows = pl.read_parquet(days) if days.is_file() else None
    return [
        Words(lines=lines, tone="bad" if document["alarm"] else "good"),
        *monitoring_blocks(document, rows),
    ]


def _parity(document: Mapping[str, Any]) -> list[Block]:
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
                columns=[
                    *texts("what"),
                    *counts("first in"),
                    *numbers("at most apart"),
                    *texts("computed by", "example"),
                ],
                rows=[
                    (str(one["what"]), one["first"], one["largest"], one["path"], one["example"])
                    for one in sorted(document["differences"], key=lambda one: -one["first"])
                ],
            )
        )
    return blocks


def off_policy_section(workspace: Path) -> tuple[Section, list[str]]:
    """Show what policies would have earned, by the documents that were kept."""
    folder = workspace / OFF_POLICY
    blocks: list[Block] = []
    faults = []
    for name in names_in(folder):
        if not name.endswith(".json"):
            continue
        try:
            document = read_table(folder / name) or {}
            blocks.append(Words(lines=[f"{name}:", *summarize(document)]))
            blocks += estimate_blocks(document, f"-{name}")
        except (UnreadableError, KeyError, TypeError, ValueError, StopIteration) as error:
            faults.append(f"{folder / name} is no estimate of recsys ope ({error!r})")
    if not blocks:
        command = f"recsys ope --policy BUNDLE --log EXPORT/requests --json > {folder}/NAME.json"
        blocks.append(Words(lines=[f"No estimate was kept. Run: {command}"], tone="note"))
    return Section(key="off-policy", title="Off-policy estimates", blocks=blocks), faults


def experiments_section(
    context: Context, folder: Path, logged: Logged, query: Query
) -> tuple[Section, Sequence[Control]]:
    """Compare the arms of every experiment with its first."""
    events: tuple[str, ...] = get_args(EventType)
    event = query.choice("event", events, "click")
    metric = query.choice("metric", METRICS, METRICS[0])
    window = query.choice("window", WINDOWS, "1d")
    config = AnalysisConfig(metric=metric, window=WINDOWS[window])  # type: ignore[arg-type]
    results = context.cache.get(
        ("experiments", str(folder), logged.number, logged.is_reading, event, metric, window),
        (),
        lambda: _results(logged, event, config),
    )
    outcome = outcome_name(config.metric, event)
    none = WAITING if logged.is_reading else NONE
    blocks: list[Block] = [] if results else [Words(lines=[none], tone="note")]
    for result in results:
        blocks += experiment_blocks(result, config, outcome)
    note = (
        "A user counts once, under the arm of their first list, when the window after it is over. "
        "Intervals hold however often one looks. Arms are taken to have equal shares; recsys "
        "experiments --config takes those of a configuration."
    )
    controls = (
        select("event", "Outcome", event, {one: one for one in events}),
        select("metric", "Counted", metric, {one: one.replace("_", " ") for one in METRICS}),
        select("window", "Window", window, {one: one for one in WINDOWS}),
    )
    section = Section(key="experiments", title="Experiments", blocks=blocks, note=note)
    return section, controls


def _results(logged: Logged, event: str, config: AnalysisConfig) -> Sequence[ExperimentResult]:
    # Arms are those of users' first lists, which are read last.
    if logged.is_reading or logged.counted.arms.is_empty():
        return []
    happened = logged.events.filter(pl.col("event_type") == event).select(list(EVENTS))
    collected = Collected(logged.counted.arms, happened, logged.as_of_ms)
    return analyse(collected, config)
