"""Kinds of pairs whose right one and reason are known, and kinds of equal pairs.

Every pair is two workspaces of one planted world (`planted`). What the page has to name is given as
the kind of its reason and, for slices, the attribute and value that were planted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.query import Query
from tests.pipelines.dashboard.documents import dashboard, lines_of
from tests.pipelines.dashboard.planted import (
    Floats,
    Model,
    World,
    world,
    write_features,
    write_workspace,
)

NUM_USERS = 8_000
Right = Literal["A", "B", "neither"]
Shift = Callable[[World], Floats]


class Kind(NamedTuple):
    """A kind of pair: what is right, and what the page has to name."""

    name: str
    right: Right
    second: Callable[[int], Model]
    reason: str = ""
    """Kind of the reason that has to be named: overall, slice, coverage."""
    slice: tuple[str, ...] = ()
    """Planted attributes and values, such as ``category/games``; all in one named slice."""
    words: str = ""
    """Part of the reasons."""
    first: Callable[[int], Model] = lambda seed: Model(seed=seed)


def everyone(by: float) -> Shift:
    """Shift all log-ranks; above 0 is worse."""
    return lambda known: np.full(len(known.lengths), by)


def inside(where: Callable[[World], np.ndarray], by: float, others: float = 0.0) -> Shift:
    """Shift the log-ranks of some queries, and of the others."""
    return lambda known: np.where(where(known), by, others)


def made(place: int = 1, **settings: Any) -> Callable[[int], Model]:
    """Make the second model of a kind; the first with place 0."""
    return lambda seed: Model(seed=seed + place, **settings)


def shifted(shift: Shift, **others: float) -> Callable[[int], Model]:
    """Make a second model with a shift."""
    return made(shift=shift, **others)


def losing(name: str, where: Callable[[World], np.ndarray], by: float, others: float, *keys: str):
    """Make a kind whose second model loses a slice."""
    return Kind(name, "A", shifted(inside(where, by, others)), "slice", keys)


def late(known: World) -> np.ndarray:
    """Queries of the last fifth of the time."""
    times = known.times[known.offsets[2:] - 1]
    found: np.ndarray = times >= np.quantile(times, 0.8)
    return found


def returning(known: World) -> np.ndarray:
    """Queries more than 30 days after the user's event before."""
    last = known.offsets[2:] - 1
    found: np.ndarray = known.times[last] - known.times[last - 1] > 30 * 86_400
    return found


def tail(known: World) -> np.ndarray:
    """Held-out items of the least popular ones, which have a tenth of the events."""
    found: np.ndarray = known.target_share < 0.1
    return found


def flatter(drawn: Floats) -> Floats:
    """Lose in the first places what is won further down."""
    edge = np.log(9)
    found: Floats = np.where(drawn > edge, edge + 0.75 * (drawn - edge), drawn + 0.5)
    return found


NEW, HEAVY = "user_activity/new", "user_activity/heavy"
KINDS = (
    Kind("better for all", "B", shifted(everyone(-0.15)), "overall"),
    Kind("worse for all", "A", shifted(everyone(0.15)), "overall"),
    losing("better, new users ruined", lambda known: known.new_users, 0.8, -0.4, NEW),
    losing(
        "equal, a category lost",
        lambda known: known.target_category("games"),
        *(0.8, -0.12, "category/games"),
    ),
    losing(
        "a category lost for heavy users",
        lambda known: known.heavy_users & known.target_category("music"),
        *(2.5, 0.0, "category/music", HEAVY),
    ),
    losing("better by the head, tail lost", tail, 1.5, -0.2, "item_popularity/tail"),
    losing(
        "a domain lost", lambda known: known.target_domain("outlet"), *(0.6, -0.15, "domain/outlet")
    ),
    losing("the last days lost", late, 0.8, -0.15, "period/"),
    losing("returning users lost", returning, 1.0, -0.1, "recency/longer ago"),
    Kind("popularity collapse, more hits", "A", shifted(everyone(-0.12), spread=0.2), "coverage"),
    Kind(
        "wins at depth, loses in the first places",
        *("A", made(moved=flatter), "overall", (), "NDCG@10"),
    ),
    Kind(
        "new users gained",
        *("B", shifted(inside(lambda known: known.new_users, -0.5)), "slice", (NEW,)),
    ),
    Kind("catalogue opened, equal hits", "B", made(), "coverage", first=made(0, spread=0.2)),
)
EQUAL = (
    Kind("equal", "neither", made()),
    Kind(
        "equal, very different lists", "neither", made(own_noise=1.0), first=made(0, own_noise=1.0)
    ),
    Kind("equal, three times the time", "neither", made(seconds=2_000)),
)


class Found(NamedTuple):
    """What the page said of a pair."""

    answer: Right
    is_named: bool
    """Whether the planted reason is among those that decided."""
    lead: str
    reasons: str


def look_at(
    kind: Kind, seed: int, folder: Path, *, num_users: int = NUM_USERS, strength: float = 1.0
) -> Found:
    """Write a pair, build its page, and read the answer and the reasons."""
    shutil.rmtree(folder, ignore_errors=True)
    known = world(seed, num_users=num_users)
    write_features(known, folder / "features")
    for name, made in (("first", kind.first(10 * seed)), ("second", kind.second(10 * seed))):
        models = {"blend": replace(made, strength=strength)}
        write_workspace(folder / "runs" / name, known, models, features=folder / "features")
    context = dashboard(folder / "runs")
    keys = {run.name: run.key for run in context.stores.runs()}
    page = PAGES[0].build(context, Query.of(runs=(keys["first"], keys["second"])))
    answer: Right = "neither"
    if page.lead.startswith("Release B"):
        answer = "B"
    elif page.lead.startswith("Keep A"):
        answer = "A"
    reasons = lines_of(page, "why")
    return Found(answer, names(kind, page.lead, reasons), page.lead, reasons)


SAID = {"overall": "Over all queries B", "coverage": "of the catalogue"}
LABELS = {
    "user_activity": "user activity",
    "item_popularity": "item popularity",
    "period": "time of the query",
    "recency": "last event before the query",
}


def names(kind: Kind, lead: str, reasons: str) -> bool:
    """Whether the page names the planted reason, and the sentence at its top the planted slice."""
    if kind.right == "neither":
        return lead.startswith("No evidence")
    if kind.words not in reasons:
        return False
    if kind.reason != "slice":
        return SAID[kind.reason] in reasons
    wanted = []
    for part in kind.slice:
        group, _, value = part.partition("/")
        wanted.append(f"{LABELS.get(group, group)} {value}".strip().lower())
    return any(all(part in line.lower() for part in wanted) for line in reasons.split("\n"))
