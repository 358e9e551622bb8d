"""What a plan is collected in: data, costs, what the user sets, and the time that is left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipelines.auto.costs import Costs
from pipelines.auto.encoder import TimedEncoder
from pipelines.auto.machine import Machine
from pipelines.auto.plan import Part, Plan, Round
from pipelines.auto.shape import DataShape
from pipelines.config.toml import Table, set_value

EVALUATED_USERS = 2_000
"""Users whose held-out events are measured, at most: 0.003 of N@10 is then one standard error."""
PLANNED_ENCODER = "minilm+words"
"""What encodes texts where the configuration names no encoder."""
BLENDED_FOR_EACH = 2
"""Users that the blend's weights are learned from, for each that is measured."""
BLEND_USERS = BLENDED_FOR_EACH * EVALUATED_USERS


@dataclass
class Planner:
    """Collects rounds while time is left."""

    shape: DataShape
    costs: Costs
    user: Table
    """What the configuration sets itself, by section; it wins over any choice."""
    left: float
    """Seconds to the end of the budget."""
    encoder: TimedEncoder | None = None
    """The encoder that is set, or else planned, where it was timed."""
    rounds: list[Round] = field(default_factory=list)
    postponed: list[tuple[Part, Table]] = field(default_factory=list)
    """Parts that the first round leaves to the next, each with what it sets."""
    refit_seconds: float = 0.0
    """Of the models without training, which each round fits to all events again."""
    left_out: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def machine(self) -> Machine:
        return self.costs.machine

    def add(self, one: Round) -> None:
        self.rounds.append(one)
        self.left -= one.seconds

    def is_off(self, part: Part, key: str) -> bool:
        """Whether the configuration says no to a part, which is then listed as left out."""
        if set_value(self.user, key) is not False:
            return False
        self.left_out.append(replace(part, why=f"{key} = false is set"))
        return True

    def plan(self) -> Plan:
        return Plan(
            rounds=tuple(self.rounds), left_out=tuple(self.left_out), notes=tuple(self.notes)
        )
