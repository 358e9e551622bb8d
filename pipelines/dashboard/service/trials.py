"""Experiments of the request log: what arms have shown so far, with sequential intervals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import get_args

import polars as pl

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query
from pipelines.dashboard.service.request_log import Logged
from pipelines.dashboard.service.view import select
from pipelines.experiments.analysis import METRICS, AnalysisConfig, ExperimentResult, analyse
from pipelines.experiments.collected import EVENTS, Collected
from pipelines.experiments.page import experiment_blocks
from pipelines.experiments.wording import outcome_name
from pipelines.pages.document import Block, Control, Origin, Section, Words
from serving.online.events import EventType

WINDOWS = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
NONE = (
    "No list of an experiment was served. An experiment is a table [[experiments]] of the server's "
    "configuration (docs/control.md)."
)

WAITING = "Arms are compared once all of the log is read: a user counts by their first list."


def experiments_section(
    context: Context, folder: Path, logged: Logged, query: Query, origins: Sequence[Origin]
) -> tuple[Section, Sequence[Control]]:
    """Compare the arms of every experiment with its first.

    Raises:
        QueryError: The event, the metric or the window is none that is allowed.
    """
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
        blocks += experiment_blocks(result, config, outcome, origins)
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
    if logged.is_reading or logged.columns.arms.is_empty():
        return []
    happened = logged.events.filter(pl.col("event_type") == event).select(list(EVENTS))
    collected = Collected(logged.columns.arms, happened, logged.as_of_ms)
    return analyse(collected, config)
