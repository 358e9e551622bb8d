"""What an automatic run trains, in which order, and why: a function of the data and the machine.

A plan is a few rounds. Each is a whole configuration, so each ends with a bundle that is served;
the first has the models without training, later ones add to it while the budget lasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipelines.config.toml import Table, merge

FIRST = "first bundle"
"""Name of the round without training."""
SEQUENCE, SEARCH, ENDS = "sequence model", "search", "blend, evaluation, bundle"
"""Names of parts whose seconds are looked up."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that is done, or left out."""

    name: str
    what: str
    """Sizes and settings in words."""
    why: str
    seconds: float
    """Estimated, or measured where it was timed."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One configuration that is run to its bundle."""

    name: str
    choices: Table
    """Over the preset and below what the user set."""
    parts: tuple[Part, ...]
    deferred: tuple[str, ...] = ()
    """Keys that the configuration sets and that this round leaves to a later one, for the time."""

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Rounds in order, and what none of them does."""

    rounds: tuple[Round, ...]
    left_out: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    """Decisions that are no part of their own, such as whether lists repeat the history."""

    def table(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_table(cls, table: dict[str, Any]) -> Plan:
        """Read what ``table`` gave."""
        rounds = tuple(
            Round(**one | {"parts": _parts(one["parts"]), "deferred": tuple(one["deferred"])})
            for one in table["rounds"]
        )
        return cls(rounds=rounds, left_out=_parts(table["left_out"]), notes=tuple(table["notes"]))


def _parts(tables: Iterable[dict[str, Any]]) -> tuple[Part, ...]:
    return tuple(Part(**one) for one in tables)


def following(before: Round, name: str, choices: Table, *parts: Part) -> Round:
    """Add to what a round does."""
    return Round(name=name, choices=merge(before.choices, choices), parts=parts)


def bundle_part(seconds: float) -> Part:
    """Describe what ends every round."""
    return Part(name=ENDS, what="", why="to be served", seconds=seconds)


def without_time(part: Part, left: float) -> Part:
    """Say that a part is left out for the time it takes."""
    return replace(part, why=f"{part.seconds:,.0f} s are needed, {max(0.0, left):,.0f} s are left")
