"""Which of two to release, and why: the one place where the rule stands.

A is what is served, or comes first; B would take its place. In this order:

1. With fewer than `VerdictConfig.min_users` common users nothing is concluded.
2. B is refused where any of these is shown: it is worse over all queries by the primary metric (or
   by the deep one, where the primary does not say the opposite); a slice lost more than the margin
   (`search`); its lists cover much less of the catalogue.
3. B is released where any of these is shown, and none of the above: it is better over all queries
   by either metric; a slice gained; its lists cover much more of the catalogue.
4. Where nothing of that is shown, a difference in cost decides: much dearer is refused, much
   cheaper is released if a loss above the margin is excluded.
5. Otherwise there is no evidence; whether a loss above the margin is excluded is said.

"Better" and "worse" hold by the interval over users and, where there are times, by the one over
blocks of time; two metrics share the family's error evenly. Slices have Holm's levels over all that
are searched. So of equal pairs at most 2% by all queries and 1% each by losses and gains of slices
are called different, by design; coverage and cost have margins, not tests, as the lists of
thousands of users have next to no sampling error there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pipelines.dashboard.data.measures import COSTS, Measures
from pipelines.dashboard.data.paired import Pairs
from pipelines.dashboard.data.search import Search, SearchConfig, SliceShift, search
from pipelines.engine.formats import duration, size
from pipelines.pages.wording import metric_label
from recsys.evaluation.paired import Paired, PairedConfig

Answer = Literal["first", "second", "no evidence"]
Kind = Literal["overall", "slice", "coverage", "cost", "too few"]


@dataclass(frozen=True, kw_only=True)
class VerdictConfig:
    """Levels and margins of the rule."""

    primary: str = "ndcg@10"
    deep: str = "ndcg@50"
    """Where differences further down a list show, and with fewer users."""
    confidence: float = 0.98
    """Of both metrics together, over all queries."""
    margin: float = 0.02
    """Relative loss that is tolerated where the second is only to be no worse."""
    coverage: float = 0.3
    """Relative loss of catalogue coverage that is no longer a matter of taste."""
    evenness: float = 0.5
    """The same of the evenness of exposure, 1 - Gini."""
    cost: float = 1.5
    """Ratio of costs from which one of two equals is preferred."""
    min_users: int = 200
    slices: SearchConfig = field(default_factory=SearchConfig)

    def paired(self) -> PairedConfig:
        """Return how one of the two metrics is judged."""
        return PairedConfig(confidence=1 - (1 - self.confidence) / 2, margin=self.margin)


def config_of(settings: Mapping[str, str]) -> VerdictConfig:
    """Take the losses that a run's ``[release]`` tolerates.

    Args:
        settings: Of the run, by dotted name.
    """
    own = VerdictConfig()

    def margin(name: str, default: float) -> float:
        try:
            value = float(settings.get(f"release.{name}", default))
        except ValueError:
            return default
        return value if 0 <= value <= 1 else default

    slices = replace(own.slices, margin=margin("max_slice_loss", own.slices.margin))
    return replace(own, margin=margin("max_loss", own.margin), slices=slices)


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Something that is shown."""

    kind: Kind
    speaks_for: Answer
    words: str
    slice: str | None = None
    """Key of the slice that it is about."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer and what stands behind it."""

    answer: Answer
    reasons: tuple[Reason, ...]
    """Those that decided first."""
    overall: Mapping[str, Paired]
    """By metric; the primary and the deep one."""
    search: Search | None
    not_worse: bool
    """Whether a loss above the margin is excluded, by the deep metric."""

    @property
    def decisive(self) -> list[Reason]:
        """The reasons that speak for the answer."""
        return [one for one in self.reasons if one.speaks_for == self.answer]

    @property
    def against(self) -> list[Reason]:
        """The reasons that speak for the other side."""
        return [one for one in self.reasons if one.speaks_for != self.answer]


def judge(
    pairs: Pairs,
    first: int,
    second: int,
    measures: tuple[Measures, Measures],
    config: VerdictConfig | None = None,
) -> Verdict:
    """Decide between two sides of joined queries.

    Args:
        pairs: Of the joined queries.
        first: Place of A.
        second: Place of B.
        measures: Of A and of B.
        config: Levels and margins.
    """
    config = config or VerdictConfig()
    num_users = pairs.known.num_users
    if num_users < config.min_users:
        why = (
            f"Users with the same held-out item in both: {num_users:,}. Below {config.min_users} "
            "nothing is concluded."
        )
        reason = Reason(kind="too few", speaks_for="no evidence", words=why)
        return Verdict(
            answer="no evidence", reasons=(reason,), overall={}, search=None, not_worse=False
        )
    paired = config.paired()
    overall = {
        metric: pairs.overall(first, second, metric, paired)
        for metric in (config.primary, config.deep)
    }
    found = search(pairs, first, second, config.slices)
    deep = overall[config.deep]
    # Where all gain, a slice is worth naming only if it is shown to gain more.
    usual = deep.difference if deep.decision == "better" else 0.0
    shown = [
        *overall_reasons(overall, config),
        *(slice_reason(one, "first", config) for one in found.lost),
        *coverage_reasons(measures, config),
        *(slice_reason(one, "second", config) for one in found.gained if one.low > usual),
    ]
    answer: Answer = "no evidence"
    if any(one.speaks_for == "first" for one in shown):
        answer = "first"
    elif shown:
        answer = "second"
    costs = cost_reasons(measures, config)
    if not shown:
        answer = _by_cost(costs, deep.not_worse)
    reasons = [*shown, *costs]
    reasons.sort(key=lambda one: one.speaks_for != answer)
    return Verdict(
        answer=answer,
        reasons=tuple(reasons),
        overall=overall,
        search=found,
        not_worse=deep.not_worse,
    )


def _by_cost(costs: Sequence[Reason], not_worse: bool) -> Answer:
    """Prefer the cheaper of two that are shown to be equal enough."""
    if any(one.speaks_for == "first" for one in costs):
        return "first"
    return "second" if costs and not_worse else "no evidence"


def overall_reasons(overall: Mapping[str, Paired], config: VerdictConfig) -> list[Reason]:
    """Say what all queries show; the primary metric has the last word where both disagree."""
    primary, deep = overall[config.primary], overall[config.deep]
    reasons = []
    if primary.decision != "not enough evidence":
        reasons.append(_overall_reason(config.primary, primary))
    opposed = {"better": "worse", "worse": "better"}.get(primary.decision)
    if deep.decision != "not enough evidence" and deep.decision != opposed:
        reasons.append(_overall_reason(config.deep, deep, only=not reasons))
    return reasons


def _overall_reason(metric: str, found: Paired, *, only: bool = False) -> Reason:
    change = "gains" if found.decision == "better" else "loses"
    where = ""
    if only:
        top = "the first places alone do not show it"
        where = f" The difference lies further down the list: {top}."
    return Reason(
        kind="overall",
        speaks_for="second" if found.decision == "better" else "first",
        words=f"Over all queries B {change} {metric_label(metric)}: {difference_words(found)}."
        + where,
    )


def difference_words(found: Paired) -> str:
    """Write a difference with its interval, such as ``+3.1% (+1.0% to +5.2%), .1203 to .1240``."""
    low, high = found.relative_interval
    return (
        f"{found.relative:+.1%} ({low:+.1%} to {high:+.1%}), from {found.champion:.4f} to "
        f"{found.challenger:.4f}, {found.num_users:,} users"
    )


def slice_reason(one: SliceShift, speaks_for: Answer, config: VerdictConfig) -> Reason:
    """Say what a slice lost or gained."""
    metric = metric_label(config.slices.metric)
    change = "loses" if speaks_for == "first" else "gains"
    share = f"{one.relative:+.0%}" if one.first > 0 else f"from nothing to {one.second:.4f}"
    interval = ""
    if one.first > 0:
        interval = f" ({one.low / one.first:+.0%} to {one.high / one.first:+.0%})"
    label = one.label[:1].upper() + one.label[1:]
    return Reason(
        kind="slice",
        speaks_for=speaks_for,
        words=f"{label}: B {change} {metric}: {share}{interval}, from {one.first:.4f} to "
        f"{one.second:.4f}, {one.num_users:,} users; adjusted p {p_words(one.p_value)} over all "
        "slices searched.",
        slice=one.key,
    )


def p_words(p_value: float) -> str:
    """Write a p-value."""
    return "below .0001" if p_value < 1e-4 else f"{p_value:.4f}".replace("0.", ".", 1)


def coverage_reasons(measures: tuple[Measures, Measures], config: VerdictConfig) -> list[Reason]:
    """Say where lists show much less of the catalogue, or much more, or spread it much less."""
    before, after = (one.beyond_accuracy for one in measures)
    reasons = []
    for name in before:
        if name not in after or not name.startswith(("coverage@", "gini@")):
            continue
        # Evenness, 1 - Gini, falls as coverage does.
        is_gini = name.startswith("gini@")
        values = [1 - one[name] if is_gini else one[name] for one in (before, after)]
        kept = 1 - (config.evenness if is_gini else config.coverage)
        if values[1] < kept * values[0]:
            speaks_for: Answer = "first"
        elif values[0] < kept * values[1]:
            speaks_for = "second"
        else:
            continue
        others = "; ".join(
            f"{metric_label(other)} {before[other]:.3g} to {after[other]:.3g}"
            for other in before
            if other.startswith(("coverage@", "gini@", "average_popularity@", "novelty@"))
            and other in after
        )
        change = (
            "Popularity collapse: the lists of B show"
            if speaks_for == "first"
            else ("Exposure: the lists of B show")
        )
        much = "much less" if speaks_for == "first" else "much more"
        what = "of the catalogue evenly" if is_gini else "of the catalogue"
        words = f"{change} {much} {what} than those of A ({others})."
        reasons.append(Reason(kind="coverage", speaks_for=speaks_for, words=words))
    return reasons[:1]


def cost_reasons(measures: tuple[Measures, Measures], config: VerdictConfig) -> list[Reason]:
    """Say which costs differ much; times only where both ran on one machine."""
    reasons = []
    alike = measures[0].host is None or measures[0].host == measures[1].host
    for name, label in COSTS.items():
        before, after = (one.cost(name) for one in measures)
        if not before or not after or (name in ("seconds", "list_ms") and not alike):
            continue
        ratio = after / before
        if 1 / config.cost < ratio < config.cost:
            continue
        dearer = ratio > 1
        times = f"{ratio if dearer else 1 / ratio:.1f} times"
        reasons.append(
            Reason(
                kind="cost",
                speaks_for="first" if dearer else "second",
                words=f"Cost: {label} is {times} {'more' if dearer else 'less'} with B "
                f"({cost_words(name, before)} to {cost_words(name, after)}).",
            )
        )
    return reasons


def cost_words(name: str, value: float) -> str:
    """Write a cost with its unit."""
    if name == "seconds":
        return duration(value)
    if name == "list_ms":
        return f"{value:.1f} ms"
    return size(value)
