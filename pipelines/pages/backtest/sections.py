"""The page of a backtest: quality and cost of retraining policies, and quality by age of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.pages.backtest import charts
from pipelines.pages.backtest.freshness import Ageing, ageing_of
from pipelines.pages.backtest.freshness import words_of as ageing_words
from pipelines.pages.backtest.numbers import (
    Earned,
    by_slice,
    earned,
    failures,
    lead_of,
    peer_gaps,
)
from pipelines.pages.backtest.replayed import (
    ALL,
    POLICY_NAMES,
    SERVED,
    TWO_SIDED,
    Backtest,
    Choice,
    Found,
)
from pipelines.pages.columns import counts, numbers, shares, texts
from pipelines.pages.document import Block, Cell, Page, Section, Table, Words
from pipelines.pages.wording import metric_label, metric_meaning, model_label

STATED = ("ageing", "all-peers", "lead")
"""Sections whose sentences state results."""


def backtest_page(document: Mapping[str, Any]) -> Page:
    """Build the page of a finished backtest from what ``backtest.json`` holds."""
    name = str(document["data_set"])
    found = Found(key="", name=name, path=None, run="", time=None, finished=True, judged=None)
    one = Backtest(found=found, document=document)
    choice = Choice(
        shown=(one,),
        left_out=(),
        problems=(),
        metric=document["metric"],
        policy=one.policies[0],
        row=SERVED,
        slice=ALL,
    )
    lead, sections = sections_of(choice)
    return Page(title=f"Backtest: {name}", lead=lead, blocks=sections)


def words_of(page: Page) -> list[str]:
    """Return the sentences on a page of a backtest that state its results."""
    return [
        page.lead,
        *(
            line
            for section in page.blocks
            if isinstance(section, Section) and section.key in STATED
            for block in section.blocks
            if isinstance(block, Words) and block.tone == "plain"
            for line in block.lines
        ),
    ]


def sections_of(choice: Choice) -> tuple[str, list[Section]]:
    """Build the answer in a sentence, and every section; charts take most of the time."""
    found = earned(choice)
    sections = (
        _over_time(choice),
        _freshness(choice, _ageings(choice)),
        _costs(choice, found),
        _lists(choice.first),
        _slices(choice),
        _peers(choice),
        _blend(choice),
        _steps(choice.first),
        _about(choice.first),
    )
    return _lead(choice, found), [one for one in sections if one.blocks]


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
        blocks=[charts.by_policy(choice), charts.by_source(choice)],
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
        return Section(key="ageing", title="Freshness", blocks=[Words(lines=[words])])
    several = len(ageings) > 1
    lines = [
        f"{name}: {line}" if several else line
        for name, ageing in ageings.items()
        for line in ageing_words(ageing)
    ]
    return Section(
        key="ageing",
        title="Freshness",
        blocks=[Words(lines=lines), charts.freshness(choice, ageings)],
    )


def _costs(choice: Choice, found: Sequence[Earned]) -> Section:
    if len(found) < 2:
        return Section(key="training", title="Cost", blocks=[])
    label = metric_label(choice.metric)
    table = Table(
        key="costs",
        title="Policies: quality and cost",
        note="Means of the steps, each of the same weight"
        + (" by its queries" if choice.is_sliced else "")
        + "; relative to the policy that costs most.",
        columns=[
            *texts("policy"),
            *numbers(label, format="metric"),
            *numbers("low", "high", format="metric", note="95% interval over steps."),
            *shares("relative quality"),
            *numbers("training", format="seconds", note="All models."),
            *shares("relative cost"),
            *numbers(
                "gain per hour",
                format="signed",
                note=f"{label} above models that are never retrained, by hour of training.",
            ),
        ],
        rows=[
            (
                *(one.name, one.value, one.low, one.high, one.relative),
                *(one.seconds, one.cost, one.per_hour),
            )
            for one in found
        ],
        origins=charts.origins_of(choice.shown),
    )
    return Section(
        key="training",
        title="Cost",
        note="Training time was measured on the machine that ran the backtest.",
        blocks=[charts.costs(choice, found), table],
    )


def _slices(choice: Choice) -> Section:
    first = choice.first
    blocks: list[Block] = [*charts.newcomers(choice)]
    values = by_slice(first, choice.row, choice.metric)
    if values:
        rows: list[Sequence[Cell]] = [
            (slice_, first.num_queries(slice_), *(found.get(policy) for policy in first.policies))
            for slice_, found in values.items()
        ]
        blocks.append(
            Table(
                key="slices",
                title=f"Slices by policy: {'served list' if choice.row == SERVED else choice.row}",
                note=f"{metric_label(choice.metric)} over the queries of all steps. New items "
                "have no event before the step, so no list can contain them.",
                columns=[
                    *texts("queries of"),
                    *counts("queries"),
                    *numbers(*first.policies, format="metric"),
                ],
                rows=rows,
                origins=[first.origin],
            )
        )
    return Section(key="newcomers", title="New users and new items", blocks=blocks)


def _peers(choice: Choice) -> Section:
    first = choice.first
    blocks: list[Block] = []
    gaps = peer_gaps(choice)
    if gaps:
        whole = [one for one in gaps if one.num_steps == len(first.document["steps"])]
        best = (whole or gaps)[0]
        lines = [
            f"The best peer, {best.peer}, has {best.value:.4f}; the served list is "
            f"{'above' if best.difference >= 0 else 'below'} it by {abs(best.difference):.4f} "
            f"(95% interval {best.low:+.4f} to {best.high:+.4f}, {best.num_steps} steps)."
        ]
        blocks += [Words(lines=lines), charts.peers(choice, gaps)]
    failed = [
        f"{row} failed on step {', '.join(map(str, steps))}: {text}"
        for row, steps, text in failures(first)
    ]
    if failed:
        blocks.append(Words(lines=["Peers without lists:", *failed], tone="note"))
    return Section(
        key="all-peers",
        title="Peers on the same queries",
        note="Models of other libraries, same training events, same queries.",
        blocks=blocks,
    )


def _blend(choice: Choice) -> Section:
    lead = lead_of(choice)
    if lead is None or not lead.steps:
        return Section(key="lead", title="The blend against its best source", blocks=[])
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
        key="lead",
        title="The blend against its best source",
        blocks=[Words(lines=[words]), charts.leads(choice, lead)],
    )


def _lists(first: Backtest) -> Section:
    """Show every list of every policy, and of peers, by every metric."""
    metrics, planned = first.metrics, len(first.document["steps"])
    columns = texts("policy", "list")
    for name in metrics:
        columns += numbers(metric_label(name), format="metric", note=metric_meaning(name))
        columns += texts(f"{metric_label(name)}, 95%", note="Bootstrap interval over users.")
    columns += [*numbers("training", format="seconds"), *texts("steps")]
    rows: list[Sequence[Cell]] = []
    for one in first.document["summary"]:
        row: list[Cell] = [one["policy"], model_label(one["row"])]
        for name in metrics:
            low, high = one["intervals"].get(name, (None, None))
            row += [one["metrics"][name], "" if low is None else f"{low:.4f} to {high:.4f}"]
        rows.append((*row, one["fit_seconds"], f"{one['num_steps']} of {planned}"))
    table = Table(
        key="lists",
        title="Every list",
        note="Means over steps. The blend merges the lists of all sources into the served list. A "
        "peer without lists for every step is not comparable with one that has them.",
        columns=columns,
        rows=rows,
        origins=[first.origin],
    )
    return Section(key="every-list", title="All lists", blocks=[table] if rows else [])


def _steps(first: Backtest) -> Section:
    labels = {
        "num_known_events": "training events",
        "num_events": "test events",
        "num_queries": "queries",
        "num_users": "users",
        "num_new_users": "new users",
        "num_new_items": "new items",
    }
    table = Table(
        key="steps",
        title="Steps",
        note="What was known before each step, and what was evaluated in it.",
        columns=[*numbers("step"), *texts("start (UTC)"), *counts(*labels.values())],
        rows=[
            (one["number"], one["begin"], *(one.get(key) for key in labels))
            for one in first.document["steps"]
        ],
        origins=[first.origin],
    )
    return Section(key="all-steps", title="Steps", blocks=[table])


def _about(first: Backtest) -> Section:
    document = first.document
    digests = " and ".join(
        f"{name} {document[key]}"
        for name, key in (("data", "data_digest"), ("settings", "config_digest"))
        if document.get(key)
    )
    lines = [
        f"Data {document.get('data_set', 'unknown')}, seed {document.get('seed', 'unknown')}"
        + (f", replayed on {document['device']}" if "device" in document else "")
        + (f"; digests: {digests}." if digests else "."),
        *([] if first.found.path is None else [f"Folder: {first.found.path}."]),
        *([str(document["protocol"])] if "protocol" in document else []),
        *(f"{name}: {words}." for name, words in document["policies"].items()),
    ]
    return Section(key="about", title="How it was measured", blocks=[Words(lines=lines)])
