"""The page of a backtest: what each retraining policy gains over time, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.pages.charts import colors_of, counts, figure, line_chart, numbers, shares, texts
from pipelines.pages.document import Block, Cell, Chart, Column, Page, Section, Table, Words
from pipelines.pages.wording import metric_label, metric_meaning, model_label
from recsys.evaluation.config import POLICIES
from recsys.replay.folder import SERVED

POLICY_NAMES = {
    "full": "retrained before every step",
    "incremental": "updated before every step",
    "never": "never retrained",
}
STALE = "never"
TWO_SIDED = 1.96
HOUR = 3_600.0


class Earned(NamedTuple):
    """Quality and training time of a policy."""

    policy: str
    models: str
    """How the policy keeps its models."""
    seconds: float
    """Training time after the first step, which all policies share."""
    value: float
    low: float
    high: float
    relative: float | None
    """Share of the most expensive policy's quality."""
    cost: float | None
    """Share of the most expensive policy's cost."""
    per_hour: float | None
    """Quality gained over models that are never retrained, by hour of training."""


def backtest_page(document: Mapping[str, Any]) -> Page:
    """Build the page of a finished backtest from ``backtest.json``."""
    found = list_earned(document)
    parts: list[tuple[str, str, Sequence[Block]]] = [
        ("time", "Quality over time", [_over_time(document)]),
        ("training", "Cost", _costs(document["metric"], found)),
        ("every-list", "All lists", _lists(document)),
        ("about", "How it was measured", [_about(document)]),
    ]
    return Page(
        title=f"Backtest: {document['data_set']}",
        lead=_lead(document, found),
        blocks=[
            Words(lines=_decision(document, found)),
            *(
                Section(key=key, title=title, blocks=blocks)
                for key, title, blocks in parts
                if blocks
            ),
        ],
    )


def state_results(page: Page) -> list[str]:
    """Return the sentences on a page of a backtest that state its results."""
    decision = page.blocks[0]
    return [page.lead, *(decision.lines if isinstance(decision, Words) else ())]


def fit_seconds(document: Mapping[str, Any], policy: str) -> float:
    """Add up the fit times of a policy's models after the first step, which all share."""
    return sum(
        float(row["fit_seconds"])
        for row in document["rows"]
        if row["policy"] == policy and row["step"] > 1
    )


def list_earned(document: Mapping[str, Any]) -> list[Earned]:
    """List the policies by their cost, the most expensive first."""
    metric = document["metric"]
    served = {one["policy"]: one for one in document["summary"] if one["row"] == SERVED}
    seconds = {
        str(policy): fit_seconds(document, policy) for policy in POLICIES if policy in served
    }
    ordered = sorted(seconds, key=lambda policy: -seconds[policy])
    values = {policy: float(served[policy]["metrics"][metric]) for policy in ordered}
    found = []
    for policy in ordered:
        value, spent, first = values[policy], seconds[policy], ordered[0]
        low, high = served[policy]["time_intervals"][metric]
        gains = STALE in values and policy != STALE and spent
        found.append(
            Earned(
                policy=policy,
                models=POLICY_NAMES[policy],
                seconds=spent,
                value=value,
                low=low,
                high=high,
                relative=value / values[first] if values[first] else None,
                cost=spent / seconds[first] if seconds[first] else None,
                per_hour=(value - values[STALE]) * HOUR / spent if gains else None,
            )
        )
    return found


def _lead(document: Mapping[str, Any], found: Sequence[Earned]) -> str:
    """State the quality of each policy in a sentence."""
    if not found:
        return f"{document['data_set']} has no values of the served list yet."
    parts = []
    for place, one in enumerate(found):
        relative = "" if one.relative is None or not place else f" ({one.relative - 1:+.1%})"
        parts.append(f"{one.value:.4f}{relative} {one.models}")
    steps = document["steps"]
    return (
        f"{metric_label(document['metric'])} of the served list from {steps[0]['begin'][:10]} "
        f"on, {len(steps)} steps: {', '.join(parts)}."
    )


def _decision(document: Mapping[str, Any], found: Sequence[Earned]) -> list[str]:
    """State what cheaper policies keep, and how much the oldest models have lost."""
    lines = [
        f"Models {one.models} keep {one.relative:.1%} of the quality of models {found[0].models}, "
        f"at {one.cost:.1%} of the training time."
        for one in found[1:]
        if one.relative is not None and one.cost is not None
    ]
    stale = _served_rows(document, STALE)
    fresh = _served_rows(document, found[0].policy) if found[1:] else {}
    if shared := sorted(stale.keys() & fresh.keys()):
        metric, last = document["metric"], shared[-1]
        values = [float(rows[last]["metrics"][metric]) for rows in (stale, fresh)]
        age = float(stale[last]["model_age_days"])
        if age > 0 and values[1] > 0:
            lines.append(
                f"On the last step models {age:,.0f} days old have lost "
                f"{1 - values[0] / values[1]:.1%} against models {found[0].models}."
            )
    return lines


def _served_rows(document: Mapping[str, Any], policy: str) -> dict[int, Mapping[str, Any]]:
    """Return the rows of a policy's served list by step."""
    return {
        int(one["step"]): one
        for one in document["rows"]
        if (one["policy"], one["row"]) == (policy, SERVED)
    }


def _over_time(document: Mapping[str, Any]) -> Chart:
    """Draw the served list by policy over the steps."""
    metric, rows = document["metric"], list[tuple[Cell, ...]]()
    label, steps = metric_label(metric), {one["number"]: one for one in document["steps"]}
    policies = [policy for policy in POLICIES if policy in document["policies"]]
    for policy in policies:
        for number, one in sorted(_served_rows(document, policy).items()):
            value, error = float(one["metrics"][metric]), one["standard_errors"].get(metric)
            around = TWO_SIDED * (error or 0.0)
            begin = steps[number]["begin"].replace(" ", "T") + "Z"
            ends = max(0.0, value - around), value + around
            rows.append((number, begin, policy, value, error, steps[number]["num_queries"], *ends))
    return figure(
        line_chart,
        "policies",
        "Policies over time: served list",
        f"{label}: {metric_meaning(metric)}. Models are trained on the events before a step and "
        "evaluated on the events in it. Bands are 95% intervals over queries.",
        [
            *numbers("step"),
            Column(label="begin", format="time"),
            *texts("policy"),
            *numbers(label, "standard error", format="metric"),
            *counts("queries"),
            *numbers("low (95%)", "high (95%)", format="metric"),
        ],
        rows,
        "- x series y - - low high",
        colors=colors_of(policies),
        x_title="start of the step (UTC)",
        y_title=label,
        time=True,
        from_zero=True,
    )


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


def _lists(document: Mapping[str, Any]) -> list[Block]:
    """Tabulate every list of every policy by every metric."""
    summary = document["summary"]
    metrics = [*next((one["metrics"] for one in summary), ())]
    columns = texts("policy", "list")
    for name in metrics:
        columns += numbers(metric_label(name), format="metric", note=metric_meaning(name))
        columns += texts(f"{metric_label(name)}, 95%", note="Interval over users.")
    rows: list[Sequence[Cell]] = []
    for one in summary:
        row: list[Cell] = [one["policy"], model_label(one["row"])]
        for name in metrics:
            low, high = one["intervals"].get(name, (None, None))
            row += [one["metrics"][name], "" if low is None else f"{low:.4f} to {high:.4f}"]
        rows.append((*row, one["fit_seconds"]))
    table = Table(
        key="lists",
        title="Every list",
        note="Means over steps. The blend merges the lists of all sources into the served list.",
        columns=[*columns, *numbers("training", format="seconds")],
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
