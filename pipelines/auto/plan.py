"""The plan of an automatic run: a function of the data, the machine and the time that is left.

A plan is a few rounds. Each is a whole configuration, so each ends with a bundle that is served;
the first has the models without training, later ones add to it while the budget lasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pipelines.auto.costs import Costs
from pipelines.auto.machine import Machine, TimedEncoder
from pipelines.auto.shape import DataShape
from pipelines.config.toml import Table, merge, set_value

SEQUENCE, SEARCH, LAST = "sequence model", "search", "blend, evaluation, bundle"
"""Names of parts whose seconds are looked up."""
EVALUATED_USERS = 2_000
"""Users whose held-out events are measured, at most: 0.003 of N@10 is then one standard error."""
PLANNED_ENCODER = "minilm+words"
"""Encoder of texts, if the configuration names none."""
BLENDED_FOR_EACH = 2
"""Users that the blend's weights are learned from, for each that is measured."""


@dataclass(frozen=True)
class PlanPart:
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
    """Over the preset and below the user's settings."""
    parts: tuple[PlanPart, ...]
    deferred: tuple[str, ...] = ()
    """Keys that the configuration sets and that this round leaves to a later one, for the time."""

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Rounds in order, and the parts that none of them has."""

    rounds: tuple[Round, ...]
    left_out: tuple[PlanPart, ...]
    notes: tuple[str, ...] = ()
    """Decisions that are no part of their own, such as whether lists repeat the history."""

    def table(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_table(cls, table: dict[str, Any]) -> Plan:
        """Read what ``table`` gave."""
        rounds = (
            Round(**one | {"parts": _parts(one["parts"]), "deferred": tuple(one["deferred"])})
            for one in table["rounds"]
        )
        left_out = _parts(table["left_out"])
        return cls(rounds=tuple(rounds), left_out=left_out, notes=tuple(table["notes"]))


def _parts(tables: Iterable[dict[str, Any]]) -> tuple[PlanPart, ...]:
    return tuple(PlanPart(**one) for one in tables)


@dataclass
class Planner:
    """Collects rounds while time is left."""

    shape: DataShape
    costs: Costs
    user: Table
    """Keys that the configuration sets itself, by section; they win over any choice."""
    left: float
    """Seconds to the end of the budget."""
    encoder: TimedEncoder | None = None
    """The encoder that is set, or else planned, if it was timed."""
    is_served: bool = False
    """True if there is a first bundle, so that nothing has to be done within a minute."""
    rounds: list[Round] = field(default_factory=list)
    postponed: list[tuple[PlanPart, Table]] = field(default_factory=list)
    """Parts that the first round leaves to the next, each with its choices."""
    refit_seconds: float = 0.0
    """Seconds of the models without training, which each round fits to all events again."""
    left_out: list[PlanPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def machine(self) -> Machine:
        return self.costs.machine

    def measuring(self, num_sources: int, users: int = EVALUATED_USERS) -> float:
        """Return the seconds to blend and measure sources for a number of users."""
        return self.costs.measuring(num_sources, users, BLENDED_FOR_EACH * users)

    def add_round(
        self, name: str, choices: Table, parts: Iterable[PlanPart], ends: float, *deferred: str
    ) -> None:
        """Add a round that keeps the choices of the one before; ``ends`` are its last seconds."""
        if self.rounds:
            for part_choices in (chosen for _, chosen in self.postponed):
                choices = choices | part_choices
            self.postponed.clear()
            choices = merge(self.rounds[-1].choices, choices)
        last = [PlanPart(LAST, "", "to be served", ends)] if ends else []
        one = Round(name=name, choices=choices, parts=(*parts, *last), deferred=deferred)
        self.rounds.append(one)
        self.left -= one.seconds

    def is_off(self, part: PlanPart, key: str) -> bool:
        """Return True if the configuration switches a part off; list it as left out."""
        if set_value(self.user, key) is not False:
            return False
        self.left_out.append(replace(part, why=f"{key} = false is set"))
        return True

    def leave_out(self, part: PlanPart, more: float = 0.0) -> None:
        """List a part that takes too long, with its seconds and ``more`` of them."""
        seconds = part.seconds + more
        left = f"{max(0.0, self.left):,.0f} s"
        short = f"{left} are left"
        if seconds <= self.left:
            short = f"more than its share of the {left} that are left"
        why = f"{seconds:,.0f} s are needed, {short}"
        self.left_out.append(replace(part, why=why, seconds=seconds))

    def plan(self) -> Plan:
        return Plan(
            rounds=tuple(self.rounds), left_out=tuple(self.left_out), notes=tuple(self.notes)
        )
