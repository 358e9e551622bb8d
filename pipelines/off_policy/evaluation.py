"""Every estimate of one policy on one log, as a document that is printed and drawn.

Axes: n lists, K slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from pipelines.off_policy.policies import EvaluatedPolicy, PolicyAnswer, Refused
from pipelines.off_policy.served_log import ServedLog
from recsys.evaluation.off_policy.estimators import (
    Estimate,
    RateModel,
    cascade_doubly_robust,
    direct_method,
    doubly_robust,
    fitted_folds,
    fold_of,
    ips,
    mean_of,
    snips,
)
from recsys.evaluation.off_policy.intervals import betting_sequence, interval_of
from recsys.evaluation.off_policy.logs import (
    WEIGHTS,
    Floats,
    Integers,
    LoggedLists,
    Overlap,
    clipped,
    overlap,
    typical_slot,
)

MAX_LISTS = 20_000
SWITCH_AT = 10.0


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Settings of an evaluation."""

    max_lists: int = MAX_LISTS
    """Most lists that are evaluated; a longer log is sampled."""
    clip: float | None = None
    """Weights are cut there."""
    switch_at: float = SWITCH_AT
    """Weight above which switch DR trusts the reward model."""
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_lists < 2:
            raise ValueError(f"max_lists must be at least 2, got {self.max_lists}")
        for name in ("clip", "switch_at"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, got {self.confidence}")


class Material(NamedTuple):
    """Input of the estimates."""

    log: LoggedLists
    predicted: Floats
    expected: Floats
    """Its mean over what the policy shows in each slot, below the logged items, [n, K]."""
    below: Floats
    """Its rates of all slots below each, [n, K]."""
    direct: Floats
    """Its rates of the list that the policy would show, [n]."""
    users: Integers
    """Number of each list's user, [n]."""
    times_ms: Integers


def evaluate(
    served: ServedLog,
    policy: EvaluatedPolicy,
    config: OffPolicyConfig,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> dict[str, Any]:
    """Evaluate a policy on served lists."""
    number = len(served)
    if number > config.max_lists:
        drawn = np.random.default_rng(config.seed).choice(number, config.max_lists, replace=False)
        served = served.take(np.sort(drawn))
    material, refused = query_policy(served, policy, progress)
    left_out = Counter({name: count for name, count in served.left_out.items() if count}) + refused
    bundles = Counter(one.bundle or "unknown" for one in served.lists)
    newest, times = policy.newest_ms, material.times_ms
    known = 0.0 if newest is None else float((times <= newest).mean())
    return build_document(
        material,
        config,
        {
            "policy": policy.name,
            "logging": ", ".join(f"bundle {name}" for name, _ in bundles.most_common(3)),
            "reward": served.reward,
            "unit": "list",
            "lists_in_log": number,
            "left_out": dict(left_out),
            "known_share": known,
        },
    )


def query_policy(
    served: ServedLog,
    policy: EvaluatedPolicy,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> tuple[Material, Counter[str]]:
    """Query a policy with every list of a log.

    Returns:
        The material, and how many lists the policy does not answer, by the reason.
    """
    row_of: dict[str, int] = {}
    shape = served.rewards.shape
    items, present = np.zeros(shape, np.int64), np.arange(shape[1]) < served.lengths[:, None]
    for place, one in enumerate(served.lists):
        for slot, item_id in enumerate(one.item_ids):
            items[place, slot] = row_of.setdefault(item_id, len(row_of) + 1)
    users = served.users
    folds = fold_of(users)
    models = fitted_folds(items, served.rewards, present, len(row_of) + 1, folds)
    evaluated, predicted = np.ones(shape), np.zeros(shape)
    expected, below, direct = np.zeros(shape), np.zeros(shape), np.zeros(len(served))
    kept, refused = np.ones(len(served), np.bool_), Counter[str]()
    for place in progress(range(len(served))):
        one, model = served.lists[place], models[folds[place]]
        answer = policy.answer(one, served.events)
        if isinstance(answer, Refused):
            kept[place] = False
            refused[answer.reason] += 1
            continue
        length = len(one.item_ids)
        evaluated[place, :length] = answer.chances
        predicted[place, :length] = model.rates(items[place])[:length]
        expected[place, :length] = _expected(answer, model, row_of)
        below[place, :length] = model.slots[:length].sum() - model.slots[:length].cumsum()
        shown = np.array([row_of.get(item_id, 0) for item_id in answer.shown], np.int64)
        direct[place] = (model.items[shown] * model.slots[: len(shown)]).sum()
    if not kept.any():
        reason, count = refused.most_common(1)[0]
        raise ValueError(
            f"{policy.name} answers none of the {len(served):,} lists: {reason} ({count:,}). "
            "Evaluate a policy that serves the same surfaces"
        )
    log = LoggedLists(
        rewards=served.rewards[kept],
        propensities=served.propensities[kept],
        evaluated=evaluated[kept],
        lengths=served.lengths[kept],
    )
    times = np.array([one.time_ms for one in served.lists], np.int64)
    parts = (predicted[kept], expected[kept], below[kept], direct[kept], users[kept], times[kept])
    return Material(log, *parts), refused


def _expected(answer: PolicyAnswer, model: RateModel, row_of: Mapping[str, int]) -> Floats:
    """Average the model's rates over the items of each slot, [k]."""
    means = [
        float((chances * model.items[[row_of.get(item_id, 0) for item_id in item_ids]]).sum())
        if len(chances)
        else 0.0
        for item_ids, chances in answer.slots
    ]
    found: Floats = np.array(means) * model.slots[: len(means)]
    return found


def compute_estimates(
    material: Material, config: OffPolicyConfig
) -> dict[str, tuple[str, Estimate]]:
    """Make every estimate: the weights it uses and the estimate, by name; the best first."""
    log = material.log
    earned = log.earned
    weights = {name: clipped(of(log), config.clip) for name, of in WEIGHTS.items()}
    slot_weights = weights["independent"]
    robust = cascade_doubly_robust(
        earned,
        slot_weights,
        material.predicted + material.below,
        # Below the end of the list, the model's own future counts once.
        material.expected + material.below,
    )
    cascade, whole = weights["cascade"], weights["whole_list"]
    model = material.predicted, material.expected
    found = {
        "dr": ("cascade", robust),
        "snips": ("cascade", snips(earned, cascade, log.present)),
        "ips": ("cascade", ips(earned, cascade)),
    }
    if log.rewards.shape[1] == 1:
        switched = doubly_robust(earned, cascade, *model, switch_at=config.switch_at)
        found |= {
            "sndr": ("cascade", doubly_robust(earned, cascade, *model, self_normalized=True)),
            "switch_dr": ("cascade", switched),
        }
    else:
        switched = doubly_robust(earned, slot_weights, *model, switch_at=config.switch_at)
        found |= {
            "whole_list_snips": ("whole_list", snips(earned, whole, log.present)),
            "whole_list_ips": ("whole_list", ips(earned, whole)),
            "independent_ips": ("independent", ips(earned, slot_weights)),
            "independent_snips": ("independent", snips(earned, slot_weights, log.present)),
            "independent_switch_dr": ("independent", switched),
        }
    return {**found, "dm": ("none", direct_method(material.direct))}


def build_document(
    material: Material, config: OffPolicyConfig, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the document of all numbers."""
    log, users = material.log, material.users
    logging = mean_of(log.earned.sum(1))
    slot = typical_slot(log)
    described = {name: overlap(of(log)[:, slot]) for name, of in WEIGHTS.items()}
    if log.rewards.shape[1] == 1:
        described = {"cascade": described["cascade"]}
    rows = [_row("logging", "none", logging, logging, None, users, config)]
    for name, (weighing, estimate) in compute_estimates(material, config).items():
        row = _row(name, weighing, estimate, logging, described.get(weighing), users, config)
        if name in ("ips", "whole_list_ips") and config.clip is None:
            bounds = betting_sequence(log, WEIGHTS[weighing](log), error=1 - config.confidence)
            row |= {"always_low": float(bounds.low[-1]), "always_high": float(bounds.high[-1])}
        rows.append(row)
    times = material.times_ms
    return {
        **about,
        "num_lists": len(log),
        "num_users": len(np.unique(users)),
        "slots": int(log.rewards.shape[1]),
        "from": _moment(times.min()),
        "until": _moment(times.max()),
        "config": asdict(config),
        "typical_slot": slot + 1,
        "overlap": {name: _describe_overlap(one) for name, one in described.items()},
        "rows": rows,
    }


def _row(
    name: str,
    weighing: str,
    estimate: Estimate,
    logging: Estimate,
    described: Overlap | None,
    users: Integers,
    config: OffPolicyConfig,
) -> dict[str, Any]:
    row: dict[str, Any] = {"estimator": name, "weights": weighing}
    gain = Estimate(estimate.value - logging.value, estimate.influence - logging.influence)
    measured = {("value", "low", "high"): estimate, ("gain", "gain_low", "gain_high"): gain}
    for names, one in measured.items():
        if one is gain and name == "logging":
            continue
        own = interval_of(one, confidence=config.confidence, users=users)
        # The spread of a model's predictions says nothing of how wrong they are.
        bounds = (None, None) if name == "dm" else (own.low, own.high)
        row |= zip(names, (one.value, *bounds), strict=True)
    if described is not None:
        return row | {"effective": described.effective, "trust": described.grade}
    return row | {"trust": "good" if name == "logging" else "model"}


def _describe_overlap(one: Overlap) -> dict[str, Any]:
    quantiles = {f"{level:g}": value for level, value in one.quantiles.items()}
    return {
        **asdict(one),
        "quantiles": quantiles,
        "effective_share": one.effective_share,
        "strayed": one.strayed,
        "trust": one.grade,
    }


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(int(time_ms) / 1_000, UTC).isoformat(sep=" ", timespec="minutes")
