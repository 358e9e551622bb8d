"""The round that is served within a minute: models that count, or solve in closed form."""

from __future__ import annotations

from dataclasses import replace

from pipelines.auto.plan import BLENDED_FOR_EACH, EVALUATED_USERS, SEARCH, Planner, PlanPart
from pipelines.config.toml import Table
from recsys.models.names import EASE, NEXT_BASKET, REPEATS

FIRST = "first bundle"
TRAINED = ("two_tower_training", "sequence_training", "generative_training", "ranker_training")
"""Sections of the models that are trained."""
COUNTED = tuple(one.section for one in (EASE, REPEATS, NEXT_BASKET))
REPEATS_FROM = 0.1
"""Share of held-out events that repeat an item, from which on lists may repeat the history."""
POPULAR_ONLY = 15.0
"""Seconds below which only popularity and item-to-item are fitted."""
HASTY_USERS = 200
"""Users that are measured then."""
FIRST_SECONDS = 18.0
"""Seconds that EASE may take in the first round."""
POSTPONED_FROM = 5.0
"""Seconds from which text search waits for the next round."""
MEASURED_SHARE, MEASURED_SECONDS = 0.3, 8.0
"""Share of the time left, and seconds, that blending and measuring may take in this round."""
NUM_FIRST = 4
"""Sources of the first round."""
FEW_ITEMS = 4_000
"""Up to which validation chooses among settings of EASE; more take the usual ones."""
MIN_EXACT_ITEMS = 500
"""Items of EASE; fewer are not worth it."""
MEMORY_SHARE = 0.5
"""Share of the free memory that one part may take."""


def plan_first(planner: Planner) -> None:
    """Plan the first round, served within a minute: non-neural models."""
    users = users_measured(planner)
    choices = first_choices(planner, users)
    why = f"{planner.shape.num_events:,} events"
    what, seconds = "what is popular, and what occurs together", planner.costs.counting()
    parts = [PlanPart("popularity, item-to-item", what, why, seconds)]
    if planner.left < POPULAR_ONLY:
        planner.notes.append(
            f"{planner.left:,.0f} s are left, so only what is popular, and what occurs together, "
            f"is served; from {POPULAR_ONLY:.0f} s on there is more, and --budget 5m trains models"
        )
        planner.add_round(FIRST, choices, parts, 0.0)
        planner.left = 0.0
        return
    for describe in (ease_part, repeats_part, search_part):
        part, chosen = describe(planner)
        section = next(iter(chosen), "")
        if not section or planner.is_off(part, f"{section}.enabled"):
            continue
        if not chosen[section]["enabled"]:
            planner.left_out.append(part)
        elif part.seconds > POSTPONED_FROM and section == SEARCH:
            planner.postponed.append((part, chosen))
        else:
            parts.append(part)
            choices |= chosen
    planner.refit_seconds = sum(part.seconds for part in parts) / 2
    planner.add_round(FIRST, choices, parts, planner.measuring(len(parts) + 1, users))


def users_measured(planner: Planner) -> int:
    """Choose the number of measured users so that it takes a share of the time left."""
    for number in (EVALUATED_USERS, 1_000, 500):
        seconds = planner.measuring(NUM_FIRST, number)
        if seconds <= min(MEASURED_SECONDS, MEASURED_SHARE * planner.left):
            return number
    return HASTY_USERS


def first_choices(planner: Planner, users: int) -> Table:
    """Decide on the history, and switch all that is trained off."""
    shape, repeats = planner.shape, planner.shape.repeat_share >= REPEATS_FROM
    planner.notes.append(
        f"Lists {'may repeat' if repeats else 'leave out'} the history: {shape.repeat_share:.0%} "
        "of the held-out events repeat an item (evaluation.exclude_history)"
    )
    if shape.num_cold:
        planner.notes.append(
            f"{shape.num_cold:,} items of the catalogue have no event and can be "
            "recommended by their texts and columns (features.catalogue_only_items)"
        )
    off: Table = {"enabled": False}
    return {
        "evaluation": {"exclude_history": not repeats, "max_users": users},
        "blend": {"max_queries": BLENDED_FOR_EACH * users},
        "content": {"encoder": "none"},
        "semantic_ids": {"method": "none"},
        **dict.fromkeys((*TRAINED, *COUNTED), off),
        **({SEARCH: off} if shape.has_text else {}),
    }


def search_part(planner: Planner) -> tuple[PlanPart, Table]:
    """Describe the search by a text, if items have any."""
    what = "by a text: words, spelling, the user's own list"
    part = PlanPart(SEARCH, what, "items have texts", planner.costs.search())
    return part, {SEARCH: {"enabled": True}} if planner.shape.has_text else {}


def repeats_part(planner: Planner) -> tuple[PlanPart, Table]:
    """Describe the models of repeated items, if items repeat."""
    shape, what = planner.shape, "what a user takes again"
    why = f"{shape.repeat_share:.0%} of the held-out events do"
    part = PlanPart("repeats, next basket", what, why, planner.costs.counting())
    if shape.repeat_share < REPEATS_FROM:
        return part, {}
    basket = {"enabled": shape.has_times}
    return part, {REPEATS.section: {"enabled": True}, NEXT_BASKET.section: basket}


def ease_part(planner: Planner) -> tuple[PlanPart, Table]:
    """Size EASE: on the most frequent items, as many as memory and time allow."""
    costs, shape = planner.costs, planner.shape
    room = planner.machine.memory_bytes - costs.bytes_needed(num_sources=4)
    number = min(shape.num_known, costs.largest_ease(MEMORY_SHARE * room))
    seconds, least = planner.left / 3, min(MIN_EXACT_ITEMS, number)
    if not planner.is_served:
        seconds = min(FIRST_SECONDS, seconds)
    while number > least and costs.ease(number) > seconds:
        number = max(least, int(number * 0.8))
    what = f"on {number:,} items" + (
        "" if number == shape.num_known else f" of {shape.num_known:,}"
    )
    part = PlanPart("EASE", what, "the strongest model without training", costs.ease(number))
    if number == 0 or part.seconds > seconds:
        why = "its matrix does not fit into half of the free memory"
        if number:
            why = (
                f"{part.seconds:,.0f} s are needed for {number:,} items, more than the "
                f"{seconds:,.0f} s that the plan has for it; ease.enabled = true fits it"
            )
        return replace(part, why=why), {EASE.section: {"enabled": False}}
    # A weight of an item with few users is near 0, and each such item takes much time.
    chosen: Table = {"enabled": True, "exact_items": number, "extended_items": number}
    if shape.num_items > FEW_ITEMS:
        chosen["l2"] = [100.0]
    return part, {EASE.section: chosen}
