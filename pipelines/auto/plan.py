"""The plan of an automatic run: a function of the data, the machine and the time that is left.

A plan is a few rounds. Each is a whole configuration, so each ends with a bundle that is served;
the first has the models without training, later ones add to it while the budget lasts.

The seconds of each part were measured once on a machine whose matrix products ran at ``REFERENCE``,
and are scaled by the rate that is measured now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pipelines.auto.machine import Machine, TimedEncoder
from pipelines.auto.shape import DataShape
from pipelines.config.toml import Table, merge, set_value
from pipelines.engine.memory import GIB
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_weights.ease import ease_bytes, ease_seconds
from recsys.models.sequence.config import SequenceConfig
from recsys.training.passes import TrainingConfig

REFERENCE = 2.0e11
"""Operations a second of the machine that the seconds below were measured on: two cores."""
EASE_START = 1.5
"""Seconds to count which items share users, and to measure."""
ENCODER_SHARE = 0.45
"""Share of the measured rate that an encoder reaches."""
ENCODER_OPERATIONS = 21e6
"""Operations of MiniLM per token."""
CHARACTERS_PER_TOKEN = 4.5
ENCODER_START = 2.0
"""Seconds to load an encoder."""
COUNT_SECONDS = 7e-6
"""Seconds of one event in popularity and item-to-item, of which validation chooses the settings."""
SEARCH_SECONDS, SEARCH_CHARACTER = 6.0, 0.03
"""Seconds to fit a search by text, and those for each character of the mean text."""
SEARCH_ITEMS = 500
"""Items from which it takes that; fewer have as much less to learn from."""
LABEL_SECONDS = 6e-5
"""Seconds of one label in the two-tower, for short histories."""
SOFTMAX_SHARE = 0.5
"""Share of the measured rate that the scores of the sequence model's softmax reach."""
SCORE_SECONDS = 2.5e-9
"""Further seconds of one such score: exponentials, masks."""
BLOCK_SECONDS = 1.5e-5
"""Seconds of one event in one block of width 64."""
VALIDATION_SECONDS = 2.0
"""Seconds of one validation of a training, over 10,000 items."""
PLACE_SECONDS = 6e-9
"""Seconds of one score of one source of one measured query."""
LIST_SECONDS = 1.3e-4
"""Seconds to merge the list of one source of one query."""
STAGE_SECONDS = 0.4
"""Seconds of a stage that has little to do."""
PROCESS_BYTES = 1.2 * GIB
"""Bytes of a process with torch and polars, before it reads data."""
EVENT_BYTES = 300
SOURCE_QUERY_BYTES = 200 * 12
"""Bytes of the list of one source for one query."""


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of the parts of a run, for one log on one machine."""

    shape: DataShape
    machine: Machine

    @property
    def slower(self) -> float:
        """Times that this machine takes the seconds of the reference."""
        return REFERENCE / self.machine.flops

    def counting(self) -> float:
        """Popularity and item-to-item, or repeats, fitted on train and on everything."""
        return self.slower * 2 * (0.5 + COUNT_SECONDS * self.shape.num_events)

    def search(self) -> float:
        """Fit what searches by a text."""
        whole = SEARCH_SECONDS + SEARCH_CHARACTER * self.shape.text_characters
        return self.slower * whole * min(1.0, self.shape.num_items / SEARCH_ITEMS)

    def ease(self, num_items: int) -> float:
        """EASE regressed exactly on a number of items, for train and for everything."""
        return 2 * (self.slower * EASE_START + ease_seconds(num_items, self.machine.flops))

    def largest_ease(self, memory: float) -> int:
        """Return how many items EASE can regress exactly on in this memory."""
        fits = [number for number in range(0, 51_000, 500) if ease_bytes(number) <= memory]
        return fits[-1] if fits else 0

    def encoding(self) -> float:
        """MiniLM over every text."""
        texts = self.shape.text_share * self.shape.num_items
        tokens = texts * (2 + self.shape.text_characters / CHARACTERS_PER_TOKEN)
        rate = ENCODER_SHARE * self.machine.flops
        return self.slower * ENCODER_START + ENCODER_OPERATIONS * tokens / rate

    def sequence_pass(self, config: SequenceConfig) -> float:
        """One pass of the sequence model over all events, each of which is a label."""
        ranked = min(self.shape.num_items, config.num_uniform_negatives or self.shape.num_items)
        arithmetic = 6.0 * ranked * config.embedding_dim / (SOFTMAX_SHARE * self.machine.flops)
        scores = SCORE_SECONDS * ranked * config.num_members
        blocks = BLOCK_SECONDS * config.num_blocks * config.embedding_dim / 64
        return self.shape.num_events * (arithmetic + self.slower * (scores + blocks))

    def validations(self, training: TrainingConfig) -> float:
        """All validations of a training."""
        users = min(self.shape.num_held_out, training.validation_users) / 5_000
        one = VALIDATION_SECONDS * users * max(0.1, self.shape.num_items / 10_000)
        return self.slower * one * training.max_epochs / training.epochs_per_evaluation

    def two_tower(self, config: TwoTowerConfig, training: TrainingConfig) -> float:
        """Train a two-tower and refit it."""
        history = min(self.shape.mean_length, config.max_history) / 20
        label = LABEL_SECONDS * max(1.0, history)
        one = self.slower * label * self.shape.num_events * training.max_epochs
        return 2 * min(one, training.max_seconds or one)

    def measuring(self, num_sources: int, num_measured: int, num_blended: int) -> float:
        """Blend, evaluate, refit what counts, check and write a bundle, for at most these users."""
        held_out = self.shape.num_held_out
        queries = 2 * min(held_out, num_measured) + 2 * min(held_out, num_blended)
        each = PLACE_SECONDS * self.shape.num_items + LIST_SECONDS
        return self.slower * (10 * STAGE_SECONDS + queries * num_sources * each)

    def bytes_needed(self, num_sources: int) -> float:
        """Bytes that the process needs for any plan."""
        queries = min(self.shape.num_held_out, 20_000)
        lists = SOURCE_QUERY_BYTES * queries * num_sources
        return PROCESS_BYTES + EVENT_BYTES * self.shape.num_events + lists


SEQUENCE, SEARCH, LAST = "sequence model", "search", "blend, evaluation, bundle"
CONTENT = "content embeddings"
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
        why = f"{seconds:,.0f} s are needed (an estimate), {short}"
        self.left_out.append(replace(part, why=why, seconds=seconds))

    def plan(self) -> Plan:
        return Plan(
            rounds=tuple(self.rounds), left_out=tuple(self.left_out), notes=tuple(self.notes)
        )
