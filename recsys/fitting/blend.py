"""Choose on validation how the lists of all sources become the one that is served.

Sources were fitted on train, so validation tells how far to trust each. Weights are judged on users
that they were not fitted on: each half by the weights of the other. Where reciprocal rank fusion or
one source alone is better by more than noise, that is served.

Axes: B queries of a batch, U validation users, S sources, N item rows, k list length.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK, no_items
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.fitting.source_lists import NUM_FOLDS, SourceLists
from recsys.models.names import CONTENT, POPULARITY
from recsys.retrieval.blend.candidate_features import blended_lists
from recsys.retrieval.blend.choices import kinds_of_rows
from recsys.retrieval.blend.config import FILL, BlendConfig
from recsys.retrieval.blend.demand import longest_absences
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import FEATURES
from recsys.retrieval.sources import joined_lists, lists_of_rows

LEARNED, FUSION = "learned", "reciprocal_rank_fusion"
NUM_STANDARD_ERRORS = 1.0
"""An alternative that beats the learned weights by more than this many standard errors of the
paired difference is served, so no source is better than what is served by more."""
MIN_COMPARED = 30
"""Queries from which an alternative may be; fewer tell nothing."""
DEMAND_STANDARD_ERRORS = 1.0
"""And weights that read demand those that do not."""
VISIT_L2 = 20.0
"""Times its pull towards 0 on weights of visits, of which a user has several that are alike."""
VISIT_STANDARD_ERRORS = 2.0
"""By which lists lose at most if users in the middle of a visit are ranked by their own history."""
ABSENCE_LOSS = 0.1
"""Share that those who came back lose at most if users who are away for long are ranked so too."""
BLOCK = 512
"""Queries blended at a time."""
SHARED_PLACES = 10
"""First places of the list, of whose scores each source's share is reported."""
SHARED_QUERIES = 1_024
"""Queries of whose lists it is, the first ones."""
CPU = torch.device("cpu")


def learned_blend(
    examples: SourceLists, config: BlendConfig, device: torch.device = CPU
) -> LearnedBlend:
    """Fit weights on queries; they come back to the host."""
    there = examples.to(device)
    with default_device(device):
        blend = LearnedBlend.fit(
            there.lists,
            there.targets,
            config,
            history_lengths=there.history_lengths,
            item_values=there.item_counts.double(),
            demand=there.demand,
        )
    return blend.to(CPU)


def default_device(device: torch.device) -> AbstractContextManager[object]:
    """Set the default device, on which a blend makes its tensors."""
    return nullcontext() if device.type == "cpu" else device


def fusion_profile(sources: Sequence[str], weights: Mapping[str, float]) -> LearnedBlend:
    """Write a surface's reciprocal rank fusion as weights: the same order of items.

    There content ranks only items that are appended after a release.
    """
    return weighted({name: weights.get(name, 1.0) for name in sources if name != CONTENT.name})


def single_profile(sources: Sequence[str], chosen: str) -> LearnedBlend:
    """Rank by one source; the others fill its list up."""
    return weighted({name: 1.0 if name == chosen else FILL for name in sources})


def weighted(by_source: Mapping[str, float]) -> LearnedBlend:
    """Weigh reciprocal ranks alone."""
    weights = torch.zeros(2, len(by_source), len(FEATURES))
    weights[..., FEATURES.index("reciprocal_rank")] = torch.tensor(list(by_source.values()))
    return LearnedBlend(BlendConfig(), tuple(by_source), weights, torch.ones(len(by_source)))


@dataclass(frozen=True, kw_only=True)
class ProfileBlend:
    """The weights of one profile."""

    served: LearnedBlend
    folds: tuple[LearnedBlend, ...]
    """By half of the validation users: weights that the half had no part in."""

    @classmethod
    def unlearned(cls, blend: LearnedBlend) -> ProfileBlend:
        """Use weights that were not fitted on anyone for every half."""
        return cls(served=blend, folds=(blend,) * NUM_FOLDS)

    def with_demand(self, demand: Tensor | None) -> ProfileBlend:
        """Read the demand of items as of another moment, [N, D]."""
        folds = tuple(fold.with_demand(demand) for fold in self.folds)
        return ProfileBlend(served=self.served.with_demand(demand), folds=folds)

    def led_by(self, source: str) -> ProfileBlend:
        """Rank what one source lists as it does, and the rest by these weights."""
        folds = tuple(fold.led_by(source) for fold in self.folds)
        return ProfileBlend(served=self.served.led_by(source), folds=folds)

    def with_settings(self, **settings: Any) -> ProfileBlend:
        """Replace settings by which ready weights rank."""
        served, *folds = (copy.copy(one) for one in (self.served, *self.folds))
        for one in (served, *folds):
            one.config = replace(one.config, **settings)
        return ProfileBlend(served=served, folds=tuple(folds))

    def lists(
        self,
        lists: Mapping[str, TopK],
        history_lengths: Tensor,
        item_counts: Tensor,
        folds: Tensor | None = None,
        length: int | None = None,
    ) -> TopK:
        """Merge lists as they are served, or each query by the weights of its half.

        Args:
            lists: By source, [B, k] each.
            history_lengths: [B].
            item_counts: Events of each item that the sources were fitted on, [N].
            folds: Half of each query's user, [B]; None takes the served blend.
            length: Places that are kept; None keeps every item of any list.
        """
        chosen = {name: lists[name] for name in self.served.sources}
        length = length or sum(top.item_rows.shape[1] for top in chosen.values())
        if folds is None:
            found = blended_lists(self.served, chosen, history_lengths, item_counts, length)
            return TopK(found.scores, found.item_rows)
        merged = no_items(len(folds), length, folds.device)
        for fold, blend in enumerate(self.folds):
            rows = (folds == fold).nonzero()[:, 0]
            if len(rows):
                part = {name: lists_of_rows(top, rows) for name, top in chosen.items()}
                found = blended_lists(blend, part, history_lengths[rows], item_counts, length)
                merged.scores[rows], merged.item_rows[rows] = found.scores, found.item_rows
        return merged

    def blocks(
        self, examples: SourceLists, length: int, *, by_half: bool, device: torch.device = CPU
    ) -> Iterator[tuple[SourceLists, TopK]]:
        """Merge queries in blocks, those with their first places, on the device."""
        now = self.with_demand(examples.demand)
        there = ProfileBlend(
            served=now.served.to(device), folds=tuple(fold.to(device) for fold in now.folds)
        )
        counts = examples.item_counts.to(device)
        for rows in torch.split(torch.arange(len(examples)), BLOCK):
            part = examples.of(rows, self.served.sources)
            part = part.of_their_own(self.served, length)
            part = replace(part, item_counts=counts, demand=None).to(device)
            with default_device(device):
                folds = part.folds if by_half else None
                yield part, there.lists(part.lists, part.history_lengths, counts, folds, length)

    def merged(
        self,
        examples: SourceLists,
        length: int,
        *,
        by_half: bool = False,
        device: torch.device = CPU,
    ) -> TopK:
        """Merge the lists of every query on a device, and keep the first places, [U, length]."""
        return joined_lists(
            [
                TopK(*(part[:, :length].cpu() for part in top))
                for _, top in self.blocks(examples, length, by_half=by_half, device=device)
            ]
        )

    def measured(
        self,
        examples: SourceLists,
        metric: str,
        *,
        by_half: bool = False,
        device: torch.device = CPU,
    ) -> Tensor:
        """Measure merged lists for every query, [U] float64; NaN without a target."""
        ranks = self.target_ranks(examples, length_of(metric), by_half=by_half, device=device)
        return per_user_metric(ranks, metric)

    def target_ranks(
        self, examples: SourceLists, length: int, *, by_half: bool, device: torch.device = CPU
    ) -> Jagged:
        """Find every target in the first places of the merged lists."""
        ranks = [
            list_ranks(top.item_rows, part.targets).values.cpu()
            for part, top in self.blocks(examples, length, by_half=by_half, device=device)
        ]
        return Jagged(torch.cat(ranks), examples.targets.offsets)

    def save(self, directory: Path, profile: str) -> None:
        self.served.save(directory / f"blend_{profile}")
        for fold, blend in enumerate(self.folds):
            blend.save(directory / "folds" / f"{profile}_{fold}")

    @classmethod
    def load(cls, directory: Path, profile: str) -> ProfileBlend:
        folds = (directory / "folds" / f"{profile}_{fold}" for fold in range(NUM_FOLDS))
        return cls(
            served=LearnedBlend.load(directory / f"blend_{profile}"),
            folds=tuple(LearnedBlend.load(fold) for fold in folds),
        )


class FittedBlend(NamedTuple):
    """The weights of a profile and how they were chosen."""

    blend: ProfileBlend
    document: dict[str, Any]
    values: Tensor | None = None
    """What the served lists reach by query, [U], but for visits and absences; NaN without a target.

    Each fit chooses days of absence of its own, which would hide what else differs."""


def fit_blend(
    examples: SourceLists,
    config: BlendConfig,
    fusion_weights: Mapping[str, float],
    metric: str,
    device: torch.device = CPU,
    visits: SourceLists | None = None,
) -> FittedBlend:
    """Fit a profile's weights, judge them, and choose the served blend.

    Args:
        visits: Queries in the middle of a visit; weights of users' own history are fitted on them.
    """
    sources = tuple(examples.lists)
    fusion = fusion_profile(sources, fusion_weights)
    alternatives = {FUSION: fusion, **{name: single_profile(sources, name) for name in sources}}
    values = {FUSION: ProfileBlend.unlearned(fusion).measured(examples, metric, device=device)}
    values |= {name: measured_source(examples, name, metric, device) for name in sources}
    document: dict[str, Any] = {
        "sources": list(sources),
        "metric": metric,
        "num_queries": len(examples),
        "num_found": examples.num_found(),
    }
    learned, measured, about_demand = judged_demand(examples, config, metric, device)
    document |= about_demand
    usual, served, compared = FUSION, ProfileBlend.unlearned(fusion), dict(values)
    if learned is not None and measured is not None:
        is_set = config.new_item_odds is not None
        found = judged_new_items(learned, measured, examples, metric, device, is_set=is_set)
        learned, values[LEARNED], document["new_items"] = found.blend, found.values, found.document
        own = None if visits is None else own_profile(visits, sources, config, device)
        learned, with_own, document["absence"] = judged_absence(
            learned, own, found.values, examples, metric, device
        )
        # The cost of odds that are set is accepted, and that of absences.
        before = found.before if is_set else found.values
        compared[LEARNED] = max(before, with_own, key=lambda one: float(one.nanmean()))
        usual, served = LEARNED, learned
        document["loss"] = learned.served.loss
    judged = judged_alternatives(compared, usual)
    document |= {"best_alternative": judged, "reason": why_served(judged, usual, config, metric)}
    if judged["is_better"] and config.enabled:
        usual = judged["name"]
        served = ProfileBlend.unlearned(alternatives[usual])
        if learned is not None and usual != FUSION:
            served = learned.led_by(usual)
    document["served"] = usual
    document["validation"] = {name: float(value.nanmean()) for name, value in values.items()}
    document |= weights_and_shares(served.served, examples, device)
    return FittedBlend(served, document, values[document["served"]])


def judged_alternatives(values: Mapping[str, Tensor], usual: str) -> dict[str, Any]:
    """Find what is better than the usual list by more than noise, or else the best alternative.

    Args:
        values: What each list reaches by query, [U].
    """
    ahead = {
        name: paired_difference(value, values[usual])
        for name, value in values.items()
        if name != usual
    }
    better = [
        name
        for name, (difference, error, number) in ahead.items()
        if number >= MIN_COMPARED and difference > NUM_STANDARD_ERRORS * error
    ]
    best = max(better or ahead, key=lambda name: float(values[name].nanmean()))
    difference, error, number = ahead[best]
    known = {"ahead": difference, "standard_error": error} if number > 1 else {}
    return {"name": best, "is_better": bool(better), **known}


def why_served(judged: Mapping[str, Any], usual: str, config: BlendConfig, metric: str) -> str:
    """Describe how the usual list compares with the best alternative."""
    why = []
    if not config.enabled:
        why = ["blend.enabled is false"]
    elif usual != LEARNED:
        why = [
            f"fewer than {config.min_found} validation users of a half have their item in any "
            "list (blend.min_found), too few to learn weights from"
        ]
    if "ahead" in judged:
        ours = "learned weights have" if usual == LEARNED else "fusion has"
        why.append(
            f"against {judged['name'].replace('_', '-')}, the best alternative, {ours} "
            f"{-judged['ahead']:+.4f} {metric} (standard error {judged['standard_error']:.4f})"
        )
    return "; ".join(why)


def source_gains(
    examples: SourceLists,
    names: Sequence[str],
    fitted: FittedBlend,
    config: BlendConfig,
    device: torch.device = CPU,
) -> dict[str, dict[str, float]]:
    """Measure what each of these sources adds to the others' blend, paired by query."""
    gains = {}
    # Weights of users' own history are learned of other queries.
    examples = replace(examples, days_away=None)
    with_all = fitted.blend.measured(
        examples, fitted.document["metric"], by_half=True, device=device
    )
    if not fitted.document.get("demand", {}).get("read"):
        examples = replace(examples, demand=None)
    if fitted.document.get("new_items", {}).get("odds") == 1:
        config = replace(config, new_item_odds=1.0)
    for name in names:
        others = [one for one in examples.lists if one != name]
        if not others or fitted.values is None:
            continue
        part = examples.of(torch.arange(len(examples)), others)
        without = learned_profile(part, config, device)
        without = without or ProfileBlend.unlearned(fusion_profile(others, {}))
        values = without.measured(part, fitted.document["metric"], by_half=True, device=device)
        difference, error, number = paired_difference(with_all, values)
        gains[name] = {"difference": difference, "standard_error": error, "queries": number}
    return gains


def judged_demand(
    examples: SourceLists, config: BlendConfig, metric: str, device: torch.device
) -> tuple[ProfileBlend | None, Tensor | None, dict[str, Any]]:
    """Fit weights with and without items' demand; choose those that are better, and say why.

    Returns:
        The weights and what they reach by query, each by weights that its half had no part in;
        None where there are too few queries; ``demand`` of the document.
    """

    def reached(blend: ProfileBlend) -> Tensor:
        return blend.measured(examples, metric, by_half=True, device=device)

    without = learned_profile(replace(examples, demand=None), config, device)
    if without is None or not config.recent_demand or examples.demand is None:
        why = "events have no times" if config.recent_demand else "blend.recent_demand is false"
        values = None if without is None else reached(without)
        return without, values, {"demand": {"read": False, "reason": why}}
    with_it = learned_profile(examples, config, device)
    assert with_it is not None
    of_both = reached(with_it), reached(without)
    difference, error, _ = paired_difference(*of_both)
    reads = difference > DEMAND_STANDARD_ERRORS * error
    document = {
        "read": reads,
        "reason": f"with demand {difference:+.4f} {metric} (standard error {error:.4f})",
        "difference": difference,
        "standard_error": error,
    }
    chosen, values = (with_it, of_both[0]) if reads else (without, of_both[1])
    return chosen, values, {"demand": document}


def own_profile(
    visits: SourceLists, sources: Sequence[str], config: BlendConfig, device: torch.device
) -> ProfileBlend | None:
    """Fit weights of users' own history, without others' demand; None where there are too few."""
    names = [name for name in sources if name != POPULARITY.name]
    if not names or not len(visits):
        return None
    own = replace(visits.of(torch.arange(len(visits)), names), demand=None)
    # The weights of all are read alone, so those of kinds are not fitted.
    config = replace(config, new_item_odds=1.0, item_bounds=(), shrinkage_queries=math.inf)
    return learned_profile(own, replace(config, l2=VISIT_L2 * config.l2), device)


def judged_absence(
    learned: ProfileBlend,
    own: ProfileBlend | None,
    values: Tensor,
    examples: SourceLists,
    metric: str,
    device: torch.device,
) -> tuple[ProfileBlend, Tensor, dict[str, Any]]:
    """Find the days after which users are ranked by their own history, as they are during a visit.

    Others' demand tells what people want who come back, their own history what goes with their last
    event. The fewest of ``longest_absences`` are taken at which those who came back lose no more
    than ``ABSENCE_LOSS`` of what they took next; or visits alone; or none.

    Args:
        own: Weights of users' own history; None takes those of all.
        values: What the weights reach by query, [U].

    Returns:
        The weights of both; what they reach by query, [U]; ``absence`` of the document.
    """

    def reached(blend: ProfileBlend, queries: SourceLists) -> Tensor:
        return blend.measured(queries, metric, by_half=True, device=device)

    with_own = learned
    if own is not None:
        pairs = zip((learned.served, *learned.folds), (own.served, *own.folds), strict=True)
        served, *folds = (one.with_own(other) for one, other in pairs)
        with_own = ProfileBlend(served=served, folds=tuple(folds))
    if (days := learned.served.config.absent_days) is not None:
        return with_own, values, {"days": days, "set": True}
    measured = reached(with_own, examples)
    difference, error, _ = paired_difference(measured, values)
    document = {"days": None, "set": False, "difference": difference, "standard_error": error}
    if difference < -VISIT_STANDARD_ERRORS * error:
        return learned, values, document
    first = examples.with_first_targets()
    before = reached(with_own, first)
    every = replace(first, days_away=torch.ones(len(first)))
    after = reached(with_own.with_settings(absent_days=0.5), every)
    for days in longest_absences(examples.days_away):
        assert examples.days_away is not None
        kept = float(after.where(examples.days_away > days, before).nanmean() / before.nanmean())
        if kept >= 1 - ABSENCE_LOSS:
            found = with_own.with_settings(absent_days=days)
            return found, reached(found, examples), document | {"days": days, "kept": kept}
    return with_own, measured, document


class OddsOfNew(NamedTuple):
    """Weights with the odds that were kept for items without events."""

    blend: ProfileBlend
    values: Tensor
    """What they reach by query, [U]."""
    before: Tensor
    """The same at odds of 1."""
    document: dict[str, Any]
    """The odds, and the recall of targets without events, of the others and of all, at odds of 1
    and at those."""


def judged_new_items(
    learned: ProfileBlend,
    values: Tensor,
    examples: SourceLists,
    metric: str,
    device: torch.device,
    *,
    is_set: bool,
) -> OddsOfNew:
    """Keep the odds of items without events if they are set, or if all queries do not lose by them.

    Args:
        values: What the weights with these odds reach by query, [U].
    """
    odds = learned.served.config.new_item_odds or 1.0
    if odds == 1:
        return OddsOfNew(learned, values, values, {"odds": 1.0, "set": is_set})
    plain, k = learned.with_settings(new_item_odds=1.0), length_of(metric)
    ranks = {
        name: blend.target_ranks(examples, k, by_half=True, device=device)
        for name, blend in (("before", plain), ("after", learned))
    }
    before = per_user_metric(ranks["before"], metric)
    difference, error, _ = paired_difference(values, before)
    keeps = is_set or difference >= -error
    new = kinds_of_rows((examples.item_counts == 0).long(), examples.targets.values) == 1
    document: dict[str, Any] = {
        "odds": odds if keeps else 1.0,
        "tried": odds,
        "set": is_set,
        "difference": difference,
        "standard_error": error,
    }
    for name, of_targets in ranks.items():
        hits = ((of_targets.values > 0) & (of_targets.values <= k)).double()
        parts = {"new items": hits[new], "others": hits[~new], "all": hits}
        document[name] = {part: float(of.mean()) for part, of in parts.items() if len(of)}
    kept = (learned, values) if keeps else (plain, before)
    return OddsOfNew(*kept, before, document)


def unjudged_blend(sources: Sequence[str], fusion_weights: Mapping[str, float]) -> FittedBlend:
    """Choose the surface's weights where no user has a held-out event to judge others by."""
    fusion = fusion_profile(tuple(sources), fusion_weights)
    document = {
        "sources": list(sources),
        "num_queries": 0,
        "num_found": 0,
        "served": FUSION,
        "reason": "no user has a held-out event in the validation split, so nothing was learned",
        "validation": {},
    }
    return FittedBlend(ProfileBlend.unlearned(fusion), document)


def measured_source(
    examples: SourceLists, source: str, metric: str, device: torch.device = CPU
) -> Tensor:
    """Measure one source's lists for every query, [U] float64; NaN without a target.

    Lists shorter than the metric's k are filled up by the other sources, as in serving.
    """
    rows, k = examples.lists[source].item_rows, length_of(metric)
    values = per_user_metric(list_ranks(rows, examples.targets), metric)
    is_short = (rows[:, :k] < 1).any(1) if rows.shape[1] >= k else torch.ones(len(rows)) > 0
    short = is_short.nonzero()[:, 0]
    if len(short):
        blend = ProfileBlend.unlearned(single_profile(tuple(examples.lists), source))
        part = examples.of(short, tuple(examples.lists))
        values[short] = blend.measured(part, metric, device=device)
    return values


def length_of(metric: str) -> int:
    """Read the list length of a metric such as ``ndcg@10``."""
    return int(metric.partition("@")[2])


def learned_profile(
    examples: SourceLists, config: BlendConfig, device: torch.device = CPU
) -> ProfileBlend | None:
    """Fit weights on all users and on each half; None where there are too few to."""
    if not config.enabled:
        return None
    everyone = torch.arange(len(examples))
    halves = [
        examples.of(everyone[examples.folds != fold], tuple(examples.lists))
        for fold in range(NUM_FOLDS)
    ]
    if min(half.num_found() for half in halves) < config.min_found:
        return None
    served, *folds = (learned_blend(part, config, device) for part in (examples, *halves))
    return ProfileBlend(served=served, folds=tuple(folds))


def weights_and_shares(
    blend: LearnedBlend, examples: SourceLists, device: torch.device = CPU
) -> dict[str, Any]:
    """Report the weights of all users and items, and each source's share of the first places."""
    there, totals = blend.to(device), torch.zeros(len(blend.sources), dtype=torch.float64)
    for rows in torch.split(torch.arange(min(len(examples), SHARED_QUERIES)), BLOCK):
        part = examples.of(rows, blend.sources).to(device)
        with default_device(device):
            found = blended_lists(
                there, part.lists, part.history_lengths, part.item_counts, SHARED_PLACES
            )
        if found.contributions is not None:
            totals += found.contributions.double().sum((0, 1)).cpu()
    shares = totals / totals.sum().clamp_min(1e-30)
    return {
        "weights": {
            name: dict(zip(FEATURES, map(float, row), strict=True))
            for name, row in zip(blend.sources, blend.weights[-1], strict=True)  # [S, F]
        },
        "shares": dict(zip(blend.sources, map(float, shares), strict=True)),
    }


def paired_difference(ours: Tensor, theirs: Tensor) -> tuple[float, float, int]:
    """Average the differences of queries [U] with a target: mean, its standard error, number."""
    ahead = ours - theirs
    ahead = ahead[~ahead.isnan()]
    error = float(ahead.std() / len(ahead) ** 0.5) if len(ahead) > 1 else float("inf")
    return float(ahead.mean()), error, len(ahead)
