"""The harm gate: an adapter must help its domain, and harm no protected slice of it.

Judged on held-out users that neither trained the adapter nor selected its step. The users' hidden
items are of the domain, which a request says; so the baseline is the base over the domain's items
alone, and only what the adapter adds to that is its gain. Requests of other domains never reach the
adapter, so their lists are the base's to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipelines.adapters.task import Judged
from pipelines.config.run import RunConfig
from pipelines.config.trainings import AdapterConfig
from pipelines.engine.artifacts import write_json
from pipelines.engine.errors import RefusedError
from recsys.evaluation.paired import Paired, paired
from recsys.evaluation.slices import item_popularity_slices, user_activity_slices
from serving.bundle.manifest import Verdict

Metrics = dict[str, dict[str, float]]
ONE_SIDED = 1.645
"""Standard errors below 0 of a one-sided test at 5%."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Verdicts, metrics and changes of an adapter."""

    verdicts: list[Verdict]
    metrics: Metrics
    """Averages over the domain's users: base and adapter, over all items and the domain's own."""
    changes: list[dict[str, Any]]
    """Change of the metric for all users and for each protected slice, over the domain's items
    alone: number of users, the base's metric, difference and paired interval."""

    def as_json(self) -> dict[str, Any]:
        return {
            "verdicts": [verdict.model_dump() for verdict in self.verdicts],
            "metrics": self.metrics,
            "changes": self.changes,
        }


def judge_adapter(judged: Judged, domain: str, config: AdapterConfig) -> Judgement:
    """Compare an adapter with its base, both over the domain's items alone.

    A request that names its domain needs no adapter to be answered with the domain's items, so that
    much is the base's.
    """
    metric = config.metric
    before, after = judged.base_within.per_user(metric), judged.adapted_within.per_user(metric)
    averages = {
        "base": judged.base.per_user(metric),
        "base_within_domain": before,
        "adapter_within_domain": after,
        "adapter": judged.adapted.per_user(metric),
    }
    metrics = {name: {metric: float(one.mean())} for name, one in averages.items()}
    name, whole = f"domain {domain}", paired(before, after)
    verdicts, changes = [_gain(name, whole, metrics, config)], [_change(name, whole)]
    for name, inside in _protected(judged, config):
        verdicts.append(_no_harm(before[inside], after[inside], name, config))
        changes.append(_change(name, paired(before[inside], after[inside])))
    return Judgement(verdicts=verdicts, metrics=metrics, changes=changes)


def _change(name: str, found: Paired) -> dict[str, Any]:
    change = {one: getattr(found, one) for one in ("num_users", "difference", "low", "high")}
    return {"name": name, "before": found.champion, **change}


def _protected(judged: Judged, config: AdapterConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the protected slices that are large enough, and their users, [U] bool.

    Slices are by the activity of users and the popularity of their held-out items.
    """
    targets, queries = judged.base_within.targets, judged.queries
    owners = targets.segments()
    for part in (
        *user_activity_slices(targets, queries.num_events),
        *item_popularity_slices(targets, queries.item_counts),
    ):
        inside = torch.zeros(targets.batch_size, dtype=torch.bool)
        inside[owners[part.targets]] = True
        if int(inside.sum()) >= config.min_slice_users:
            yield f"{part.group} {part.name}", inside


def _gain(name: str, found: Paired, metrics: Metrics, config: AdapterConfig) -> Verdict:
    metric = config.metric
    base, value = (metrics[f"{one}_within_domain"][metric] for one in ("base", "adapter"))
    bound = base * (1 + config.min_gain)
    return Verdict(
        name=f"{metric} of {name}",
        value=value,
        bound=bound,
        # Equal is no gain, and an adapter costs something.
        passed=value > bound if config.min_gain == 0 else value >= bound,
        reason=f"{found.num_users} held-out users; over the domain's items alone the base has "
        f"{base:.4f}, the adapter adds {found.difference:+.4f} ({found.low:+.4f} to "
        f"{found.high:+.4f}: {found.decision}); over the whole catalogue the base has "
        f"{metrics['base'][metric]:.4f}, the adapter {metrics['adapter'][metric]:.4f}",
    )


def _no_harm(before: Tensor, after: Tensor, name: str, config: AdapterConfig) -> Verdict:
    difference = after - before
    error = float(difference.std()) / math.sqrt(len(difference))
    bound = -ONE_SIDED * error - config.max_drop * float(before.mean())
    value = float(difference.mean())
    return Verdict(
        name=f"{config.metric} of {name}",
        value=value,
        bound=bound,
        passed=value >= bound,
        reason=f"change over {len(before)} held-out users from {float(before.mean()):.4f}; "
        "the bound is what chance explains",
    )


class RefusedAdapterError(RefusedError):
    """The gate refused an adapter."""

    def __init__(self, message: str, judgement: Judgement) -> None:
        super().__init__(message)
        self.judgement = judgement


MIN_USERS = 2
"""Held-out users without whom a step cannot be selected, or an adapter judged."""


def refuse_few(config: RunConfig, domain: str, num_users: int) -> None:
    """Stop if too few users select the step, or judge, as in a small domain."""
    few = Verdict(
        name=f"held-out users of domain {domain}",
        value=num_users,
        bound=MIN_USERS,
        passed=num_users >= MIN_USERS,
        reason="as many select the step, and as many others judge",
    )
    refuse_harm(config, domain, Judgement(verdicts=[few], metrics={}, changes=[]))


def refuse_harm(config: RunConfig, domain: str, judgement: Judgement) -> None:
    """Write the verdicts and stop if one of them failed."""
    verdicts = judgement.verdicts
    if all(verdict.passed for verdict in verdicts):
        return
    path = config.workspace / "refused-adapter.json"
    write_json(path, {"domain": domain, **judgement.as_json()})
    failed = [
        f"  {one.name}: {one.value:.4f} against a bound of {one.bound:.4f} ({one.reason})"
        for one in verdicts
        if not one.passed
    ]
    raise RefusedAdapterError(
        f"the adapter of domain {domain!r} is refused and was not registered; the domain is "
        "answered as before.\n" + "\n".join(failed) + f"\nAll verdicts: {path}. The bounds are "
        "in [adapter].",
        judgement,
    )
