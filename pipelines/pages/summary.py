"""The sentences of a report: headline, protocol, warnings."""

from __future__ import annotations

from datetime import datetime

from features.schema import GIVEN
from pipelines.evaluation.analysis import SERVED
from pipelines.pages.report_data import ReportData
from pipelines.pages.wording import model_label, parted
from recsys.evaluation.intervals import Interval
from recsys.evaluation.paired import MetricComparison
from recsys.evaluation.slices import SliceMetrics
from recsys.models.names import POPULARITY

FEW_USERS = 500
MANY_LOOKS = 10
MIN_USERS = 30
"""Slices of fewer users are not named best or worst."""
PROFILE = "fast"
"""The profile served by default."""
BASELINE = POPULARITY.name
METHODS = {"learned": "learned weights", "reciprocal_rank_fusion": "reciprocal rank fusion"}


def ranged(interval: Interval) -> str:
    """Format the bounds of an interval."""
    return f"{interval.low:.4f} to {interval.high:.4f}"


def best_model(data: ReportData) -> str:
    """Return the model with the best primary metric on validation; the first of equal ones."""
    return data.ranked_models[0]


def served_model(data: ReportData) -> str | None:
    """Return the model that is served by default; None if it was not measured."""
    is_ranked = data.ranker is not None and data.ranker["served"]
    order = SERVED if is_ranked else SERVED[1:]
    return next((model for model in order if model in data.models), None)


def headline_model(data: ReportData) -> str:
    """Return the served model; if it was not measured, the best on validation."""
    return served_model(data) or best_model(data)


def served_label(data: ReportData, model: str) -> str:
    """Label the released list, not the row of the table that measures it."""
    blend = data.blends.get(PROFILE)
    if model == "ranked":
        return "the ranked blend"
    if model not in SERVED:
        return model_label(model)
    if blend is None:
        return "the blend"
    if blend["served"] not in METHODS:
        return method_label(blend["served"])
    return f"the blend of {len(blend['shares'])} models"


def method_label(method: str) -> str:
    """Label a method of merging, or the one source that is served in its place."""
    return METHODS.get(method) or f"{model_label(method)} alone"


def answer(data: ReportData) -> str:
    """Summarise in a paragraph: the served list, its hit rate, and its tests."""
    model = headline_model(data)
    name, verdict = served_label(data, model), summarize_tests(data, model)
    _, k = parted(data.primary)
    if len(data.models) == 1:
        who = f"The model {name}"
    elif served_model(data):
        who = f"Served is {name}. It"
    else:
        who = f"The best of {len(data.models)} models is {name}. It"
    found = data.metrics[GIVEN]["test"][model].get(f"hit_rate@{k}")
    if found is None:
        return f"{who.removesuffix(' It')} {verdict}".strip()
    catalogue = f", out of {data.num_items:,} items" if data.num_items else ""
    return (
        f"{who} ranks a held-out item among its first {k} for {100 * found:.0f} of 100 "
        f"users{catalogue}. {verdict}"
    ).strip()


def worst_slice(data: ReportData, model: str) -> SliceMetrics | None:
    """Find the slice of users that a model serves worst; None if too few are large enough."""
    parts = [
        part
        for part in data.measured("test").models[model].slices
        if part.num_users >= MIN_USERS and data.primary in part.metrics
    ]
    if len(parts) < 2:
        return None
    return min(parts, key=lambda part: part.metrics[data.primary].mean)


def comparisons(data: ReportData) -> list[MetricComparison]:
    """Return the paired tests on the primary metric of the test split, the better model first."""
    tests = [one for one in data.measured("test").comparisons if one.metric == data.primary]
    return [
        one
        if one.difference >= 0
        else one._replace(
            candidate=one.baseline,
            baseline=one.candidate,
            candidate_mean=one.baseline_mean,
            baseline_mean=one.candidate_mean,
            difference=-one.difference,
            low=-one.high,
            high=-one.low,
        )
        for one in tests
    ]


def listed(names: list[str]) -> str:
    """Join names with commas and "and"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def summarize_tests(data: ReportData, model: str) -> str:
    """Summarise a model's paired tests."""
    groups: dict[str, list[str]] = {"worse": [], "level": [], "better": []}
    for one in comparisons(data):
        if model in (one.candidate, one.baseline):
            is_ahead = one.candidate == model
            group = ("worse" if is_ahead else "better") if one.significant else "level"
            groups[group].append(model_label(one.baseline if is_ahead else one.candidate))
    words = {name: listed(models) for name, models in groups.items() if models}
    sentences = {
        "worse": "It is significantly better than {}.",
        "level": "There is no significant difference from {}.",
        "better": "On test, {} did significantly better.",
    }
    return " ".join(text.format(words[name]) for name, text in sentences.items() if name in words)


def format_day(text: str | None) -> str | None:
    """Format the day of an ISO time."""
    if text is None:
        return None
    day = datetime.fromisoformat(text)
    return f"{day.day} {day:%B %Y}"


def time_span(data: ReportData) -> str:
    """Return the first and last day of the events, if they have times."""
    first, last = format_day(data.features["first_time"]), format_day(data.features["last_time"])
    if first is None or last is None:
        return "no timestamps, only an order"
    return first if first == last else f"{first} to {last}"


def protocol(data: ReportData) -> list[str]:
    """Describe the evaluation protocol."""
    if data.split_kind == "global_time":
        cut = format_day(data.features["validation_from"]) or "the first cut"
        test = format_day(data.features["test_from"]) or "the second"
        hidden = (
            f"Events from {test} on are held out for test, those from {cut} until then for "
            "validation, which chooses models."
        )
    else:
        hidden = (
            "Leave-one-out: each user's last item is held out for test, the one before it for "
            "validation, which chooses models."
        )
    ranked = (
        "Each model is trained on the events before both and ranks the full catalogue of "
        f"{data.num_items:,} items for each of {data.measured('test').num_users:,} users."
    )
    seen = (
        "Items in the user's history are left out of the lists."
        if data.excludes_history
        else "Items in the user's history may be listed again."
    )
    interval = "Intervals are 95% over users, corrected for skew."
    return [hidden, ranked, seen, interval]


def lost_rows(data: ReportData) -> list[tuple[str, int]]:
    """Count the rows that were not kept, by reason."""
    facts = data.features
    lost = [(f"quarantined: {reason}", count) for reason, count in facts["quarantined"].items()]
    lost += [(f"filtered out: {reason}", count) for reason, count in facts["filtered"].items()]
    lost += [
        ("duplicates", facts["duplicates"]),
        ("users or items with too few events (k-core)", facts["dropped_by_k_core"]),
        ("over the limit of events per user", facts["over_user_cap"]),
    ]
    tables = facts["quarantined_in_tables"].items()
    lost += [(f"items or users quarantined: {reason}", count) for reason, count in tables]
    forgotten = facts.get("forgotten", {}).get("users", 0)
    lost.append(("rows of forgotten users in the users table", forgotten))
    return [(reason, count) for reason, count in lost if count]


def notices(data: ReportData) -> list[str]:
    """List warnings."""
    facts, found = data.features, [str(warning) for warning in data.features["warnings"]]
    aside = sum(facts["quarantined"].values()) + sum(facts["quarantined_in_tables"].values())
    if aside:
        found.append(
            f"{aside:,} rows could not be used and were quarantined; see Data for the reasons."
        )
    users = data.measured("test").num_users
    if users < FEW_USERS:
        found.append(
            f"Only {users:,} users were measured: intervals are wide, and only large differences "
            "between models are significant."
        )
    best, values = best_model(data), {m: data.interval(m, "test").mean for m in data.models}
    on_test = max(data.models, key=lambda model: values[model])
    if values[on_test] > values[best]:
        found.append(
            f"On test, {model_label(on_test)} is above {model_label(best)}, the best on "
            "validation. The choice stays: choosing on test would bias the test metric upwards."
        )
    looks = data.provenance.num_test_looks
    if looks > MANY_LOOKS:
        found.append(
            f"The test split was looked at {looks} times; each look adds to the risk of "
            "overfitting to it."
        )
    return found
