"""What of which backtests is shown: the page's parameters and the controls that change them."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.replay.read import read
from pipelines.pages.backtest.replayed import (
    ALL,
    POLICY_NAMES,
    SERVED,
    Backtest,
    Choice,
    Found,
)
from pipelines.pages.document import Control, Option
from pipelines.pages.wording import metric_label, model_label

MOST = 4
OFFERED = 40
LOOKED_AT = 5


def choice_of(context: Context, query: Query, known: Sequence[Found]) -> Choice:
    """Read the parameters; the newest finished backtest is shown where none is named.

    Args:
        known: At least one.

    Raises:
        NotFoundError: A backtest is not there.
        QueryError: A value is none of those allowed.
    """
    by_key = {one.key: one for one in known}
    keys = query.several("replays", at_most=MOST)
    for key in keys:
        if key not in by_key:
            raise NotFoundError(f"no backtest {key!r}: its folder is gone, or never was")
    if run := query.text("run"):
        # A run without a backtest of its own leaves the choice open.
        keys = keys or tuple(one.key for one in known if one.run == run)[:1]
    chosen = [read(context, by_key[key]) for key in keys] or [_newest(context, known)]
    first = next((one for one in chosen if one.has_numbers), chosen[0])
    shown = [first]
    shown += [
        one
        for one in chosen
        if one is not first and one.has_numbers and one.found.is_comparable(first.found)
    ]
    problems = tuple(one.problem for one in chosen if one.problem)
    left_out = tuple(one.found for one in chosen if one not in shown)
    metric = policy = slice_ = ""
    row = SERVED
    if first.has_numbers:
        policy = query.choice("policy", first.policies, first.policies[0])
        # Lists of later steps are blended last, so an unfinished one may have no served ones.
        rows = first.rows(policy) or first.rows(first.policies[0]) or (SERVED,)
        row = query.choice("model", rows, rows[0])
        metric = query.choice("metric", first.metrics, first.document["metric"])
        slice_ = query.choice("slice", (ALL, *first.slices), ALL)
    return Choice(
        shown=tuple(shown),
        left_out=left_out,
        problems=problems,
        metric=metric,
        policy=policy,
        row=row,
        slice=slice_,
    )


def _newest(context: Context, known: Sequence[Found]) -> Backtest:
    """Read the newest one that has numbers, a finished one first."""
    ordered = sorted(known, key=lambda one: not one.finished)[:LOOKED_AT]
    tried = []
    for found in ordered:
        tried.append(read(context, found))
        if tried[-1].has_numbers:
            return tried[-1]
    return tried[0]


def controls_of(context: Context, choice: Choice, known: Sequence[Found]) -> list[Control]:
    """Offer other backtests, metrics, policies, lists and slices."""
    first = choice.first
    several = Control(
        name="replays",
        label="Backtests",
        kind="several",
        value=choice.keys,
        options=_offered(choice, known),
        at_most=MOST,
        clears=("metric", "policy", "model", "slice"),
    )
    if choice.is_empty:
        return [] if context.exported else [several]
    found = [] if context.exported else [several]
    found += [
        _select(
            "metric", "Metric", choice.metric, {one: metric_label(one) for one in first.metrics}
        ),
        _select(
            "policy",
            "Policy of the sources",
            choice.policy,
            {one: f"{one}: {POLICY_NAMES[one]}" for one in first.policies},
        ),
        _select(
            "model",
            "List",
            choice.row,
            {one: model_label(one) for one in first.rows(choice.policy) or (choice.row,)},
        ),
    ]
    if first.slices:
        slices = {ALL: "all queries", **{one: one for one in first.slices}}
        found.append(_select("slice", "Queries", choice.slice, slices))
    return found


def _offered(choice: Choice, known: Sequence[Found]) -> list[Option]:
    """Put those that are comparable with what is shown first."""
    first, keys = choice.first.found, choice.keys
    ordered = sorted(known, key=lambda one: (one.key not in keys, not one.is_comparable(first)))
    return [
        Option(
            value=one.key,
            label=one.name if one.is_comparable(first) else f"{one.name} (other data or time)",
        )
        for one in ordered[:OFFERED]
    ]


def _select(name: str, label: str, value: str, options: dict[str, str]) -> Control:
    return Control(
        name=name,
        label=label,
        kind="select",
        value=value,
        options=[Option(value=one, label=text) for one, text in options.items()],
    )
