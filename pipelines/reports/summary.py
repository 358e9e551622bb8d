"""What a report says in sentences: the headline, how it was measured, what to be careful about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pipelines.reports.report_data import ReportData
from pipelines.reports.wording import model_label, parted
from recsys.evaluation.significance import Comparison

FEW_USERS = 500
MANY_LOOKS = 10
BASELINE = "popularity"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The answer, for who reads nothing else."""

    best: str
    """Best model on validation, so that choosing it did not use the test split."""
    verdict: str
    """How it stands against the others on test."""
    value: float
    low: float
    high: float
    """The primary metric on test, with its interval."""
    found: float | None
    """Share of users with a held-out item in their list, on test."""
    k: int
    times_baseline: float | None


def best_model(data: ReportData) -> str:
    """Name the model with the best primary metric on validation; the first of equal ones."""
    return max(data.models, key=lambda model: data.interval(model, "validation").mean)


def turned(test: Comparison) -> Comparison:
    """Tell a paired test the other way round: candidate and baseline change places."""
    return test._replace(
        candidate=test.baseline,
        baseline=test.candidate,
        candidate_mean=test.baseline_mean,
        baseline_mean=test.candidate_mean,
        difference=-test.difference,
        low=-test.high,
        high=-test.low,
    )


def comparisons(data: ReportData, order: str | None = None) -> list[Comparison]:
    """Return the paired tests on the primary metric of the test split, the better model first."""
    found = data.measured("test", order).comparisons
    tests = [test for test in found if test.metric == data.primary]
    return [turned(test) if test.difference < 0 else test for test in tests]


def winners_told(data: ReportData) -> str:
    """Sum up who wins: the model that alone is best most often, and what nobody finds."""
    everyone = data.wins.slices[0]
    model = max(everyone.alone, key=lambda name: everyone.alone[name])
    return (
        f"The {model_label(model)} alone ranks the item best for {everyone.alone[model]:.0%}, "
        f"several do equally well for {everyone.shared:.0%}, and no model finds "
        f"{everyone.nobody:.0%}."
    )


def told_together(names: list[str]) -> str:
    """Join names as a person lists them."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def verdict_of(data: ReportData, best: str) -> str:
    """Say what the paired tests show for the best model."""
    beaten: list[str] = []
    level: list[str] = []
    ahead: list[str] = []
    for test in comparisons(data):
        sides = (test.candidate, test.baseline)
        if best not in sides:
            continue
        other = next(model for model in sides if model != best)
        gain = test.difference if sides[0] == best else -test.difference
        group = (beaten if gain > 0 else ahead) if test.significant else level
        group.append(model_label(other))
    told = []
    if beaten:
        told.append(f"It is better than {told_together(beaten)}.")
    if level:
        told.append(f"No difference from {told_together(level)} was shown.")
    if ahead:
        told.append(f"On test, {told_together(ahead)} did better.")
    return " ".join(told)


def headline(data: ReportData) -> Headline:
    """Sum the evaluation up."""
    best = best_model(data)
    interval = data.interval(best, "test")
    _, k = parted(data.primary)
    baseline = data.interval(BASELINE, "test").mean if BASELINE in data.models else 0.0
    return Headline(
        best=best,
        verdict=verdict_of(data, best),
        value=interval.mean,
        low=interval.low,
        high=interval.high,
        found=data.metrics[data.order]["test"][best].get(f"hit_rate@{k}"),
        k=int(k or 0),
        times_baseline=interval.mean / baseline if baseline and best != BASELINE else None,
    )


def day_of(text: str | None) -> str | None:
    """Write the day of an ISO time for a person."""
    if text is None:
        return None
    day = datetime.fromisoformat(text)
    return f"{day.day} {day:%B %Y}"


def time_span(data: ReportData) -> str:
    """Say from when to when the events are; that there are no times where there are none."""
    first, last = day_of(data.features["first_time"]), day_of(data.features["last_time"])
    if first is None or last is None:
        return "no times, only an order"
    return first if first == last else f"{first} to {last}"


def protocol(data: ReportData) -> list[str]:
    """Say in plain sentences how the numbers came about."""
    if data.split_kind == "global_time":
        cut = day_of(data.features["validation_from"]) or "the first cut"
        test = day_of(data.features["test_from"]) or "the second"
        hidden = (
            f"Everything that happened from {test} on was hidden (test), and what happened from "
            f"{cut} until then was used to choose between models (validation)."
        )
    else:
        hidden = (
            "Each user's last item was hidden (test), and the one before it was used to choose "
            "between models (validation)."
        )
    ranked = (
        "Each model, trained only on what came before both, ranked the whole catalogue of "
        f"{data.num_items:,} items for each of {data.measured('test').num_users:,} users; a "
        "good model puts the hidden item near the top."
    )
    seen = (
        "Items that a user already had are left out of the lists."
        if data.excludes_history
        else "Items that a user already had may be listed again."
    )
    interval = (
        "Ranges are 95% intervals: with other users of the same kind, a number would be expected "
        "to lie within its range."
    )
    return [hidden, ranked, seen, interval]


def lost_rows(data: ReportData) -> list[tuple[str, int]]:
    """Say what became of the rows of events that were not kept, by reason."""
    facts = data.features
    lost = [(f"set aside: {reason}", count) for reason, count in facts["quarantined"].items()]
    lost += [(f"filtered out: {reason}", count) for reason, count in facts["filtered"].items()]
    lost += [
        ("the same event again", facts["duplicates"]),
        ("users or items with too few events (k-core)", facts["dropped_by_k_core"]),
        ("beyond the most events kept of one user", facts["over_user_cap"]),
    ]
    tables = facts["quarantined_in_tables"].items()
    lost += [(f"rows of items or users set aside: {reason}", count) for reason, count in tables]
    return [(reason, count) for reason, count in lost if count]


def notices(data: ReportData) -> list[str]:
    """List what a reader should be careful about."""
    facts, told = data.features, [str(warning) for warning in data.features["warnings"]]
    aside = sum(facts["quarantined"].values()) + sum(facts["quarantined_in_tables"].values())
    if aside:
        told.append(
            f"{aside:,} rows could not be used and were set aside with their reason; they are "
            "counted under The data."
        )
    users = data.measured("test").num_users
    if users < FEW_USERS:
        told.append(
            f"Only {users:,} users were measured: ranges are wide, and differences between models "
            "need to be large to be seen."
        )
    best, values = best_model(data), {m: data.interval(m, "test").mean for m in data.models}
    on_test = max(data.models, key=lambda model: values[model])
    if values[on_test] > values[best]:
        told.append(
            f"On the test split {model_label(on_test)} comes out above {model_label(best)}, which "
            "validation chose. The choice stays with validation: choosing on test would make the "
            "test number too good."
        )
    looks = data.provenance.num_test_looks
    if looks > MANY_LOOKS:
        told.append(
            f"The test split was looked at {looks} times. Each look makes it easier to choose, "
            "without meaning to, what happens to suit these very users."
        )
    return told
