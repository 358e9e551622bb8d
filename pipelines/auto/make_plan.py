"""Choose what an automatic run trains for its data, its machine and the time that is left.

The rules and what they were chosen by: docs/decisions/automatic-preset.md.
"""

from __future__ import annotations

from dataclasses import replace

from pipelines.auto.costs import Costs
from pipelines.auto.first_round import TRAINED, plan_first
from pipelines.auto.machine import Machine, TimedEncoder
from pipelines.auto.plan import Plan, Planner
from pipelines.auto.shape import DataShape
from pipelines.auto.trained_rounds import (
    ENCODER,
    content_part,
    is_hashed,
    plan_late,
    plan_postponed,
    plan_sequence,
    plan_two_tower,
)
from pipelines.config.toml import Table, set_value
from pipelines.engine.memory import GIB

DEFERRED = (
    ENCODER,
    "content.images",
    "search.enabled",
    "semantic_ids.method",
    *(f"{name}.enabled" for name in TRAINED),
)
"""Keys that the first round leaves to later ones where the configuration sets them."""
MIN_HELD_OUT = 30
"""Users with a held-out event, below which nothing can be chosen by validation."""
MIN_TRAINED_EVENTS = 500
"""Events below which a trained model has nothing to learn from."""
MIN_TRAINED_SECONDS = 15.0
"""Seconds left below which no training is considered."""


def make_plan(
    shape: DataShape,
    machine: Machine,
    user: Table,
    left: float,
    encoder: TimedEncoder | None = None,
) -> Plan:
    """Plan the rounds of a run for the keys that the user sets and the seconds that are left."""
    if set_value(user, ENCODER) == "none":
        shape = replace(shape, text_share=0.0, text_characters=0.0)
    planner = Planner(shape, Costs(shape, machine), user, left, encoder)
    check_memory(planner)
    plan_first(planner)
    if planner.left > MIN_TRAINED_SECONDS and can_train(planner):
        plan_sequence(planner)
        plan_two_tower(planner)
        plan_late(planner)
    plan_postponed(planner)
    defer(planner)
    return planner.plan()


def defer(planner: Planner) -> None:
    """Leave what the configuration switches on and takes long to the rounds after the first.

    Where there are none, only an encoder without the time for it is left out.
    """
    own = [key for key in DEFERRED if set_value(planner.user, key) not in (None, False)]
    if len(planner.rounds) == 1:
        texts, choices = content_part(planner)
        own = [ENCODER] if ENCODER in own and texts and is_hashed(choices) else []
    planner.rounds[0] = replace(planner.rounds[0], deferred=tuple(own))


def check_memory(planner: Planner) -> None:
    """Refuse a machine that no plan fits, before any work."""
    needed, free = planner.costs.bytes_needed(num_sources=4), planner.machine.memory_bytes
    if needed > free:
        raise ValueError(
            f"{free / GIB:.1f} GiB of memory are free and {needed / GIB:.1f} GiB are needed for "
            f"{planner.shape.num_events:,} events; free some, take a larger machine, or keep fewer "
            "events (filters.max_user_events, filters.min_item_events)"
        )


def can_train(planner: Planner) -> bool:
    """Return True if there is enough for a trained model to learn from; note why not."""
    shape = planner.shape
    if shape.num_events >= MIN_TRAINED_EVENTS and shape.num_held_out >= MIN_HELD_OUT:
        return True
    planner.notes.append(
        f"Nothing is trained: {shape.num_events:,} events of which {shape.num_held_out} users have "
        f"some to hold out; from {MIN_TRAINED_EVENTS} events and {MIN_HELD_OUT} such users on, "
        "models are"
    )
    return False
