"""The rule of release: the challenger's numbers against popularity, the index and the champion.

Champion and challenger answer the latest held-out queries (`pipelines.publishing.same_queries`),
paired by user. The verdict has the difference, its interval and the smallest difference that would
have been found. If neither is shown to be better, ``release.when_undecided`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND, BLEND_FAST, RANKED
from pipelines.config.operation import ReleaseConfig
from pipelines.publishing.gate import at_least
from pipelines.publishing.same_queries import SameQueries
from pipelines.ranking.artefact import served_ranker
from recsys.data.batch import Jagged
from recsys.evaluation.intervals import time_blocks
from recsys.evaluation.paired import Paired, SliceLoss, paired, slice_losses
from recsys.evaluation.ranking import per_user_metric
from recsys.evaluation.slices import category_slices, item_popularity_slices, user_activity_slices
from recsys.models.names import POPULARITY
from serving.bundle.manifest import Verdict

NUM_BLOCKS = 20
"""Blocks of time with equal numbers of queries."""
MIN_SLICE_USERS = 100
"""Users without whom a slice shows nothing."""
MIN_ANSWERS = 200
CHANCE = 2.6
"""Standard errors of a difference that one pair of equals in a hundred exceeds."""


class Compared(NamedTuple):
    """Comparison of champion and challenger on the same queries."""

    by: Paired | None
    """In ``release.deciding_metric``; None with too few common queries."""
    named: Paired | None
    """In ``release.metric``; a loss in the first places refuses."""
    losses: list[SliceLoss]
    queries: SameQueries

    @property
    def shows_losses(self) -> bool:
        """True if a loss of the challenger would be shown."""
        return self.by is not None and self.queries.alike

    @property
    def decision(self) -> str:
        """Decision in a few words."""
        return "not enough evidence" if self.by is None else self.by.decision


def compare(
    queries: SameQueries, slices: Mapping[str, NDArray[np.bool_]], config: ReleaseConfig
) -> Compared:
    """Compare the pair, and each slice, [Q], that has enough users: the rule of release."""
    if len(queries) < config.min_compared:
        return Compared(None, None, [], queries)
    settings = config.paired()
    blocks = None if queries.times is None else time_blocks(queries.times, NUM_BLOCKS)
    metrics = (config.deciding_metric, config.metric)
    before, after = (
        [per_user_metric(of, name).numpy() for name in metrics]
        for of in (queries.champion, queries.challenger)
    )
    by, named = (paired(*pair, settings, blocks=blocks) for pair in zip(before, after, strict=True))
    if not queries.alike:
        by, named = (
            one._replace(decision="not enough evidence") if one.decision == "worse" else one
            for one in (by, named)
        )
        return Compared(by, named, [], queries)
    least = min(config.min_compared, MIN_SLICE_USERS)
    losses = slice_losses(before[0], after[0], slices, settings, min_users=least)
    return Compared(by, named, losses, queries)


def item_domains(items: pl.DataFrame) -> list[str]:
    """Read the domain of each item row; empty if the items have none."""
    if "domain" not in items.columns:
        return []
    return ["", *items.sort("item_row")["domain"].cast(pl.String).fill_null("")]


def protected_slices(
    queries: SameQueries, item_counts: torch.Tensor, domains: Sequence[str] = ()
) -> dict[str, NDArray[np.bool_]]:
    """Mark the queries of each slice, [Q]: activity of the user, popularity and domain of targets.

    New users are a slice of activity, cold and tail items are slices of popularity.

    Args:
        item_counts: Events of each item row that the challenger's models were fitted on, [N].
        domains: Domain of each item row, [N]; empty for none.
    """
    targets, owners = queries.targets, queries.targets.segments()
    slices = [
        *user_activity_slices(targets, torch.from_numpy(queries.num_events)),
        *item_popularity_slices(targets, item_counts),
    ]
    if len(names := sorted({*domains} - {""})) > 1:
        rows = torch.tensor([names.index(one) + 1 if one else 0 for one in domains])
        slices += category_slices(targets, "domain", Jagged.one_each(rows), ["", *names])
    found = {}
    for part in slices:
        inside = np.zeros(len(queries), np.bool_)
        inside[owners[part.targets].numpy()] = True
        found[f"{part.group} {part.name}"] = inside
    return found


def comparison_verdicts(found: Compared, config: ReleaseConfig) -> list[Verdict]:
    """Pass or refuse: one verdict on all queries, one on each slice that lost too much."""
    name = f"{config.deciding_metric} against the champion on the same queries"
    by = found.by
    unsure = config.when_undecided == "release"
    if by is None:
        why = (
            f"not enough evidence: both answered {len(found.queries)} queries that neither had "
            f"seen, fewer than release.min_compared = {config.min_compared}; "
            f"{format_default(config)}"
        )
        return [Verdict(name=name, value=None, bound=None, passed=unsure, reason=why)]
    passed = by.decision == "better" or by.not_worse or (by.decision != "worse" and unsure)
    verdicts = [_loss(name, by, config.max_loss, passed, format_reason(found, config))]
    named = found.named
    if by.decision != "worse" and named and named.decision == "worse" and not named.not_worse:
        low, high = named.relative_interval
        name = f"{config.metric} against the champion in the first places"
        why = f"worse: {_percent(named.relative)} ({_percent(low)} to {_percent(high)})"
        verdicts.append(_loss(name, named, config.max_loss, False, why))
    margin, harmed = config.max_slice_loss, [loss for loss in found.losses if loss.harmed]
    for loss in harmed:
        low, high = loss.found.relative_interval
        name = f"{config.deciding_metric} of {loss.name} against the champion"
        why = (
            f"a relative loss of more than {margin:.0%} is shown "
            f"({_percent(low)} to {_percent(high)}, {loss.found.num_users} users)"
        )
        verdicts.append(_loss(name, loss.found, margin, False, why))
    if found.losses and not harmed:
        worst = min(found.losses, key=lambda loss: loss.found.relative)
        why = (
            f"none of {len(found.losses)} slices is shown to lose more than the margin "
            f"({', '.join(loss.name for loss in found.losses)}); the lowest is {worst.name} with "
            f"{_percent(worst.found.relative)}; smaller slices have too few users to show anything"
        )
        verdicts.append(_loss("protected slices", worst.found, margin, True, why))
    return verdicts


def _loss(name: str, found: Paired, margin: float, passed: bool, reason: str) -> Verdict:
    """Build a verdict on a relative difference; ``margin`` is the loss that is tolerated."""
    value = found.relative if np.isfinite(found.relative) else None
    return Verdict(name=name, value=value, bound=-margin, passed=passed, reason=reason)


def format_reason(found: Compared, config: ReleaseConfig) -> str:
    """Format the difference, its interval and the smallest difference found."""
    by, named = found.by, found.named
    assert by is not None
    assert named is not None
    low, high = by.relative_interval
    by_whom = "both by models of their training parts"
    if found.queries.by_bundle:
        by_whom = "the champion by its bundle on newer events"
    if not found.queries.alike:
        by_whom += (
            f", with {found.queries.ahead:.0%} more events to learn from, so a loss says nothing"
        )
    parts = [
        f"{by.decision}: {_percent(by.relative)} ({_percent(low)} to {_percent(high)} at "
        f"{100 * config.confidence:g}%), {by.challenger:.4f} against {by.champion:.4f}",
        f"{config.metric} {named.challenger:.4f} against {named.champion:.4f}",
        f"{by.num_users} users, {by_whom}",
        "the smallest difference these users reliably show is "
        f"{_percent(by.relative_detectable)[1:]}",
    ]
    if by.decision == "not enough evidence":
        parts.append(
            "not worse by more than the margin" if by.not_worse else format_default(config)
        )
    elif by.decision == "worse" and by.not_worse:
        parts.append(f"a loss of more than {config.max_loss:.0%} is excluded")
    return "; ".join(parts)


def format_default(config: ReleaseConfig) -> str:
    """Describe the outcome of an undecided comparison."""
    outcome = "is published" if config.when_undecided == "release" else "is not published"
    return f"then it {outcome} (release.when_undecided = {config.when_undecided!r})"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}%" if np.isfinite(share) else "?"


Metrics = Mapping[str, Mapping[str, float]]


def metric_value(metrics: Metrics, model: str, metric: str) -> float:
    """Look up a model's metric.

    Raises:
        ValueError: If that metric was not measured; lists those that were.
    """
    values = metrics[model]
    if metric not in values:
        raise ValueError(
            f"release.metric = {metric!r} was not measured; it must be one of "
            f"{', '.join(sorted(values))} (see evaluation.ks)"
        )
    return values[metric]


def served_metrics(metrics: Metrics, ranker: Path) -> Metrics:
    """Leave out a ranker that is not served: checks are on the served list.

    Args:
        ranker: Artefact of train_ranker for the tie order.
    """
    if served_ranker(ranker) is not None:
        return metrics
    return {name: values for name, values in metrics.items() if name != RANKED}


def ranked_gain(metrics: Metrics, metric: str, answers: pl.DataFrame | None) -> tuple[float, float]:
    """Return a metric of the ranker and of the list that it reorders; zeros for few answers."""
    found = [metrics.get(name, {}).get(metric) for name in (RANKED, BLEND_FAST)]
    if answers is None or len(answers) < MIN_ANSWERS or found[0] is None or found[1] is None:
        return 0.0, 0.0
    return found[0], found[1]


def served_row(metrics: Metrics) -> str:
    """Return the model that is served by default: the ranker, else the ``fast`` blend, if any."""
    return next(name for name in (RANKED, BLEND_FAST, BLEND) if name in metrics or name == BLEND)


def release_verdicts(
    metrics: Metrics,
    index_recall: float | None,
    champion: Metrics | None,
    config: ReleaseConfig,
    compared: Compared | None = None,
    error: float = 0.0,
) -> list[Verdict]:
    """Check the challenger.

    Args:
        index_recall: Share of the exact top list that the index finds; None without an index.
        champion: Test metrics of the published bundle, None where there is none.
        compared: Both on the same queries; None where there is no champion to query.
        error: Standard error of the served list's mean.
    """
    index = []
    if index_recall is not None:
        why = "share of the exact nearest items that the index finds"
        index = [at_least("index recall", index_recall, config.min_index_recall, why)]
    if not metrics:
        # A bundle without held-out events passes, unless it would replace a measured one.
        why = "no user has a held-out event, so nothing was measured"
        if champion:
            why += "; the published bundle was measured, and goes on serving"
        return [at_least("held-out events", 0, 1 if champion else 0, why), *index]
    served = served_row(metrics)
    blend = metric_value(metrics, served, config.metric)
    popularity = metric_value(metrics, POPULARITY.name, config.metric)
    verdicts = [
        at_least(
            f"{config.metric} above popularity",
            blend,
            popularity * (1 + config.min_gain_over_popularity) - CHANCE * error,
            f"the served list against popularity's {popularity:.4f}; chance alone makes "
            f"{CHANCE * error:.4f}",
        ),
        *index,
    ]
    if compared is not None:
        verdicts += comparison_verdicts(compared, config)
    if champion is None or (compared is not None and compared.shows_losses):
        return verdicts
    # Both are means over some users; a drop within chance is none.
    chance, before = CHANCE * math.sqrt(2) * error, champion.get(served_row(champion), {})
    if config.metric in before:
        value = before[config.metric]
        verdicts.append(
            at_least(
                f"{config.metric} against the champion's on its own data",
                blend,
                value * (1 - config.max_drop_from_champion) - chance,
                f"the published bundle had {value:.4f} on other queries, so only a large drop "
                f"counts; chance alone makes {chance:.4f}",
            )
        )
    return verdicts


def found_in(value: float | None, bound: float | None) -> str:
    """Format a failed check's value against its bound."""
    if bound is None:
        return "nothing was found"
    if value is None:
        return f"no value against {bound:.4g}"
    return f"{value:.4f} is {'below' if value < bound else 'above'} {bound:.4f}"


def is_untested(verdict: Mapping[str, Any]) -> bool:
    """True if a check had nothing to measure; the outcome is then configured."""
    reason = str(verdict.get("reason", ""))
    return verdict.get("value") is None and reason.startswith("not enough evidence")


def format_result(verdict: Mapping[str, Any]) -> str:
    """Format a check's result in a word or two."""
    if not verdict.get("passed"):
        return "FAILED"
    return "not tested" if is_untested(verdict) else "passed"


def explain_decision(
    champion: str | None, verdicts: Sequence[Verdict], compared: Compared | None
) -> list[str]:
    """Explain why a version is published or refused."""
    failed = [
        f"{one.name}: {found_in(one.value, one.bound)} ({one.reason})"
        for one in verdicts
        if not one.passed
    ]
    kept = f"{champion} goes on serving" if champion else "nothing is served"
    if failed:
        first = f"Refused: {len(failed)} of {len(verdicts)} checks failed; {kept}."
        return [first, *failed]
    untested = [one for one in verdicts if is_untested(one.model_dump())]
    found = [f"All {len(verdicts)} checks passed."]
    if untested:
        found = [f"{len(verdicts) - len(untested)} checks passed, {len(untested)} was not tested."]
    if compared is not None and compared.by is not None:
        by = compared.by
        found.append(
            f"Against {champion} on {by.num_queries} equal queries: {by.decision}, "
            f"{100 * by.relative:+.1f}%; the smallest difference they reliably show is "
            f"{_percent(by.relative_detectable)[1:]}."
        )
    elif champion is not None:
        why = untested[0].reason if untested else "too few queries are answered by both"
        found.append(f"Not compared with {champion}: {why}.")
    return found
