"""Rows of the table of ``benchmark_quality.py``: means over seeds, by domain and over them.

Differences are of the same users. The standard error over seeds tells how far training by another
seed would lead; that over users, of one seed, how far other users would.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from tests.benchmarks.harness import Row

METRIC = "ndcg@10"
NEW_SECONDS = 300.0
"""That a useful adapter for 100 users may take: "minutes"."""

Lines = list[dict[str, Any]]
Seeds = list[int]


def rows_of(lines: Lines) -> tuple[list[Row], Seeds]:
    """Lay means over seeds out; only seeds of which every domain is whole count."""
    picked = [one for one in lines if one["kind"] == "picked"]
    names = list(dict.fromkeys(one["domain"] for one in picked))
    there = {(one["seed"], one["domain"]) for one in picked}
    whole = [
        seed
        for seed in sorted({seed for seed, _ in there})
        if all((seed, name) in there for name in names)
    ]
    rows = compared_rows([one for one in lines if one["seed"] in whole], names, whole)
    return rows + new_rows([one for one in lines if one["kind"] == "new"]), whole


def mean_and_error(values: list[float]) -> str:
    """Say a mean over seeds and its standard error."""
    if len(values) == 1:
        return f"{values[0]:.5f}, one seed"
    return f"{np.mean(values):.5f} +- {np.std(values, ddof=1) / np.sqrt(len(values)):.5f}"


def compared_rows(lines: Lines, names: list[str], seeds: Seeds) -> list[Row]:
    if not seeds:
        return []
    found = {
        (one["seed"], one["domain"], one["of"]): one for one in lines if one["kind"] == "picked"
    }
    kinds = list(dict.fromkeys(kind for _, _, kind in found))

    def value(kind: str, some: list[str], seed: int) -> float:
        return float(np.mean([found[seed, name, kind]["value"] for name in some]))

    rows = []
    for label, some in [*((name, [name]) for name in names), ("mean", names)]:
        for kind in kinds:
            by_seed = [value(kind, some, seed) for seed in seeds]
            rows.append(
                Row(
                    name=f"{label}: {kind} ({mean_and_error(by_seed)})",
                    value=float(np.mean(by_seed)),
                    unit=METRIC,
                )
            )
    best_shares = shares_of(lines)
    for kind in kinds:
        if kind.startswith("lora"):
            means = {one: [value(one, names, seed) for seed in seeds] for one in kinds}
            errors = {
                other: users_error([found[seed, name, kind]["above"][other] for name in names])
                for other in kinds
                if other != kind
                for seed in seeds[:1]
            }
            rows += goals_of(kind, means, errors, best_shares[kind])
    return rows


def users_error(above: list[list[float]]) -> float:
    """Join domains' standard errors of a mean difference into that of their mean."""
    return float(np.sqrt(sum(error**2 for _, error in above)) / len(above))


def shares_of(lines: Lines) -> dict[str, float]:
    """Find the largest share of the base's parameters that a picked adapter had."""
    shares: dict[str, list[float]] = defaultdict(list)
    picked = {(one["seed"], one["domain"], one["of"]): one for one in lines if "of" in one}
    for one in lines:
        chosen = picked.get((one["seed"], one.get("domain"), one["kind"]))
        if "share" in one and chosen is not None and one["value"] == chosen["value"]:
            shares[one["kind"]].append(one["share"])
    return {kind: max(some) for kind, some in shares.items()}


def goals_of(
    kind: str, means: dict[str, list[float]], errors: dict[str, float], share: float
) -> list[Row]:
    value, full, shared = (np.array(means[one]) for one in (kind, "full", "shared"))
    gained = float((full - shared).mean())
    of_full = f"(which is {mean_and_error(list(full - shared))})"
    if gained > 0:
        share_of_gain = float((value - shared).mean()) / gained
        rows = [
            Row(
                name=f"{kind}: share of full fine-tuning's gain {of_full}",
                value=share_of_gain,
                at_least=0.9,
            )
        ]
    else:
        # There is no share of a loss, so the goal is neither met nor missed.
        rows = [
            Row(
                name=f"{kind}: above full fine-tuning, whose gain is none {of_full}; "
                f"+- {errors['full']:.5f} over users",
                value=float((value - full).mean()),
                unit=METRIC,
                goal=">= 0.9 of its gain",
            )
        ]
    for other in ("shared", "own"):
        above = value - np.array(means[other])
        rows.append(
            Row(
                name=f"{kind}: above {other}, mean of domains ({mean_and_error(list(above))} over "
                f"seeds; of one, +- {errors[other]:.5f} over users)",
                value=float(above.mean()),
                unit=METRIC,
                goal="> 0",
                met=bool(above.mean() > 0),
            )
        )
    rows.append(
        Row(
            name=f"{kind}: parameters of the largest adapter, of the base's",
            value=share,
            at_most=0.05,
        )
    )
    return rows


def new_rows(lines: Lines) -> list[Row]:
    """Report each new domain by the plan that gained most when the other domains were new.

    One of 100 users has nobody to choose a plan by, so validation users of the others do.
    """
    rows: list[Row] = []
    names = list(dict.fromkeys(one["domain"] for one in lines))
    numbers = sorted({one["number"] for one in lines})
    reported = {
        number
        for number in numbers
        if {one["domain"] for one in lines if one["number"] == number} == set(names)
    }
    for name in names if len(names) > 1 else ():
        gains = {
            number: np.mean(
                [
                    one["others"] / one["others before"]
                    for one in lines
                    if one["number"] == number and one["domain"] != name
                ]
            )
            for number in reported
        }
        chosen = max(gains, key=lambda number: float(gains[number]))
        of_plan = {
            number: [one for one in lines if (one["domain"], one["number"]) == (name, number)]
            for number in reported
        }
        rows += rows_of_new(name, of_plan[chosen], of_plan)
    return rows


def rows_of_new(name: str, some: Lines, of_plan: dict[int, Lines]) -> list[Row]:
    base, adapter = (float(np.mean([one[key] for one in some])) for key in ("base", "value"))
    above = [one["above"]["base"] for one in some]
    users = float(np.mean([error for _, error in above]))
    seconds, plan = max(one["seconds"] for one in some), some[0]["plan"]
    name = f"new domain {name}, 100 users"
    others = [
        Row(
            name=f"{name}: {label}",
            value=float(np.mean([one["value"] for one in tries])),
            unit=METRIC,
            peer="base",
            ratio=float(np.mean([one["value"] for one in tries])) / base if base else None,
        )
        for label, tries in (
            (f"centred {one['plan']['centred']:g} and hardly trained", tries)
            if one["plan"]["learning_rate"] < 1e-8
            else (
                f"not centred, {one['plan']['epochs']:g} passes at "
                f"{one['plan']['learning_rate']:g}",
                tries,
            )
            for tries in of_plan.values()
            for one in tries[:1]
            if one["plan"]["learning_rate"] < 1e-8 or not one["plan"]["centred"]
        )
    ]
    return [
        Row(name=f"{name}: base", value=base, unit=METRIC),
        *others,
        Row(
            name=f"{name}: adapter (plan {some[0]['number']}: centred {plan['centred']:g}, "
            f"{plan['epochs']:g} passes at {plan['learning_rate']:g}; {len(some)} draws, gain "
            f"{mean_and_error([one for one, _ in above])}, +- {users:.5f} over users)",
            value=adapter,
            unit=METRIC,
            peer="base",
            ratio=adapter / base if base else None,
            goal="above the base by two standard errors",
            met=float(np.mean([one for one, _ in above])) > 2 * users,
        ),
        Row(
            name=f"{name}: training",
            value=seconds,
            unit="s",
            goal=f"<= {NEW_SECONDS:.0f} s",
            at_most=NEW_SECONDS,
        ),
    ]
