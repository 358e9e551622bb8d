"""The page of a backtest: quality and cost of retraining policies, and quality by age of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.pages.backtest_numbers import (
    Ageing,
    At,
    Earned,
    ReplayResults,
    earned,
    failures,
    measure_ageing,
    peer_gaps,
    weighted_mean,
)
from pipelines.pages.charts import (
    colors_of,
    counts,
    figure,
    interval_chart,
    line_chart,
    numbers,
    shares,
    texts,
)
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Column,
    Origin,
    Page,
    Section,
    Table,
    Words,
    with_origins,
)
from pipelines.pages.wording import metric_label, metric_meaning, model_label

MAX_LINES = 9
TWO_SIDED = 1.96
STATED = ("ageing", "all-peers", "lead")
"""Sections whose sentences state results."""


def backtest_page(document: Mapping[str, Any], origins: Sequence[Origin] = ()) -> Page:
    """Build the page of a finished backtest from ``backtest.json``."""
    results = ReplayResults(document)
    found, policy = earned(results), results.policies[0]
    parts: list[tuple[str, str, Sequence[Block]]] = [
        ("time", "Quality over time", _over_time(results, policy)),
        ("ageing", "Freshness", _freshness(results)),
        ("training", "Cost", _costs(results.metric, found)),
        ("every-list", "All lists", _lists(results)),
        ("newcomers", "New users and new items", _slices(results)),
        ("all-peers", "Peers on the same queries", _peers(results, policy)),
        ("lead", "The blend against its best source", _blend(document, policy)),
        ("about", "How it was measured", [_about(document)]),
    ]
    return Page(
        title=f"Backtest: {document['data_set']}",
        lead=_lead(results, found),
        blocks=[
            with_origins(Section(key=key, title=title, blocks=blocks), origins)
            for key, title, blocks in parts
            if blocks
        ],
    )


def state_results(page: Page) -> list[str]:
    """Return the sentences on a page of a backtest that state its results."""
    sections = [one for one in page.blocks if isinstance(one, Section) and one.key in STATED]
    blocks = [one for section in sections for one in section.blocks if isinstance(one, Words)]
    return [page.lead, *(line for one in blocks if one.tone == "plain" for line in one.lines)]


def _lead(results: ReplayResults, found: Sequence[Earned]) -> str:
    """State the quality of each policy in a sentence."""
    if not found:
        return f"{results.document['data_set']} has no values of the served list yet."
    parts = []
    for place, one in enumerate(found):
        relative = "" if one.relative is None or not place else f" ({one.relative - 1:+.1%})"
        parts.append(f"{one.value:.4f}{relative} {one.models}")
    steps = results.document["steps"]
    return (
        f"{metric_label(results.metric)} of the served list from {steps[0]['begin'][:10]} "
        f"on, {len(steps)} steps: {', '.join(parts)}."
    )


def _lines(metric: str, key: str, title: str, lines: Mapping[str, Sequence[At]]) -> Chart:
    """Draw the quality of lists over the steps."""
    label, rows = metric_label(metric), []
    for name, line in lines.items():
        for at in line:
            error = TWO_SIDED * (at.error or 0.0)
            ends = max(0.0, at.value - error), at.value + error
            begin = at.begin.replace(" ", "T") + "Z"
            rows.append((at.step, begin, name, at.value, at.error, at.num_queries, *ends))
    return figure(
        line_chart,
        key,
        title,
        f"{label}: {metric_meaning(metric)}. Models are trained on the events before a step and "
        "evaluated on the events in it. Bands are 95% intervals over queries.",
        [
            *numbers("step"),
            Column(label="begin", format="time"),
            *texts("list"),
            *numbers(label, "standard error", format="metric"),
            *counts("queries"),
            *numbers("low (95%)", "high (95%)", format="metric"),
        ],
        rows,
        "- x series y - - low high",
        colors={name: color for name, color in colors_of(list(lines)).items() if lines.get(name)},
        x_title="start of the step (UTC)",
        y_title=label,
        time=True,
        from_zero=True,
    )


def _over_time(results: ReplayResults, policy: str) -> list[Block]:
    """Draw the served list by policy over the steps, and the lists of the first policy."""
    by_policy = {one: results.line(one) for one in results.policies}
    by_source = {
        model_label(row): results.line(policy, row) for row in results.rows(policy)[:MAX_LINES]
    }
    title = f"The served list and its sources, policy {policy}"
    return [
        _lines(results.metric, "policies", "Policies over time: served list", by_policy),
        _lines(results.metric, "sources", title, by_source),
    ]


def _freshness(results: ReplayResults) -> list[Block]:
    """Draw the quality of stale models by their age, relative to fresh ones."""
    ageing = measure_ageing(results)
    if ageing is None:
        line = (
            "Quality by age needs a policy that retrains (full or incremental) next to never, with "
            "at least two steps; set backtest.policies."
        )
        return [Words(lines=[line])]
    rows = []
    for one, fitted in zip(ageing.measured, ageing.fitted.tolist(), strict=True):
        error = TWO_SIDED * (one.error or 0.0)
        ends = max(0.0, one.value - error), one.value + error
        rows.append((one.step, one.age, one.value, one.error, fitted, *ends))
    chart = figure(
        line_chart,
        "freshness",
        "Quality by age of the models: served list",
        f"{metric_label(results.metric)} of models that are never retrained, relative to fresh "
        "ones on the same queries, by their age. Bars are 95% intervals (too wide rather than too "
        "narrow: both lists' errors count as if independent); the line never rises with age.",
        [
            *numbers("step", "age, days"),
            *shares("share kept"),
            *numbers("standard error", format="metric"),
            *shares("fitted", "low (95%)", "high (95%)"),
        ],
        rows,
        "- x y - fitted low high",
        x_title="age of the models (days)",
        y_title="share of fresh quality",
        y_format=".0%",
        from_zero=True,
        rule_at=1,
        line="fitted",
    )
    return [Words(lines=_ageing_words(ageing)), chart]


def _ageing_words(ageing: Ageing) -> list[str]:
    """State the cost of staleness."""
    losses, youngest = ageing.losses(), ageing.measured[1].age
    lines = []
    if losses:
        made = "retrained" if ageing.fresh == "full" else "updated"
        parts = ", ".join(f"{name} {share:.1%}" for name, _, share in losses)
        lines.append(f"Loss in quality by age, against models {made} before every step: {parts}.")
    if losses and youngest > losses[0][1]:
        lines.append(
            f"The lowest age measured is {youngest:,.1f} days; below it the loss is interpolated "
            "linearly. Use shorter steps (backtest.step_days) to measure it."
        )
    days = ageing.days_to_lose(0.1)
    when = "the loss reaches 10% at no measured age"
    if days is not None:
        when = f"the loss reaches 10% after {days:,.0f} days"
    lost = 1 - ageing.kept(ageing.oldest)
    lines.append(f"Models {ageing.oldest:,.0f} days old have lost {lost:.1%}; {when}.")
    return lines


def _costs(metric: str, found: Sequence[Earned]) -> list[Block]:
    """Tabulate quality against the time that training took."""
    label = metric_label(metric)
    table = Table(
        key="cost",
        title=f"{label} by the cost of training",
        note="Training after the first step, which all policies share, on the machine that ran the "
        "backtest. Intervals are over steps. Shares are of the policy that costs most; the last "
        f"column is the {label} gained over models that are never retrained, by hour of training.",
        columns=[
            *texts("policy", "models"),
            *numbers("seconds of training", format="count"),
            *numbers(label, "low (95%)", "high (95%)", format="metric"),
            *shares("relative quality", "relative cost"),
            *numbers("gain per hour", format="signed"),
        ],
        rows=found,
    )
    return [table] if len(found) > 1 else []


def _slices(results: ReplayResults) -> list[Block]:
    """Tabulate new and known users, and new, rare and frequent items."""
    policies, rows = results.policies, []
    for name in dict.fromkeys(one["slice"] for one in results.document["slices"]):
        lines = [results.line(policy, slice_=name) for policy in policies]
        if any(lines):
            num_queries = max(sum(at.num_queries for at in line) for line in lines)
            rows.append((name, num_queries, *map(weighted_mean, lines)))
    table = Table(
        key="slices",
        title="Slices by policy: served list",
        note=f"{metric_label(results.metric)} over the queries of all steps. New users had no "
        "event before the step. Items are those of the target with the fewest events before it: "
        "new had none, so no list can contain them, rare fewer than 5, frequent 50 or more.",
        columns=[
            *texts("queries of"),
            *counts("queries"),
            *numbers(*policies, format="metric"),
        ],
        rows=rows,
    )
    return [table] if rows else []


def _peers(results: ReplayResults, policy: str) -> list[Block]:
    """Compare the served list with peers."""
    gaps, label = peer_gaps(results, policy), metric_label(results.metric)
    blocks: list[Block] = []
    if gaps:
        whole = [one for one in gaps if one.num_steps == len(results.document["steps"])]
        best = (whole or gaps)[0]
        side = "above" if best.difference >= 0 else "below"
        line = (
            f"The best peer, {best.peer}, has {best.value:.4f}; the served list is {side} it by "
            f"{abs(best.difference):.4f} (95% interval {best.low:+.4f} to {best.high:+.4f}, "
            f"{best.num_steps} steps)."
        )
        chart = figure(
            interval_chart,
            "peers",
            f"The served list against peers, policy {policy}",
            f"Models of other libraries, same training events: differences of {label} on the same "
            "queries, paired by step; to the right of 0 the served list is better. Lines are 95% "
            "intervals over steps.",
            [
                *texts("peer"),
                *numbers(label, format="metric"),
                *numbers("served list minus peer", "low (95%)", "high (95%)", format="signed"),
                *numbers("steps"),
            ],
            gaps,
            "label - mean low high -",
            x_title=f"served list minus peer, {label}",
            rule_at=0.0,
        )
        blocks += [Words(lines=[line]), chart]
    if failed := failures(results):
        blocks.append(Words(lines=["Peers without lists:", *failed], tone="note"))
    return blocks


def _blend(document: Mapping[str, Any], policy: str) -> list[Block]:
    """Compare the served list of a policy with its best source."""
    numbers_ = {one["number"] for one in document["steps"]}
    lead = next((one for one in document["leads"] if one["policy"] == policy), None)
    steps = [] if lead is None else [one for one in lead["steps"] if one["step"] in numbers_]
    if lead is None or not steps:
        return []
    below = [one for one in steps if one["difference"] < -one["standard_error"]]
    side = "above" if lead["difference"] >= 0 else "below"
    line = (
        f"Over all steps the served list is {side} its best source, {model_label(lead['member'])}, "
        f"by {abs(lead['difference']):.4f} (\u00b1 {TWO_SIDED * lead['standard_error']:.4f}); on "
        f"{len(below) or 'none'} of {len(steps)} steps a source was above it by more than one "
        "standard error."
    )
    return [Words(lines=[line])]


def _lists(results: ReplayResults) -> list[Block]:
    """Tabulate every list of every policy, and of peers, by every metric."""
    planned = len(results.document["steps"])
    measured = (one for one in results.document["rows"] if "error" not in one)
    metrics = [*next((one["metrics"] for one in measured), ())]
    columns = texts("policy", "list")
    for name in metrics:
        columns += numbers(metric_label(name), format="metric", note=metric_meaning(name))
        columns += texts(f"{metric_label(name)}, 95%", note="Bootstrap interval over users.")
    rows: list[Sequence[Cell]] = []
    for one in results.document["summary"]:
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
        columns=[*columns, *numbers("training", format="seconds"), *texts("steps")],
        rows=rows,
    )
    return [table] if rows else []


def _about(document: Mapping[str, Any]) -> Words:
    digests = " and ".join(
        f"{name} {document[key]}"
        for name, key in (("data", "data_digest"), ("settings", "config_digest"))
        if document.get(key)
    )
    device = f", replayed on {document['device']}" if "device" in document else ""
    lines = [
        f"Data {document.get('data_set', 'unknown')}, seed {document.get('seed', 'unknown')}"
        f"{device}{f'; digests: {digests}' if digests else ''}.",
        *([str(document["protocol"])] if "protocol" in document else []),
        *(f"{name}: {words}." for name, words in document["policies"].items()),
    ]
    return Words(lines=lines)
