"""The page of a backtest: quality and cost of retraining policies, and quality by age of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.pages.backtest_numbers import (
    POLICY_NAMES,
    SERVED,
    Ageing,
    At,
    Backtest,
    Choice,
    Earned,
    average,
    earned,
    failures,
    measure_ageing,
    peer_gaps,
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
    tradeoff_chart,
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
X_TIME = "start of the step (UTC)"
STATED = ("ageing", "all-peers", "lead")
"""Sections whose sentences state results."""
NEWCOMERS = {
    "users": "Slices are by whether the user had events before the step.",
    "items": "Slices are by the target with the fewest events before the step: new had none, "
    "rare fewer than 5, frequent 50 or more.",
}
STEP_COLUMNS = {
    "num_known_events": "training events",
    "num_events": "test events",
    "num_queries": "queries",
    "num_users": "users",
    "num_new_users": "new users",
    "num_new_items": "new items",
}


def backtest_page(document: Mapping[str, Any]) -> Page:
    """Build the page of a finished backtest from ``backtest.json``."""
    name = str(document["data_set"])
    one = Backtest(name=name, document=document)
    choice = Choice(shown=(one,), metric=document["metric"], policy=one.policies[0])
    lead, sections = sections_of(choice)
    return Page(title=f"Backtest: {name}", lead=lead, blocks=sections)


def state_results(page: Page) -> list[str]:
    """Return the sentences on a page of a backtest that state its results."""
    sections = [one for one in page.blocks if isinstance(one, Section) and one.key in STATED]
    blocks = [one for section in sections for one in section.blocks if isinstance(one, Words)]
    return [page.lead, *(line for one in blocks if one.tone == "plain" for line in one.lines)]


def sections_of(choice: Choice) -> tuple[str, list[Section]]:
    """Build the answer in a sentence, and every section; charts take most of the time."""
    found, first = earned(choice), choice.first
    over_time = "Models are trained on the events before a step and evaluated on the events in it."
    measured_on = "Training time was measured on the machine that ran the backtest."
    peers = "Models of other libraries, same training events, same queries."
    of_shown, of_first = [one.origin for one in choice.shown], [first.origin]
    parts: list[tuple[str, str, str, Sequence[Block], list[Origin]]] = [
        ("time", "Quality over time", over_time, _over_time(choice), of_shown),
        ("ageing", "Freshness", "", _freshness(choice), of_shown),
        ("training", "Cost", measured_on, _costs(choice, found), of_shown),
        ("every-list", "All lists", "", _lists(first), of_first),
        ("newcomers", "New users and new items", "", _slices(choice), of_first),
        ("all-peers", "Peers on the same queries", peers, _peers(choice), of_first),
        ("lead", "The blend against its best source", "", _blend(choice), of_first),
        ("all-steps", "Steps", "", [_steps(first)], of_first),
        ("about", "How it was measured", "", [_about(first)], of_first),
    ]
    sections = [
        with_origins(Section(key=key, title=title, note=note, blocks=blocks), origins)
        for key, title, note, blocks, origins in parts
        if blocks
    ]
    return _lead(choice, found), sections


def _lead(choice: Choice, found: Sequence[Earned]) -> str:
    """State the quality of each policy in a sentence."""
    own = [one for one in found if one.name == choice.name(choice.first, one.policy)]
    if not own:
        return f"{choice.first.name} has no values of {choice.list_name} yet."
    steps = choice.first.document["steps"]
    parts = []
    for place, one in enumerate(own):
        relative = "" if one.relative is None or not place else f" ({one.relative - 1:+.1%})"
        parts.append(f"{one.value:.4f}{relative} {POLICY_NAMES[one.policy]}")
    return (
        f"{metric_label(choice.metric)} of the {choice.list_name} from {steps[0]['begin'][:10]} "
        f"on, {len(steps)} steps: {', '.join(parts)}."
    )


def _moment(begin: str) -> str:
    return begin.replace(" ", "T") + "Z"


def _lines(
    choice: Choice,
    words: tuple[str, str, str],
    lines: Mapping[str, Sequence[At]],
    colors: Mapping[str, str],
) -> Chart:
    """Draw the quality of lists over the steps; ``words`` are key, title and note."""
    label, rows = metric_label(choice.metric), []
    for name, line in lines.items():
        for at in line:
            error = TWO_SIDED * (at.error or 0.0)
            ends = max(0.0, at.value - error), at.value + error
            begin = _moment(at.begin)
            rows.append((at.step, begin, name, at.value, at.error, at.num_queries, *ends))
    key, title, note = words
    return figure(
        line_chart,
        key,
        title,
        f"{label}: {metric_meaning(choice.metric)}. Higher is better. {note}",
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
        colors={name: color for name, color in colors.items() if lines.get(name)},
        x_title=X_TIME,
        y_title=label,
        time=True,
        from_zero=True,
    )


def _over_time(choice: Choice) -> list[Block]:
    """Draw the chosen list by policy over the steps, and the lists of the chosen policy."""
    first = choice.first
    by_policy = {
        choice.name(one, policy): choice.line(one, policy)
        for one in choice.shown
        for policy in one.policies
    }
    by_source = {
        model_label(row): first.line(choice.policy, row, choice.metric, choice.slice)
        for row in first.rows(choice.policy)[:MAX_LINES]
    }
    bands = "Bands are 95% intervals over queries."
    if choice.is_sliced:
        bands = f"Only queries of the slice {choice.slice}; its values come without intervals."
    of = "" if len(choice.shown) == 1 else f", {first.name}"
    policies = ("policies", f"Policies over time: {choice.list_name}", bands)
    title = f"The served list and its sources, policy {choice.policy}{of}"
    return [
        _lines(choice, policies, by_policy, choice.colors()),
        _lines(choice, ("sources", title, bands), by_source, colors_of(list(by_source))),
    ]


def _freshness(choice: Choice) -> list[Block]:
    """Draw the quality of stale models by their age, relative to fresh ones."""
    found = {
        one.name: measure_ageing(one, choice.metric, choice.row, choice.slice)
        for one in choice.shown
    }
    ageings = {name: ageing for name, ageing in found.items() if ageing is not None}
    if not ageings:
        line = (
            "Quality by age needs a policy that retrains (full or incremental) next to never, with "
            "at least two steps; set backtest.policies."
        )
        return [Words(lines=[line])]
    several = len(ageings) > 1
    lines = [
        f"{name}: {line}" if several else line
        for name, ageing in ageings.items()
        for line in _ageing_words(ageing)
    ]
    rows = []
    for name, ageing in ageings.items():
        for one, fitted in zip(ageing.measured, ageing.fitted.tolist(), strict=True):
            error = TWO_SIDED * (one.error or 0.0)
            ends = max(0.0, one.share - error), one.share + error
            rows.append((name, one.step, one.age, one.share, one.error, fitted, *ends))
    chart = figure(
        line_chart,
        "freshness",
        f"Quality by age of the models: {choice.list_name}",
        f"{metric_label(choice.metric)} of models that are never retrained, relative to fresh "
        "ones on the same queries, by their age. Bars are 95% intervals (too wide rather than too "
        "narrow: both lists' errors count as if independent); the line never rises with age.",
        [
            *texts("backtest"),
            *numbers("step", "age, days"),
            *shares("share kept"),
            *numbers("standard error", format="metric"),
            *shares("fitted", "low (95%)", "high (95%)"),
        ],
        rows,
        "series - x y - fitted low high",
        colors=colors_of(list(ageings)),
        x_title="age of the models (days)",
        y_title="share of fresh quality",
        y_format=".0%",
        from_zero=True,
        rule_at=1,
        line="fitted",
    )
    return [Words(lines=lines), chart]


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


def _costs(choice: Choice, found: Sequence[Earned]) -> list[Block]:
    """Draw and tabulate quality against the time that training took."""
    if len(found) < 2:
        return []
    label = metric_label(choice.metric)
    chart = figure(
        tradeoff_chart,
        "cost",
        f"{label} by the cost of training",
        "Training after the first step, which all policies share; further left is cheaper, "
        "further up better. Bars are 95% intervals over steps.",
        [
            *texts("policy", "line"),
            *numbers("seconds of training", format="count"),
            *numbers(label, "low (95%)", "high (95%)", format="metric"),
        ],
        [
            (
                *(one.policy if len(choice.shown) == 1 else one.name, one.name, one.seconds),
                *(one.value, one.low, one.high),
            )
            for one in found
        ],
        "label series x y low high",
        colors=choice.colors(),
        x_title="training, all models (s)",
        y_title=label,
    )
    by_queries = " by its queries" if choice.is_sliced else ""
    table = Table(
        key="costs",
        title="Policies: quality and cost",
        note=f"Means of the steps, each of the same weight{by_queries}; relative to the policy "
        "that costs most.",
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
        rows=[one[:-1] for one in found],
    )
    return [chart, table]


def _slices(choice: Choice) -> list[Block]:
    """Draw new and known users, and new, rare and frequent items; tabulate all slices."""
    first, row, metric = choice.first, choice.row, choice.metric
    blocks: list[Block] = []
    for key, note in NEWCOMERS.items():
        names = [name for name in first.slices if name.endswith(key)]
        lines = {name: first.line(choice.policy, row, metric, name) for name in names}
        lines = {name: line for name, line in lines.items() if line}
        list_name = "served list" if row == SERVED else model_label(row)
        title = f"New and known {key}, policy {choice.policy}: {list_name}"
        if lines:
            words = (f"new-{key}", title, note)
            blocks.append(_lines(choice, words, lines, colors_of(list(lines))))
    rows: list[Sequence[Cell]] = []
    for name in first.slices:
        values = [
            average(first.line(policy, row, metric, name), by_queries=True)
            for policy in first.policies
        ]
        if any(value is not None for value in values):
            rows.append((name, first.num_queries(name), *values))
    if rows:
        table = Table(
            key="slices",
            title=f"Slices by policy: {'served list' if row == SERVED else row}",
            note=f"{metric_label(metric)} over the queries of all steps. New items have no event "
            "before the step, so no list can contain them.",
            columns=[
                *texts("queries of"),
                *counts("queries"),
                *numbers(*first.policies, format="metric"),
            ],
            rows=rows,
        )
        blocks.append(table)
    return blocks


def _peers(choice: Choice) -> list[Block]:
    """Compare the served list with peers."""
    first, gaps = choice.first, peer_gaps(choice)
    label = metric_label(choice.metric)
    blocks: list[Block] = []
    if gaps:
        whole = [one for one in gaps if one.num_steps == len(first.document["steps"])]
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
            f"The served list against peers, policy {choice.policy}",
            f"Differences of {label} on the same queries, paired by step; to the right of 0 the "
            "served list is better. Lines are 95% intervals over steps.",
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
    if failed := failures(first):
        blocks.append(Words(lines=["Peers without lists:", *failed], tone="note"))
    return blocks


def _blend(choice: Choice) -> list[Block]:
    """Compare the served list of the chosen policy with its best source."""
    begins = {one["number"]: one["begin"] for one in choice.first.document["steps"]}
    leads = (one for one in choice.first.document["leads"] if one["policy"] == choice.policy)
    lead = next(leads, None)
    if lead is None:
        return []
    steps = [one for one in lead["steps"] if one["step"] in begins]
    below = [one for one in steps if one["difference"] < -one["standard_error"]]
    side = "above" if lead["difference"] >= 0 else "below"
    above = f"{len(below) or 'none'} of {len(steps)} steps"
    line = (
        f"Over all steps the served list is {side} its best source, {model_label(lead['member'])}, "
        f"by {abs(lead['difference']):.4f} (\u00b1 {TWO_SIDED * lead['standard_error']:.4f}); on "
        f"{above} a source was above it by more than one standard error."
    )
    label = metric_label(choice.first.document["metric"])
    rows = []
    for one in steps:
        value, error = one["difference"], one["standard_error"]
        ends = value - TWO_SIDED * error, value + TWO_SIDED * error
        begin = _moment(begins[one["step"]])
        rows.append((one["step"], begin, model_label(one["member"]), value, error, *ends))
    chart = figure(
        line_chart,
        "blend",
        f"The served list against the best source of each step, policy {choice.policy}",
        f"Difference of {label}, paired by query; below 0 the best source of the step was above "
        "it. Bands are 95% intervals.",
        [
            *numbers("step"),
            Column(label="begin", format="time"),
            *texts("best source"),
            *numbers("difference", format="signed"),
            *numbers("standard error", format="metric"),
            *numbers("low (95%)", "high (95%)", format="signed"),
        ],
        rows,
        "- x - y - low high",
        x_title=X_TIME,
        y_title=f"difference of {label}",
        time=True,
        from_zero=True,
        rule_at=0.0,
    )
    return [Words(lines=[line]), chart] if steps else []


def _lists(first: Backtest) -> list[Block]:
    """Tabulate every list of every policy, and of peers, by every metric."""
    metrics, planned = first.metrics, len(first.document["steps"])
    columns = texts("policy", "list")
    for name in metrics:
        columns += numbers(metric_label(name), format="metric", note=metric_meaning(name))
        columns += texts(f"{metric_label(name)}, 95%", note="Bootstrap interval over users.")
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
        columns=[*columns, *numbers("training", format="seconds"), *texts("steps")],
        rows=rows,
    )
    return [table] if rows else []


def _steps(first: Backtest) -> Table:
    return Table(
        key="steps",
        title="Steps",
        note="Events known before each step, and events evaluated in it.",
        columns=[*numbers("step"), *texts("start (UTC)"), *counts(*STEP_COLUMNS.values())],
        rows=[
            (one["number"], one["begin"], *(one.get(key) for key in STEP_COLUMNS))
            for one in first.document["steps"]
        ],
    )


def _about(first: Backtest) -> Words:
    document = first.document
    digests = " and ".join(
        f"{name} {document[key]}"
        for name, key in (("data", "data_digest"), ("settings", "config_digest"))
        if document.get(key)
    )
    device = f", replayed on {document['device']}" if "device" in document else ""
    lines = [
        f"Data {document.get('data_set', 'unknown')}, seed {document.get('seed', 'unknown')}"
        f"{device}{f'; digests: {digests}' if digests else ''}.",
        *([] if first.path is None else [f"Folder: {first.path}."]),
        *([str(document["protocol"])] if "protocol" in document else []),
        *(f"{name}: {words}." for name, words in document["policies"].items()),
    ]
    return Words(lines=lines)
