"""The release gate's answer on a pair: recorded, or by its rule on the answers that both stored."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from pipelines.config.operation import GateConfig, ReleaseConfig
from pipelines.dashboard.compare.compare import difference_words
from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import Measures, Side, answers
from pipelines.dashboard.data.pairs import Mask, Pairs
from pipelines.dashboard.data.slices import slice_label
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.decisions import decision_on
from pipelines.pages.wording import metric_label
from pipelines.publishing.comparison import Compared, compare
from pipelines.publishing.same_queries import SameQueries
from recsys.evaluation.paired import Paired, SliceLoss

Answer = Literal["first", "second", "no evidence"]
MUCH_CLEARER = 3.5
"""Standard errors by which a slice gains more than all queries, if it is named next to them."""
MAX_NAMED = 3


class Reason(NamedTuple):
    """Evidence for one side: in a clause, in words, and the key of its slice."""

    speaks_for: Answer
    clause: str
    words: str
    slice: str = ""


class PairJudgement(NamedTuple):
    """The answer of the rule, and its evidence. A is the first side, B would take its place."""

    answer: Answer
    reasons: Sequence[Reason]
    """Those that decided first."""
    compared: Compared
    config: ReleaseConfig

    @property
    def overall(self) -> dict[str, Paired]:
        """Differences over all queries, by metric."""
        known = (
            (self.config.deciding_metric, self.compared.by),
            (self.config.metric, self.compared.named),
        )
        return {name: one for name, one in known if one is not None}

    def slices(self, speaks_for: Answer) -> list[str]:
        """Keys of the slices that are named for a side."""
        return [one.slice for one in self.reasons if one.slice and one.speaks_for == speaks_for]


def release_config(context: Context, run: Run) -> ReleaseConfig:
    """Read ``[release]`` of a run, or of the run that made a bundle; the defaults without one."""
    try:
        table = tomllib.loads((context.stores.maker(run) or run).settings)
        return TypeAdapter(ReleaseConfig).validate_python(table.get("release", {}))
    except ValueError:
        return ReleaseConfig()


def judge_pair(
    pairs: Pairs, measures: tuple[Measures, Measures], config: ReleaseConfig
) -> PairJudgement:
    """Apply the gate's rule to two sides: all queries, each slice, and the catalogue covered."""
    compared = compare(*_queries(pairs, config), config)
    by, named = compared.by, compared.named
    if by is None or named is None:
        why = (
            f"Users with the same held-out item in both: {pairs.num_users:,}. Below "
            f"{config.min_compared} nothing is concluded."
        )
        return PairJudgement("no evidence", [Reason("no evidence", "", why)], compared, config)
    reasons = [
        *_overall_reasons(by, named, config),
        *_slice_reasons(compared, config, "first"),
        *_slice_reasons(compared, config, "second"),
        *_coverage_reasons(measures, config.gate),
    ]
    sides: set[Answer] = {one.speaks_for for one in reasons}
    answer: Answer = "first" if "first" in sides else "second" if sides else "no evidence"
    reasons.sort(key=lambda one: one.speaks_for != answer)
    return PairJudgement(answer, reasons, compared, config)


def judge_sides(
    context: Context, sides: Sequence[Side], pairs: Pairs, measures: tuple[Measures, Measures]
) -> PairJudgement:
    """Judge two sides by ``[release]`` of the second; kept until their files change."""
    files = [path for one in sides for path in answers(one.run).files]
    config = release_config(context, sides[1].run)
    named = tuple((one.run.key, one.model) for one in sides)
    key = ("judgement", named, repr(measures), repr(config))
    return context.cache.get(key, files, lambda: judge_pair(pairs, measures, config))


def _queries(pairs: Pairs, config: ReleaseConfig) -> tuple[SameQueries, dict[str, Mask]]:
    """Build the gate's queries, one a user, and mark the users of each slice."""
    users = np.arange(pairs.num_users)
    if len(users) > config.max_compared:
        drawn = np.random.default_rng(0).choice(users, config.max_compared, replace=False)
        users = np.sort(drawn)
    inside = np.isin(pairs.owners, users)
    first, second, items = (
        pairs.by_user(column, inside) for column in ("rank0", "rank1", "item_row")
    )
    starts = first.offsets[:-1].numpy()
    firsts = pairs.queries.filter(inside)[starts]
    slices = {
        f"{group}/{name}": np.logical_or.reduceat(queries[inside], starts)
        for group in pairs.slices.groups
        for name, queries in pairs.slices.get(group).items()
        if queries.any()
    }
    queries = SameQueries(
        champion=first,
        challenger=second,
        targets=items,
        num_events=firsts["place"].to_numpy().astype(np.int64),
        times=None if firsts["time"].has_nulls() else firsts["time"].to_numpy(),
        by_bundle=False,
        ahead=0.0,
    )
    return queries, slices


def _overall_reasons(by: Paired, named: Paired, config: ReleaseConfig) -> Iterator[Reason]:
    found = {config.metric: named, config.deciding_metric: by}
    for name, one in found.items():
        harmful = one.decision == "worse" and not one.not_worse
        opposed = name == config.deciding_metric and named.decision == "worse"
        if not harmful and (one.decision != "better" or opposed):
            continue
        words = f"Over all queries B {'loses' if harmful else 'gains'} {metric_label(name)}: "
        words += f"{difference_words(one)}."
        if name != config.metric and named.decision != one.decision:
            words += " The difference is further down the list; the first places do not show it."
        clause = f"B is {'worse' if harmful else 'better'} over all queries"
        yield Reason("first" if harmful else "second", clause, words)


def _slice_reasons(
    compared: Compared, config: ReleaseConfig, speaks_for: Answer
) -> Iterator[Reason]:
    """Return the slices that are shown to lose too much, or to gain, the clearest first."""
    lost = speaks_for == "first"
    margin, verb = (config.max_slice_loss, "loses") if lost else (0.0, "gains")
    shown = [one for one in compared.losses if (one.harmed if lost else one.gained)]
    if not lost and compared.by is not None and compared.by.decision == "better":
        # If all gain, a slice is worth naming only if it clearly gains more.
        usual, clear = compared.by.difference, MUCH_CLEARER
        shown = [
            one for one in shown if one.found.difference - usual > clear * one.found.standard_error
        ]

    def clearness(one: SliceLoss) -> float:
        change = one.found.difference + margin * one.found.champion
        return abs(change) / max(one.found.standard_error, 1e-12)

    metric = metric_label(config.deciding_metric)
    for one in sorted(shown, key=clearness, reverse=True)[:MAX_NAMED]:
        label = slice_label(one.name)
        words = f"{label[:1].upper()}{label[1:]}: B {verb} {metric}: {difference_words(one.found)}."
        yield Reason(speaks_for, f"B {verb} in the slice {label}", words, one.name)


def _coverage_reasons(measures: tuple[Measures, Measures], config: GateConfig) -> Iterator[Reason]:
    """Compare coverage and novelty of the lists by the bounds of ``[release.gate]``."""
    before, after = (one.beyond_accuracy for one in measures)
    bounds = {"coverage": config.min_coverage, "novelty": config.min_novelty}
    for name in before:
        bound = bounds.get(name.partition("@")[0])
        if name not in after or bound is None:
            continue
        less = after[name] < bound * before[name]
        if not less and before[name] >= bound * after[name]:
            continue
        change = f"{metric_label(name)} {before[name]:.3g} to {after[name]:.3g}"
        clause = f"B's lists show much {'less' if less else 'more'} of the catalogue"
        yield Reason("first" if less else "second", clause, f"{clause} than those of A ({change}).")
        return


def recorded_answer(first: Run, second: Run) -> str:
    """Return what the gate decided on the second in place of the first; empty if it has not."""
    try:
        written = second.bundles and decision_on(second.bundles_folder, second.bundles[0], None)
    except (OSError, ValueError):
        return ""
    if not written:
        return ""
    found = written.decision
    if (found.champion or "").partition("+")[0] not in first.bundles:
        return ""
    # Those on all queries name the interval and the power; failed ones, the slice that lost.
    reasons = []
    for one in found.verdicts:
        if one["passed"] and not one["name"].endswith("against the champion on the same queries"):
            continue
        bound = one.get("bound")
        is_loss = "against the champion" in one["name"] and isinstance(bound, float)
        margin = f" (margin {bound:+.1%})" if is_loss else ""
        reasons.append(f"{one['name']}: {one.get('reason', '')}{margin}")
    why = "; ".join([*found.words[:1], *reasons])
    return f"The release gate decided on this pair: B was {found.outcome}" + (why and f": {why}")
