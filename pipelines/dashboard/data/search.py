"""Search and order many runs: by words, and by settings, tags and metrics with bounds.

movielens sequence.num_layers=2 num_layers>1 ndcg@10>=0.12 decision=refused
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import eq, ge, gt, itemgetter, le, lt, ne
from typing import Any

from pipelines.dashboard.context import Context
from pipelines.dashboard.workspaces.run import Run

CONDITION = re.compile(r"^([^=<>!\s]+)(!=|>=|<=|=|>|<)(.*)$")
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": eq,
    "!=": ne,
    ">": gt,
    "<": lt,
    ">=": ge,
    "<=": le,
}
NUM_SEARCHED = 1_000
"""Newest runs whose settings are searched for the full name of a setting."""
KINDS: dict[str, str] = {"workspace": "run", "bundle": "bundle"}
COLUMNS: dict[str, Callable[[Run], object]] = {
    "status": lambda run: run.status,
    "kind": lambda run: KINDS[run.kind],
    "data": lambda run: run.dataset,
    "name": lambda run: run.name,
    "seconds": lambda run: run.seconds,
}
"""Columns that may be bounded besides settings, tags and metrics."""


def _compares(operator: str, value: str, wanted: str) -> bool:
    """Compare as numbers, else as texts, which can only be equal or not."""
    compare = OPERATORS[operator]
    try:
        return bool(compare(float(value), float(wanted)))
    except ValueError:
        return operator in ("=", "!=") and bool(compare(value.lower(), wanted.lower()))


def _searched_text(run: Run) -> str:
    tags = " ".join(f"{name}={value}" for name, value in run.tags.items())
    known = (run.name, run.dataset, KINDS[run.kind], run.status, tags)
    return " ".join(filter(None, known)).lower()


def _values(run: Run, names: Sequence[str]) -> list[str]:
    """List the values of a name: settings, tags, a metric of the served list, or a column."""
    found = [run.config[name] for name in names if name in run.config]
    found += [run.tags[name] for name in names if name in run.tags]
    for metric in (names[0], f"test/{run.served}/{names[0]}"):
        if metric in run.metrics:
            found.append(str(run.metrics[metric]))
    if names[0] in COLUMNS and (value := COLUMNS[names[0]](run)) is not None:
        found.append(str(value))
    return found


def searched(context: Context, runs: Sequence[Run], search: str) -> Sequence[Run]:
    """Keep the runs in which every word is found and every condition holds."""
    words = search.split()
    plain = [word.lower() for word in words if not CONDITION.match(word)]
    found = runs
    if plain:
        snapshot = context.stores.now()
        texts = context.cache.get(
            ("texts of runs", snapshot.number),
            (),
            lambda: {run.key: _searched_text(run) for run in snapshot.runs},
        )
        found = [run for run in runs if all(word in texts.get(run.key, "") for word in plain)]
    for name, operator, wanted in (m.groups() for word in words if (m := CONDITION.match(word))):
        # A setting may be named by its last part.
        full = {
            key for run in runs[:NUM_SEARCHED] for key in run.config if key.endswith(f".{name}")
        }
        names = (name, *sorted(full))
        found = [
            run
            for run in found
            if any(_compares(operator, value, wanted) for value in _values(run, names))
        ]
    return found


def ordered(runs: Sequence[Run], value_of: Callable[[Run], Any], *, descending: bool) -> list[Run]:
    """Order runs by their values, numbers or texts; those without one come last."""
    values = [value_of(run) for run in runs]
    known = [
        (value.lower() if isinstance(value, str) else value, place)
        for place, value in enumerate(values)
        if value is not None and value != ""
    ]
    without = [run for run, value in zip(runs, values, strict=True) if value is None or value == ""]
    known.sort(key=itemgetter(0), reverse=descending)
    return [runs[place] for _, place in known] + without
