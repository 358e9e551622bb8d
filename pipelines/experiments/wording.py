"""Results of an experiment in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pipelines.experiments.analysis import (
    AnalysisConfig,
    ArmResult,
    ExperimentResult,
    Metric,
)


def outcome_name(metric: Metric, event_type: str) -> str:
    """Format the outcome that is compared."""
    return {
        "per_user": f"{event_type} events per user",
        "per_list": f"{event_type} events per list",
        "share": f"share of users with a {event_type} event",
    }[metric]


def number(value: float | None, *, signed: bool = False) -> str:
    """Write a mean or a difference; a dash where there is none."""
    return "-" if value is None else f"{value:+.4f}" if signed else f"{value:.4f}"


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
        yield (
            f"Do not trust the comparison: arms have {_counts(result)} users, which their shares "
            f"make unlikely (p = {result.ratio_p_value:.2g}). Find out which lists are lost, or "
            "whether weights were changed; then begin anew under another name."
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
        yield _shown(first, arm, config, outcome)


def _shown(first: ArmResult, arm: ArmResult, config: AnalysisConfig, outcome: str) -> str:
    least = config.sequential.min_users
    if min(first.settled, arm.settled) < least:
        return (
            f"Too few users for a claim on {arm.name}: it needs {least:,} whose first list is "
            f"{duration(config.window)} old in each arm, there are {first.settled:,} in "
            f"{first.name} and {arm.settled:,} in {arm.name}."
        )
    if arm.low is None or arm.high is None:
        return f"No user of {first.name} differs from one of {arm.name} in {outcome} yet."
    bounds = f"{number(arm.low, signed=True)} and {number(arm.high, signed=True)}"
    if arm.low > 0 or arm.high < 0:
        way = "ahead of" if arm.low > 0 else "behind"
        return (
            f"{arm.name} is {way} {first.name} in {outcome}: the difference lies between {bounds}."
        )
    return (
        f"No difference between {arm.name} and {first.name} is shown yet; it lies between {bounds}."
    )


def _counts(result: ExperimentResult) -> str:
    return ", ".join(f"{arm.users:,}" for arm in result.arms)
