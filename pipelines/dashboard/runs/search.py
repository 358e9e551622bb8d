"""Search and order many runs: by words, and by settings, tags and metrics with bounds.

movielens sequence.num_layers=2 num_layers>1 ndcg@10>=0.12 decision=refused
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Condition:
    """A bound on a value."""

    names: tuple[str, ...]
    operator: str
    wanted: str

    def holds(self, run: Run, values: Sequence[str]) -> bool:
        """Return whether any value of a run is within the bound."""
        return any(self._compares(value) for value in values)

    def _compares(self, value: str) -> bool:
        compare = OPERATORS[self.operator]
        try:
            return bool(compare(float(value), float(self.wanted)))
        except ValueError:
            if self.operator in ("=", "!="):
                return bool(compare(value.lower(), self.wanted.lower()))
            return False


def text_of(run: Run) -> str:
    """Write what words are searched in."""
    tags = " ".join(f"{name}={value}" for name, value in run.tags.items())
    known = (run.name, run.dataset, KINDS[run.kind], run.status, tags, run.config_digest)
    return " ".join(filter(None, known)).lower()


def values_of(run: Run, condition: Condition, split: str) -> list[str]:
    """Look up what a condition is about: settings, tags, a metric of the served list, or a column.

    No value is returned if a run has none of that name.
    """
    found = [run.config[name] for name in condition.names if name in run.config]
    found += [run.tags[name] for name in condition.names if name in run.tags]
    name = condition.names[0]
    for metric in (name, f"{split}/{run.served}/{name}"):
        if metric in run.metrics:
            found.append(str(run.metrics[metric]))
    if name in COLUMNS and (value := COLUMNS[name](run)) is not None:
        found.append(str(value))
    return found


def conditions_in(words: Sequence[str], runs: Sequence[Run]) -> list[Condition]:
    """Read the conditions among words; a setting may be named by its last part."""
    found = []
    for word in words:
        if match := CONDITION.match(word):
            name, operator, wanted = match.groups()
            ending = f".{name}"
            full = {
                key for run in runs[:NUM_SEARCHED] for key in run.config if key.endswith(ending)
            }
            found.append(Condition((name, *sorted(full)), operator, wanted))
    return found


def searched(context: Context, runs: Sequence[Run], search: str, split: str) -> list[Run]:
    """Keep the runs in which every word is found and every condition holds."""
    words = search.split()
    conditions = conditions_in(words, runs)
    plain = [word.lower() for word in words if not CONDITION.match(word)]
    found = list(runs)
    if plain:
        snapshot = context.stores.now()
        texts = context.cache.get(
            ("texts of runs", snapshot.number),
            (),
            lambda: {run.key: text_of(run) for run in snapshot.runs},
        )
        found = [run for run in runs if all(word in texts.get(run.key, "") for word in plain)]
    for condition in conditions:
        found = [run for run in found if condition.holds(run, values_of(run, condition, split))]
    return found


def ordered(runs: list[Run], value_of: Callable[[Run], Any], *, descending: bool) -> list[Run]:
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
