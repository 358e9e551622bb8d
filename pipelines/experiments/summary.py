"""Experiments as a table of arms and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pipelines.experiments.analysis import AnalysisConfig, ArmResult, ExperimentResult, Metric
from pipelines.pages.charts import counts, numbers, shares, texts
from pipelines.pages.document import Table


def arms_table(result: ExperimentResult, outcome: str) -> Table:
    """Tabulate the arms."""
    return Table(
        key=f"arms-{result.name}",
        title=result.name,
        note="Differences are from the first arm; no interval means no claim yet.",
        columns=[
            *texts("arm"),
            *counts("users", "that count", "lists"),
            *numbers(outcome, format="metric"),
            *numbers("difference", "from", "to", format="signed"),
            *shares("share", note="Of the users, by the configuration."),
        ],
        rows=[
            (
                *(arm.name, arm.users, arm.settled, arm.lists, arm.outcome),
                *(arm.difference, arm.low, arm.high, arm.share),
            )
            for arm in result.arms
        ],
    )


def outcome_name(metric: Metric, event_type: str) -> str:
    """Format the outcome that is compared."""
    return {
        "per_user": f"{event_type} events per user",
        "per_list": f"{event_type} events per list",
        "share": f"share of users with a {event_type} event",
    }[metric]


def duration(window: timedelta) -> str:
    """Write a window in its largest whole unit, such as ``1 day``."""
    seconds = int(window.total_seconds())
    units = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
    unit, length = next(one for one in units if seconds % one[1] == 0)
    return f"{seconds // length} {unit}" + ("s" if seconds != length else "")


def sentences(result: ExperimentResult, config: AnalysisConfig, outcome: str) -> Iterator[str]:
    """Describe the result, reasons against trusting it first."""
    first, *others = result.arms
    if result.doubted:
        users = ", ".join(f"{arm.users:,}" for arm in result.arms)
        yield (
            f"Do not trust the comparison: arms have {users} users, which their shares make "
            f"unlikely (p = {result.ratio_p_value:.2g}). Find out which lists are lost, or "
            "whether weights were changed; then start again under another name."
        )
    elif result.ratio_p_value is None and others:
        yield (
            "The configuration does not have all of these arms, so their shares are not checked."
        )
    if result.moved_users:
        yield (
            f"{result.moved_users:,} users saw lists of several arms; they count for their first."
        )
    if not others:
        yield f"Only the arm {first.name} has been shown."
    for arm in others:
        yield _claim(first, arm, config, outcome)


def _claim(first: ArmResult, arm: ArmResult, config: AnalysisConfig, outcome: str) -> str:
    least = config.sequential.min_users
    if min(first.settled, arm.settled) < least:
        return (
            f"Too few users for a claim on {arm.name}: it needs {least:,} whose first list is "
            f"{duration(config.window)} old in each arm, there are {first.settled:,} in "
            f"{first.name} and {arm.settled:,} in {arm.name}."
        )
    if arm.low is None or arm.high is None:
        return f"No user of {first.name} differs from one of {arm.name} in {outcome} yet."
    bounds = f"{arm.low:+.4f} and {arm.high:+.4f}"
    if arm.low <= 0 <= arm.high:
        return (
            f"No difference between {arm.name} and {first.name} is shown yet; it is between "
            f"{bounds}."
        )
    way = "ahead of" if arm.low > 0 else "behind"
    return f"{arm.name} is {way} {first.name} in {outcome}: the difference is between {bounds}."
