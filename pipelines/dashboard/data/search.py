"""Search runs by words and settings, and order them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from pipelines.dashboard.workspaces.run import Run

NUM_SEARCHED = 1_000
"""Newest runs whose settings are searched for the full name of a setting."""
KINDS: dict[str, str] = {"workspace": "run", "bundle": "bundle"}


def _searched_text(run: Run) -> str:
    known = (run.name, run.dataset, KINDS[run.kind], run.status, *run.tags.values())
    return " ".join(filter(None, known)).lower()


def searched(runs: Sequence[Run], search: str) -> Sequence[Run]:
    """Keep the runs with every word, and with every setting or tag such as ``num_layers=2``."""
    for word in search.lower().split():
        name, is_setting, value = word.partition("=")
        if not is_setting:
            runs = [run for run in runs if word in _searched_text(run)]
            continue
        # A setting may be named by its last part.
        known = {key for run in runs[:NUM_SEARCHED] for key in (*run.config, *run.tags)}
        names = [key for key in known if key.lower() == name or key.lower().endswith(f".{name}")]
        runs = [
            run
            for run in runs
            if any(run.config.get(key, run.tags.get(key, "")).lower() == value for key in names)
        ]
    return runs


def ordered(runs: Sequence[Run], value_of: Callable[[Run], Any], *, descending: bool) -> list[Run]:
    """Order runs by their values, numbers or texts; those without one come last."""
    values = [(value_of(run), run) for run in runs]
    known = [
        (value.lower() if isinstance(value, str) else value, run)
        for value, run in values
        if value is not None and value != ""
    ]
    without = [run for value, run in values if value is None or value == ""]
    known.sort(key=itemgetter(0), reverse=descending)
    return [run for _, run in known] + without
