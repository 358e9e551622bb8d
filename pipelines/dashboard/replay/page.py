"""The page Replay: quality and cost of retraining policies, and quality by age of the models."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.replay.choice import choice_of, controls_of
from pipelines.dashboard.replay.read import backtests
from pipelines.pages.backtest.replayed import Backtest, Choice, Found
from pipelines.pages.backtest.sections import sections_of
from pipelines.pages.document import Page, Words

TITLE = "Replay"
NOTHING = (
    "There is no backtest below the dashboard's folders. A backtest replays a log: models are "
    "fitted on what was known at each moment and judged by what came next, with and without "
    "retraining. Make one for a run: recsys backtest runs/shop"
)


def build(context: Context, query: Query) -> Page:
    """Show the chosen backtests side by side."""
    known = backtests(context)
    if not known:
        return Page(title=TITLE, lead="Nothing was replayed yet.", blocks=[Words(lines=[NOTHING])])
    choice = choice_of(context, query, known)
    notices = list(choice.problems)
    if choice.is_empty:
        return _empty(context, choice, known, notices)
    notices += [words for one in choice.shown if (words := _unfinished(one))]
    notices += [
        f"{one.name} is left out: it has no numbers yet, or is of other data or another time than "
        f"{choice.first.name}, which are not comparable"
        for one in choice.left_out
    ]
    lead, sections = context.cache.get(
        ("replay", _key_of(choice), choice.metric, choice.policy, choice.row, choice.slice),
        (),
        lambda: sections_of(choice),
    )
    return Page(
        title=TITLE,
        lead=lead,
        blocks=sections,
        controls=controls_of(context, choice, known),
        notices=notices,
    )


def _empty(context: Context, choice: Choice, known: Sequence[Found], notices: list[str]) -> Page:
    words = choice.first.problem or (
        f"{choice.first.name} has answered no step yet: the warm-up and the first step come first. "
        "recsys backtest, called once more with the same configuration, goes on where it ended."
    )
    return Page(
        title=TITLE,
        lead="Nothing can be shown yet.",
        blocks=[Words(lines=[words])],
        controls=controls_of(context, choice, known),
        notices=notices,
    )


def _unfinished(one: Backtest) -> str:
    if one.finished:
        return ""
    planned, steps = one.document["num_planned"], one.document["steps"]
    rows = {(row["policy"], row["step"]) for row in one.document["rows"]}
    parts = ", ".join(
        f"{policy} {sum((policy, step['number']) in rows for step in steps)}"
        for policy in one.policies
    )
    return (
        f"{one.name} is not finished: {len(steps)} of {planned} steps have lists ({parts}). What "
        "they say is shown; slices, intervals and the served list come at the end. recsys "
        "backtest, called once more, goes on where it ended"
    )


def _key_of(choice: Choice) -> tuple[object, ...]:
    """Name what is shown: a backtest that has got further is another."""
    return tuple((one.key, str(one.found.time), len(one.document["rows"])) for one in choice.shown)


def exports(context: Context, query: Query) -> list[Query]:
    """Name the backtest of the run that a file is about.

    Raises:
        NotFoundError: It has none.
    """
    run = query.text("run")
    found = [one for one in backtests(context) if one.run == run]
    if not found:
        raise NotFoundError("the run has no backtest; recsys backtest makes one")
    return [Query.of(run=run, replays=found[0].key)]


ENTRY = PageEntry(name="replay", title=TITLE, build=build, exports=exports, keeps=("run",))
