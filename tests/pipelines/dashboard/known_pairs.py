"""Twenty kinds of pairs whose right one and reason are known, and five kinds of equal pairs.

Every pair is two workspaces of one planted world (`planted`). What the page has to name is given as
the kind of its reason and, for slices, the attribute and value that were planted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from pipelines.dashboard.context import Context
from pipelines.dashboard.pages import PAGES
from pipelines.dashboard.query import Query
from pipelines.dashboard.workspaces.stores import Places, Stores
from tests.pipelines.dashboard.documents import lines_of
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


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of pair."""

    name: str
    right: Right
    reason: str = ""
    """Kind of the reason that has to be named: overall, slice, coverage, cost."""
    slice: tuple[str, ...] = ()
    """Planted attributes and values, such as ``category/games``; all in one named slice."""
    words: str = ""
    """Has to stand in the reasons."""
    first: Callable[[int], Model] = lambda seed: Model(seed=seed)
    second: Callable[[int], Model]


def everyone(by: float) -> Shift:
    """Shift all log-ranks; above 0 is worse."""
    return lambda known: np.full(len(known.lengths), by)


def inside(where: Callable[[World], np.ndarray], by: float, others: float = 0.0) -> Shift:
    """Shift the log-ranks of some queries, and of the others."""
    return lambda known: np.where(where(known), by, others)


def shifted(shift: Shift, **others: float) -> Callable[[int], Model]:
    """Make the second model of a kind."""
    return lambda seed: Model(seed=seed + 1, shift=shift, **others)


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


def deeper(drawn: Floats) -> Floats:
    """Move what is ranked below 15 up, and leave the places above."""
    edge = np.log(15)
    found: Floats = np.where(drawn > edge, edge + 0.7 * (drawn - edge), drawn)
    return found


def flatter(drawn: Floats) -> Floats:
    """Lose in the first places what is won further down."""
    edge = np.log(9)
    found: Floats = np.where(drawn > edge, edge + 0.75 * (drawn - edge), drawn + 0.5)
    return found


KINDS = (
    Kind(name="better for all", right="B", reason="overall", second=shifted(everyone(-0.15))),
    Kind(name="worse for all", right="A", reason="overall", second=shifted(everyone(0.15))),
    Kind(
        name="better, new users ruined",
        right="A",
        reason="slice",
        slice=("user_activity/new",),
        second=shifted(inside(lambda known: known.new_users, 0.8, -0.4)),
    ),
    Kind(
        name="better, heavy users ruined",
        right="A",
        reason="slice",
        slice=("user_activity/heavy",),
        second=shifted(inside(lambda known: known.heavy_users, 0.9, -0.25)),
    ),
    Kind(
        name="equal, a category lost",
        right="A",
        reason="slice",
        slice=("category/games",),
        second=shifted(inside(lambda known: known.target_category("games"), 0.8, -0.12)),
    ),
    Kind(
        name="a category lost for heavy users",
        right="A",
        reason="slice",
        slice=("category/music", "user_activity/heavy"),
        second=shifted(
            inside(lambda known: known.heavy_users & known.target_category("music"), 2.5)
        ),
    ),
    Kind(
        name="better, a category lost for new users",
        right="A",
        reason="slice",
        slice=("category/tools", "user_activity/new"),
        second=shifted(
            inside(lambda known: known.new_users & known.target_category("tools"), 2.0, -0.15)
        ),
    ),
    Kind(
        name="tail lost",
        right="A",
        reason="slice",
        slice=("item_popularity/tail",),
        second=shifted(inside(tail, 1.2)),
    ),
    Kind(
        name="better by the head, tail lost",
        right="A",
        reason="slice",
        slice=("item_popularity/tail",),
        second=shifted(inside(tail, 1.5, -0.2)),
    ),
    Kind(
        name="a domain lost",
        right="A",
        reason="slice",
        slice=("domain/outlet",),
        second=shifted(inside(lambda known: known.target_domain("outlet"), 0.6, -0.15)),
    ),
    Kind(
        name="a domain lost for new users",
        right="A",
        reason="slice",
        slice=("domain/outlet", "user_activity/new"),
        second=shifted(
            inside(lambda known: known.new_users & known.target_domain("outlet"), 1.5, -0.1)
        ),
    ),
    Kind(
        name="the last days lost",
        right="A",
        reason="slice",
        slice=("period/",),
        second=shifted(inside(late, 0.8, -0.15)),
    ),
    Kind(
        name="returning users lost",
        right="A",
        reason="slice",
        slice=("recency/longer ago",),
        second=shifted(inside(returning, 1.0, -0.1)),
    ),
    Kind(
        name="popularity collapse, equal hits",
        right="A",
        reason="coverage",
        second=lambda seed: Model(seed=seed + 1, spread=0.2),
    ),
    Kind(
        name="popularity collapse, more hits",
        right="A",
        reason="coverage",
        second=shifted(everyone(-0.12), spread=0.2),
    ),
    Kind(
        name="more cost for nothing",
        right="A",
        reason="cost",
        second=lambda seed: Model(seed=seed + 1, seconds=2_000),
    ),
    Kind(
        name="wins at depth alone",
        right="B",
        reason="overall",
        words="further down the list",
        second=lambda seed: Model(seed=seed + 1, moved=deeper),
    ),
    Kind(
        name="wins at depth, loses in the first places",
        right="A",
        reason="overall",
        words="NDCG@10",
        second=lambda seed: Model(seed=seed + 1, moved=flatter),
    ),
    Kind(
        name="new users gained",
        right="B",
        reason="slice",
        slice=("user_activity/new",),
        second=shifted(inside(lambda known: known.new_users, -0.5)),
    ),
    Kind(
        name="catalogue opened, equal hits",
        right="B",
        reason="coverage",
        first=lambda seed: Model(seed=seed, spread=0.2),
        second=lambda seed: Model(seed=seed + 1),
    ),
)
EQUAL = (
    Kind(name="equal", right="neither", second=lambda seed: Model(seed=seed + 1)),
    Kind(
        name="equal, nearly the same lists",
        right="neither",
        first=lambda seed: Model(seed=seed, own_noise=0.2),
        second=lambda seed: Model(seed=seed + 1, own_noise=0.2),
    ),
    Kind(
        name="equal, very different lists",
        right="neither",
        first=lambda seed: Model(seed=seed, own_noise=1.0),
        second=lambda seed: Model(seed=seed + 1, own_noise=1.0),
    ),
    Kind(
        name="equal, a fifth more time",
        right="neither",
        second=lambda seed: Model(seed=seed + 1, seconds=720),
    ),
    Kind(
        name="equal, somewhat wider lists",
        right="neither",
        second=lambda seed: Model(seed=seed + 1, spread=1.1),
    ),
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
    context = Context(stores=Stores(Places(roots=[folder / "runs"])))
    keys = {run.name: run.key for run in context.stores.runs()}
    page = PAGES[0].build(context, Query.of(runs=(keys["first"], keys["second"])))
    answer: Right = "neither"
    if page.lead.startswith("Release B"):
        answer = "B"
    elif page.lead.startswith("Keep A"):
        answer = "A"
    reasons = lines_of(page, "why")
    return Found(answer, names(kind, page.lead, reasons), page.lead, reasons)


SAID = {
    "overall": "Over all queries B",
    "coverage": "of the catalogue",
    "cost": "Cost: training",
}
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
