"""The estimates of one bundle on one log, as a document that is printed, and shown as a page.

A bundle answers each request of the log as a server would have: with the history up to that moment,
its surfaces' exploration, and the requested length.

Axes: n lists, K slots, m possible items of a slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelines.off_policy.served_log import EventHistories, ServedList, ServedLog
from recsys.evaluation.off_policy.estimators import (
    Estimate,
    cascade_doubly_robust,
    fitted_folds,
    fold_of,
    interval_of,
    ips,
    mean_of,
    snips,
)
from recsys.evaluation.off_policy.logs import (
    Floats,
    Integers,
    LoggedLists,
    cascade,
    overlap,
    typical_slot,
)
from serving.online.store import read_seed
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions

MAX_HISTORY = 200
FIRST_PAGE = "start"


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Settings of an evaluation."""

    max_lists: int = 20_000
    """Most lists that are evaluated; a longer log is sampled."""
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_lists < 2:
            raise ValueError(f"max_lists must be at least 2, got {self.max_lists}")


class PolicyAnswer(NamedTuple):
    """Answer of a policy to one request of the log."""

    chances: Sequence[float]
    """Probability of each logged item."""
    slots: Sequence[tuple[Sequence[str], Floats]]
    """Possible items of each slot below the logged ones, and the chance of each, [m]."""


class BundlePolicy:
    """Lists of a server with a bundle."""

    def __init__(self, recommender: Recommender) -> None:
        self.recommender = recommender
        self.name = f"bundle {recommender.bundle.version}"
        newest = recommender.bundle.users.newest_time
        self.newest_ms = None if newest is None else 1_000 * newest
        """Time of the newest event that it was fitted on, or None."""

    @classmethod
    def load(cls, path: Path, config: Path | None = None) -> BundlePolicy:
        """Load a bundle with a server's file of surfaces, rules and experiments."""
        if not path.is_dir():
            raise ValueError(f"there is no folder {path}; name a bundle")
        return cls(Recommender.load(path, ServingOptions(config=config)))

    def answer(self, served: ServedList, histories: EventHistories) -> PolicyAnswer | str:
        """Answer the request of a list as of its moment; a text is the reason for no answer."""
        recommender = self.recommender
        catalogue = recommender.bundle.catalogue
        request = Request.model_validate_json(served.request)
        if request.cursor not in (None, FIRST_PAGE):
            return "the list is a later page of another"
        request = request.model_copy(update={"explain": False, "cursor": None})
        visitor = histories.visitor(served.user_id, served.time_ms, MAX_HISTORY)
        seed = read_seed(served.request_id) + 1
        try:
            made = recommender.make(request, now_ms=served.time_ms, visitor=visitor, seed=seed)
        except ValueError as error:
            return f"the policy refuses the request ({error})"
        rows = [catalogue.row_of(item_id) or 0 for item_id in served.item_ids]
        found = recommender.arranger.slot_chances(
            rows, made.ranked, made.resolved, made.query, made.eligible.mask
        )
        ids = catalogue.item_ids
        return PolicyAnswer(
            [one.chance for one in found],
            [([ids[row] for row in one.item_rows.tolist()], one.chances) for one in found],
        )


class Material(NamedTuple):
    """Input of the estimates."""

    log: LoggedLists
    predicted: Floats
    """Reward model's rates of the logged items, [n, K]."""
    expected: Floats
    """Its mean over what the policy shows in each slot, below the logged items, [n, K]."""
    below: Floats
    """Its rates of all slots below each, [n, K]."""
    users: Integers
    """Number of each list's user, [n]."""
    times_ms: Integers


def evaluate(
    served: ServedLog,
    policy: BundlePolicy,
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
    about = {
        "policy": policy.name,
        "logging": ", ".join(f"bundle {name}" for name, _ in bundles.most_common(3)),
        "reward": served.reward,
        "unit": "list",
        "lists_in_log": number,
        "left_out": dict(left_out),
        "known_share": 0.0 if newest is None else float((times <= newest).mean()),
    }
    return build_document(material, config, about)


def query_policy(
    served: ServedLog,
    policy: BundlePolicy,
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
    expected, below = np.zeros(shape), np.zeros(shape)
    kept, refused = np.ones(len(served), np.bool_), Counter[str]()
    for place in progress(range(len(served))):
        one, model = served.lists[place], models[folds[place]]
        answer = policy.answer(one, served.events)
        if isinstance(answer, str):
            kept[place] = False
            refused[answer] += 1
            continue
        length = len(one.item_ids)
        evaluated[place, :length] = answer.chances
        predicted[place, :length] = model.rates(items[place])[:length]
        below[place, :length] = model.slots[:length].sum() - model.slots[:length].cumsum()
        for slot, (item_ids, chances) in enumerate(answer.slots):
            rates = model.items[[row_of.get(item_id, 0) for item_id in item_ids]]
            expected[place, slot] = (chances * rates).sum() * model.slots[slot]
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
    parts = (predicted[kept], expected[kept], below[kept], users[kept], times[kept])
    return Material(log, *parts), refused


def build_document(
    material: Material, config: OffPolicyConfig, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the document of all numbers: the logging policy's mean, then DR, SNIPS and IPS."""
    log, users, times = material.log, material.users, material.times_ms
    earned, slot = log.earned, typical_slot(log)
    weights = cascade(log)
    described = overlap(weights[:, slot])
    robust = cascade_doubly_robust(
        earned,
        log.slot_weights,
        material.predicted + material.below,
        # Below the end of the list, the model's own future counts once.
        material.expected + material.below,
    )
    logging = mean_of(earned.sum(1))
    found = {
        "dr": robust,
        "snips": snips(earned, weights, log.present),
        "ips": ips(earned, weights),
    }
    quantiles = {f"{level:g}": value for level, value in described.quantiles.items()}
    more = {"weights": "cascade", "effective": described.effective, "trust": described.grade}
    rows = [_row("logging", logging, None, users, config) | {"trust": "good"}]
    rows += [_row(name, one, logging, users, config) | more for name, one in found.items()]
    return {
        **about,
        "num_lists": len(log),
        "num_users": len(np.unique(users)),
        "slots": int(log.rewards.shape[1]),
        "from": _moment(times.min()),
        "until": _moment(times.max()),
        "config": asdict(config),
        "typical_slot": slot + 1,
        "overlap": {
            "cascade": {
                **asdict(described),
                "quantiles": quantiles,
                "effective_share": described.effective_share,
                "strayed": described.strayed,
                "trust": described.grade,
            }
        },
        "rows": rows,
    }


def _row(
    name: str,
    estimate: Estimate,
    logging: Estimate | None,
    users: Integers,
    config: OffPolicyConfig,
) -> dict[str, Any]:
    """Describe an estimate and its gain over the logging policy, each with its interval."""
    own = interval_of(estimate, confidence=config.confidence, users=users)
    row = {"estimator": name, "value": estimate.value, "low": own.low, "high": own.high}
    if logging is None:
        return row
    gain = Estimate(estimate.value - logging.value, estimate.influence - logging.influence)
    own = interval_of(gain, confidence=config.confidence, users=users)
    return row | {"gain": gain.value, "gain_low": own.low, "gain_high": own.high}


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(int(time_ms) / 1_000, UTC).isoformat(sep=" ", timespec="minutes")
