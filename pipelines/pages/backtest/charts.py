"""The charts of backtests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipelines.pages.backtest.freshness import Ageing
from pipelines.pages.backtest.numbers import Earned, Lead, PeerGap
from pipelines.pages.backtest.replayed import ALL, TWO_SIDED, At, Backtest, Choice
from pipelines.pages.charts.replays import Aged, Cost, ageing_chart, cost_chart
from pipelines.pages.charts.shapes import Band, Dot, banded_lines, interval_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.document import Chart, Origin
from pipelines.pages.figure import written
from pipelines.pages.wording import metric_label, metric_meaning, model_label

MAX_LINES = 9
X_TIME = "start of the step (UTC)"
BANDS = "Bands are 95% intervals over queries."
NEWCOMERS = {
    "users": "Slices are by whether the user had events before the step.",
    "items": "Slices are by the target with the fewest events before the step: new had none, "
    "rare fewer than 5, frequent 50 or more.",
}
Lines = Mapping[str, Sequence[At]]
"""By name of the series."""


def origins_of(shown: Sequence[Backtest]) -> list[Origin]:
    """Say what the numbers are of."""
    return [one.origin for one in shown]


def by_policy(choice: Choice) -> Chart:
    """Draw the chosen list by policy over the steps."""
    lines = {
        choice.name(one, policy): one.line(policy, choice.row, choice.metric, choice.slice)
        for one in choice.shown
        for policy in one.policies
    }
    return _lines(
        choice,
        "policies",
        f"Policies over time: {choice.list_name}",
        {name: line for name, line in lines.items() if line},
        choice.colors(),
        _bands(choice),
    )


def by_source(choice: Choice) -> Chart:
    """Draw the lists of a policy over the steps."""
    first = choice.first
    rows = first.rows(choice.policy)[:MAX_LINES]
    lines = {
        model_label(row): first.line(choice.policy, row, choice.metric, choice.slice)
        for row in rows
    }
    colors = {name: color_of(place) for place, name in enumerate(lines)}
    of = "" if len(choice.shown) == 1 else f", {first.name}"
    return _lines(
        choice,
        "sources",
        f"The served list and its sources, policy {choice.policy}{of}",
        {name: line for name, line in lines.items() if line},
        colors,
        _bands(choice),
        [first],
    )


def _bands(choice: Choice) -> str:
    if not choice.is_sliced:
        return BANDS
    return f"Only queries of the slice {choice.slice}; its values come without intervals."


def newcomers(choice: Choice) -> Iterator[Chart]:
    """Draw new and known users, and new, rare and frequent items, over the steps."""
    first = choice.first
    groups = {
        "users": [name for name in first.slices if name.endswith("users")],
        "items": [name for name in first.slices if name.endswith("items")],
    }
    for key, names in groups.items():
        lines = {name: first.line(choice.policy, choice.row, choice.metric, name) for name in names}
        lines = {name: line for name, line in lines.items() if line}
        if not lines:
            continue
        plain = Choice(**{**vars(choice), "slice": ALL})
        yield _lines(
            plain,
            f"new-{key}",
            f"New and known {key}, policy {choice.policy}: {plain.list_name}",
            lines,
            {name: color_of(place) for place, name in enumerate(lines)},
            NEWCOMERS[key],
            [first],
        )


def freshness(choice: Choice, found: Mapping[str, Ageing]) -> Chart:
    """Draw what stale models keep by their age."""
    colors = {name: color_of(place) for place, name in enumerate(found)}
    points, rows = [], []
    for name, ageing in found.items():
        for one, fitted in zip(ageing.measured, ageing.fitted, strict=True):
            error = TWO_SIDED * (one.error or 0.0)
            text = f"{name}: {one.age:,.1f} days, {one.share:.1%} of fresh models' quality"
            points.append(
                Aged(
                    age=one.age,
                    value=one.share,
                    low=max(0.0, one.share - error),
                    high=one.share + error,
                    fitted=float(fitted),
                    series=name,
                    note=text,
                )
            )
            rows.append((name, one.step, one.age, one.share, one.error, float(fitted)))
    return Chart(
        key="freshness",
        title=f"Quality by age of the models: {choice.list_name}",
        note=f"{metric_label(choice.metric)} of models that are never retrained, relative to fresh "
        "ones on the same queries, by their age. Bars are 95% intervals (too wide rather than too "
        "narrow: both lists' errors count as if independent); the line never rises with age.",
        description="Share of fresh models' quality by the age of the models.",
        spec=ageing_chart(
            points, colors, x_title="age of the models (days)", y_title="share of fresh quality"
        ),
        columns=("backtest", "step", "age, days", "share kept", "standard error", "fitted"),
        rows=rows,
        legend=colors if len(colors) > 1 else {},
        origins=origins_of(choice.shown),
    )


def costs(choice: Choice, found: Sequence[Earned]) -> Chart:
    """Draw quality against the time that training took."""
    colors = choice.colors()
    points = [
        Cost(
            label=one.policy if len(choice.shown) == 1 else one.name,
            series=one.name,
            seconds=one.seconds,
            value=one.value,
            low=one.low,
            high=one.high,
            note=f"{one.name}: {written(one.value)} for {one.seconds:,.0f} s of training",
        )
        for one in found
    ]
    label = metric_label(choice.metric)
    return Chart(
        key="cost",
        title=f"{label} by the cost of training",
        note="Training after the first step, which all policies share; further left is cheaper, "
        "further up better. Bars are 95% intervals over steps.",
        description=f"{label} by seconds of training: "
        + ", ".join(f"{one.name} {written(one.value)} for {one.seconds:,.0f} s" for one in found),
        spec=cost_chart(points, colors, x_title="training, all models (s)", y_title=label),
        columns=("policy", "seconds of training", label, "low", "high"),
        rows=[(one.name, one.seconds, one.value, one.low, one.high) for one in found],
        origins=origins_of(choice.shown),
    )


def peers(choice: Choice, gaps: Sequence[PeerGap]) -> Chart:
    """Draw how far the served list is ahead of each peer."""
    label = metric_label(choice.metric)
    dots = [
        Dot(
            label=one.peer,
            series="difference",
            mean=one.difference,
            low=one.low,
            high=one.high,
            note=f"{one.peer}: {one.value:.4f}, the served list is {one.difference:+.4f}",
        )
        for one in gaps
    ]
    return Chart(
        key="peers",
        title=f"The served list against peers, policy {choice.policy}",
        note=f"Differences of {label} on the same queries, paired by step; to the right of 0 the "
        "served list is better. Lines are 95% intervals over steps.",
        description=f"Difference to {len(gaps)} peers in {label}.",
        spec=interval_chart(
            dots,
            {"difference": color_of(0)},
            x_title=f"served list minus peer, {label}",
            labels=[one.peer for one in gaps],
            rule_at=0.0,
        ),
        columns=("peer", label, "served list minus peer", "low", "high", "steps"),
        rows=[
            (one.peer, one.value, one.difference, one.low, one.high, one.num_steps) for one in gaps
        ],
        origins=[choice.first.origin],
    )


def leads(choice: Choice, lead: Lead) -> Chart:
    """Draw how far the served list is ahead of the step's best source."""
    bands = [
        Band(
            day=_day(one.begin),
            mean=one.difference,
            low=one.difference - TWO_SIDED * one.error,
            high=one.difference + TWO_SIDED * one.error,
            note=f"step {one.step} ({one.begin[:10]}), {model_label(one.member)}: "
            f"{one.difference:+.4f}",
            series="lead",
        )
        for one in lead.steps
    ]
    label = metric_label(choice.first.document["metric"])
    return Chart(
        key="blend",
        title=f"The served list against the best source of each step, policy {choice.policy}",
        note=f"Difference of {label}, paired by query; below 0 the best source of the step was "
        "above it. Bands are 95% intervals.",
        description=f"Lead of the served list in {label} on {len(bands)} steps.",
        spec=banded_lines(
            bands,
            {"lead": color_of(0)},
            x_title=X_TIME,
            y_title=f"difference of {label}",
            zero_rule=True,
        ),
        columns=("step", "begin (UTC)", "best source", "difference", "standard error"),
        rows=[
            (one.step, one.begin, model_label(one.member), one.difference, one.error)
            for one in lead.steps
        ],
        origins=[choice.first.origin],
    )


def _lines(
    choice: Choice,
    key: str,
    title: str,
    lines: Lines,
    colors: Mapping[str, str],
    note: str,
    shown: Sequence[Backtest] | None = None,
) -> Chart:
    label = metric_label(choice.metric)
    colors = {name: color for name, color in colors.items() if name in lines}
    bands, rows = [], []
    for name, line in lines.items():
        for at in line:
            error = TWO_SIDED * (at.error or 0.0)
            around = "" if at.error is None else f" \u00b1 {written(error)}"
            bands.append(
                Band(
                    day=_day(at.begin),
                    mean=at.value,
                    low=max(0.0, at.value - error),
                    high=at.value + error,
                    note=f"{name}, step {at.step} ({at.begin[:10]}): {written(at.value)}{around}",
                    series=name,
                )
            )
            rows.append((at.step, at.begin, name, at.value, at.error, at.num_queries))
    return Chart(
        key=key,
        title=title,
        note=f"{label}: {metric_meaning(choice.metric)}. Higher is better. {note}",
        description=f"{label} of {', '.join(lines)} by the step's begin.",
        spec=banded_lines(bands, colors, x_title=X_TIME, y_title=label),
        columns=("step", "begin (UTC)", "list", label, "standard error", "queries"),
        rows=rows,
        legend=colors,
        origins=origins_of(choice.shown if shown is None else shown),
    )


def _day(begin: str) -> str:
    return begin.replace(" ", "T") + "Z"
