"""The page Replay: quality and cost of retraining policies, and quality by age of the models."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.replay import figures
from pipelines.dashboard.replay.choice import Choice, choice_of, controls_of
from pipelines.dashboard.replay.freshness import Ageing, ageing_of, words_of
from pipelines.dashboard.replay.numbers import (
    Earned,
    by_slice,
    earned,
    failures,
    key_of,
    lead_of,
    peer_gaps,
)
from pipelines.dashboard.replay.read import Backtest, Found, backtests
from pipelines.pages.backtest.words import POLICY_NAMES, SERVED, TWO_SIDED
from pipelines.pages.document import Block, Cell, Column, Page, Section, Table, Words
from pipelines.pages.wording import metric_label, model_label

TITLE = "Replay"
NOTHING = (
    "There is no backtest below the dashboard's folders. A backtest replays a log: models are "
    "fitted on what was known at each moment and judged by what came next, with and without "
    "retraining. Make one for a run: recsys backtest --config shop.toml --workspace runs/shop"
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
        ("replay", key_of(choice), choice.metric, choice.policy, choice.row, choice.slice),
        (),
        lambda: _sections(context, choice),
    )
    return Page(
        title=TITLE,
        lead=lead,
        blocks=sections,
        controls=controls_of(context, choice, known),
        notices=notices,
    )


def _sections(context: Context, choice: Choice) -> tuple[str, list[Section]]:
    """Draw everything; the charts take most of a page's time."""
    found = earned(context, choice)
    sections = (
        _over_time(choice),
        _freshness(choice, _ageings(choice)),
        _costs(choice, found),
        _slices(choice),
        _peers(context, choice),
        _blend(choice),
        _about(choice.first),
    )
    return _lead(choice, found), [one for one in sections if one.blocks]


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


def _lead(choice: Choice, found: Sequence[Earned]) -> str:
    """Say what each policy has, in a sentence."""
    own = [one for one in found if one.name == choice.name(choice.first, one.policy)]
    if not own:
        return f"{choice.first.name} has no values of {choice.list_name} yet."
    label, steps = metric_label(choice.metric), choice.first.document["steps"]
    parts = []
    for one in own:
        relative = f" ({one.relative - 1:+.1%})" if one.relative is not None else ""
        parts.append(
            f"{one.value:.4f}{relative if one is not own[0] else ''} {POLICY_NAMES[one.policy]}"
        )
    return (
        f"{label} of the {choice.list_name} from {steps[0]['begin'][:10]} on, "
        f"{len(steps)} steps: {', '.join(parts)}."
    )


def _over_time(choice: Choice) -> Section:
    return Section(
        key="time",
        title="Quality over time",
        note="Models are trained on the events before a step and evaluated on the events in it.",
        blocks=[figures.by_policy(choice), figures.by_source(choice)],
    )


def _ageings(choice: Choice) -> dict[str, Ageing]:
    found = {
        one.name: ageing_of(one, choice.metric, choice.row, choice.slice) for one in choice.shown
    }
    return {name: ageing for name, ageing in found.items() if ageing is not None}


def _freshness(choice: Choice, ageings: dict[str, Ageing]) -> Section:
    if not ageings:
        words = (
            "Quality by age needs a policy that retrains (full or incremental) beside never, with "
            "at least two steps; set backtest.policies."
        )
        return Section(key="freshness", title="Freshness", blocks=[Words(lines=[words])])
    several = len(ageings) > 1
    lines = [
        f"{name}: {line}" if several else line
        for name, ageing in ageings.items()
        for line in words_of(ageing)
    ]
    return Section(
        key="freshness",
        title="Freshness",
        blocks=[Words(lines=lines), figures.freshness(choice, ageings)],
    )


def _costs(choice: Choice, found: Sequence[Earned]) -> Section:
    if len(found) < 2:
        return Section(key="cost", title="Cost", blocks=[])
    label = metric_label(choice.metric)
    table = Table(
        key="costs",
        title="Policies: quality and cost",
        note="Means of the steps, each of the same weight"
        + (" by its queries" if choice.is_sliced else "")
        + "; relative to the policy that costs most.",
        columns=(
            Column(label="policy"),
            Column(label=label, numeric=True, format="metric"),
            Column(label="low", numeric=True, format="metric", note="95% interval over steps."),
            Column(label="high", numeric=True, format="metric", note="95% interval over steps."),
            Column(label="relative quality", numeric=True, format="percent"),
            Column(label="training", numeric=True, format="seconds", note="All models."),
            Column(label="relative cost", numeric=True, format="percent"),
            Column(
                label="gain per hour",
                numeric=True,
                format="signed",
                note=f"{label} above models that are never retrained, by hour of training.",
            ),
        ),
        rows=[
            (
                one.name,
                one.value,
                one.low,
                one.high,
                one.relative,
                one.seconds,
                one.cost,
                one.per_hour,
            )
            for one in found
        ],
        origins=figures.origins_of(choice.shown),
    )
    return Section(
        key="cost",
        title="Cost",
        note="Training time was measured on the machine that ran the backtest.",
        blocks=[figures.costs(choice, found), table],
    )


def _slices(choice: Choice) -> Section:
    first = choice.first
    blocks: list[Block] = [*figures.newcomers(choice)]
    values = by_slice(first, choice.row, choice.metric)
    if values:
        rows: list[Sequence[Cell]] = [
            (slice_, *(found.get(policy) for policy in first.policies))
            for slice_, found in values.items()
        ]
        blocks.append(
            Table(
                key="slices",
                title=f"Slices by policy: {'served list' if choice.row == SERVED else choice.row}",
                note=f"{metric_label(choice.metric)} over the queries of all steps. New items "
                "have no event before the step, so no list can contain them.",
                columns=(
                    Column(label="queries of"),
                    *(
                        Column(label=policy, numeric=True, format="metric")
                        for policy in first.policies
                    ),
                ),
                rows=rows,
                origins=[first.origin],
            )
        )
    return Section(key="slices", title="New users and new items", blocks=blocks)


def _peers(context: Context, choice: Choice) -> Section:
    first = choice.first
    blocks: list[Block] = []
    gaps = peer_gaps(context, choice)
    if gaps:
        whole = [one for one in gaps if one.num_steps == len(first.document["steps"])]
        best = (whole or gaps)[0]
        lines = [
            f"The best peer, {best.peer}, has {best.value:.4f}; the served list is "
            f"{'above' if best.difference >= 0 else 'below'} it by {abs(best.difference):.4f} "
            f"(95% interval {best.low:+.4f} to {best.high:+.4f}, {best.num_steps} steps)."
        ]
        blocks += [Words(lines=lines), figures.peers(choice, gaps)]
    failed = [
        f"{row}, {number} step{'s' * (number > 1)}: {text}" for row, number, text in failures(first)
    ]
    if failed:
        blocks.append(Words(lines=["Peers without lists:", *failed], tone="note"))
    return Section(
        key="peers",
        title="Peers on the same queries",
        note="Models of other libraries, same training events, same queries.",
        blocks=blocks,
    )


def _blend(choice: Choice) -> Section:
    lead = lead_of(choice)
    if lead is None or not lead.steps:
        return Section(key="blend", title="The blend against its best source", blocks=[])
    side = "above" if lead.difference >= 0 else "below"
    below = [one.step for one in lead.steps if one.difference < -one.error]
    words = (
        f"Over all steps the served list is {side} its best source, {model_label(lead.member)}, by "
        f"{abs(lead.difference):.4f} (\u00b1 {TWO_SIDED * lead.error:.4f}); "
        + (
            f"on {len(below)} of {len(lead.steps)} steps a source was above it by more than "
            "one standard error."
            if below
            else f"on none of {len(lead.steps)} steps was a source above it by more than one "
            "standard error."
        )
    )
    return Section(
        key="blend",
        title="The blend against its best source",
        blocks=[Words(lines=[words]), figures.leads(choice, lead)],
    )


def _about(first: Backtest) -> Section:
    document = first.document
    lines = [
        f"Data {document.get('data_set', 'unknown')}, seed {document.get('seed', 'unknown')}"
        + (f", replayed on {document['device']}" if "device" in document else "")
        + f"; folder {first.found.path}.",
        *([str(document["protocol"])] if "protocol" in document else []),
        *(f"{name}: {words}." for name, words in document["policies"].items()),
    ]
    return Section(key="about", title="How it was measured", blocks=[Words(lines=lines)])


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
