"""The harm gate: an adapter must help its domain, and harm no protected slice or other domain.

Judged on held-out users that neither trained the adapter nor selected its step, on the served path:
queries of all domains in mixed batches, each through its own adapter. The users' hidden items are
of the domain, which a request says; so the baseline is the base over the domain's items alone, and
only what the adapter adds to that is its gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pipelines.adapters.inputs import DomainQueries
from pipelines.adapters.task import Judged
from pipelines.config.run import RunConfig
from pipelines.config.trainings import AdapterConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.errors import RefusedError
from recsys.data.batch import Jagged
from recsys.data.durable import write_durably
from recsys.evaluation.paired import paired
from recsys.evaluation.ranking import RankingResult
from recsys.evaluation.slices import Slice, item_popularity_slices, user_activity_slices
from serving.bundle.manifest import Verdict

Metrics = dict[str, dict[str, float]]
ONE_SIDED = 1.645
"""Standard errors below 0 of a one-sided test at 5%."""
UNCHANGED = 1.0
"""Share of other domains' lists that must stay the same."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an adapter changes for some held-out users, over the domain's items alone."""

    name: str
    """"domain books", or a protected slice such as "user_activity new"."""
    num_users: int
    before: float
    """The base's metric."""
    difference: float
    low: float
    """Of the paired interval over users."""
    high: float


def changes_of(judged: Judged, config: AdapterConfig) -> list[Change]:
    """Measure the whole domain and each protected slice."""
    before, after = (
        result.per_user(config.metric) for result in (judged.base_within, judged.adapted_within)
    )
    everyone = torch.ones(len(before), dtype=torch.bool)
    parts = [(f"domain {judged.queries.domain_name}", everyone), *_protected(judged, config)]
    changes = []
    for name, inside in parts:
        found = paired(before[inside], after[inside])
        changes.append(
            Change(
                name=name,
                num_users=found.num_users,
                before=found.champion,
                difference=found.difference,
                low=found.low,
                high=found.high,
            )
        )
    return changes


def harm_verdicts(judged: Judged, config: AdapterConfig) -> list[Verdict]:
    """Compare an adapter with its base, both over the domain's items alone.

    A request that names its domain needs no adapter to be answered with the domain's items, so that
    much is the base's; lists of other domains must stay what they are over the whole catalogue.
    """
    queries = judged.queries
    before, after = (
        result.per_user(config.metric) for result in (judged.base_within, judged.adapted_within)
    )
    verdicts = [_gain(judged, before, after, config)]
    verdicts += [
        _no_harm(before[inside], after[inside], name, config)
        for name, inside in _protected(judged, config)
    ]
    for number, name in enumerate(queries.names):
        other = torch.from_numpy(queries.domain_of_query == number)
        if number != queries.domain and int(other.sum()):
            verdicts.append(_unchanged(judged.base, judged.adapted, other, name))
    return verdicts


def _protected(judged: Judged, config: AdapterConfig) -> Iterator[tuple[str, Tensor]]:
    """Name the protected slices that are large enough, and their users, [U] bool."""
    targets = judged.base_within.targets
    owners = targets.segments()
    for part in protected_slices(judged.queries.only_domain(), targets):
        inside = torch.zeros(targets.batch_size, dtype=torch.bool)
        inside[owners[part.targets]] = True
        if int(inside.sum()) >= config.min_slice_users:
            yield f"{part.group} {part.name}", inside


def protected_slices(queries: DomainQueries, targets: Jagged) -> list[Slice]:
    """Slice by the activity of users and the popularity of their held-out items."""
    return [
        *user_activity_slices(targets, queries.num_events),
        *item_popularity_slices(targets, queries.item_counts),
    ]


def _gain(judged: Judged, before: Tensor, after: Tensor, config: AdapterConfig) -> Verdict:
    base, value = float(before.mean()), float(after.mean())
    bound = base * (1 + config.min_gain)
    found = paired(before, after)
    whole = metrics_of(judged, config.metric)
    return Verdict(
        name=f"{config.metric} of domain {judged.queries.domain_name}",
        value=value,
        bound=bound,
        # Equal is no gain, and an adapter costs something.
        passed=value > bound if config.min_gain == 0 else value >= bound,
        reason=f"{len(before)} held-out users; over the domain's items alone the base has "
        f"{base:.4f}, the adapter adds {found.difference:+.4f} ({found.low:+.4f} to "
        f"{found.high:+.4f}: {found.decision}); over the whole catalogue the base has "
        f"{whole['base'][config.metric]:.4f}, the adapter {whole['adapter'][config.metric]:.4f}",
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


def _unchanged(base: RankingResult, adapted: RankingResult, other: Tensor, name: str) -> Verdict:
    same = (base.top_k.item_rows[other] == adapted.top_k.item_rows[other]).all(1)
    share = float(same.double().mean())
    return Verdict(
        name=f"lists of domain {name} unchanged",
        value=share,
        bound=UNCHANGED,
        passed=share >= UNCHANGED,
        reason=f"share of {int(other.sum())} held-out users",
    )


def metrics_of(judged: Judged, metric: str) -> Metrics:
    """Average a metric over the domain's users: base and adapter, over all items and its own."""
    rows = torch.from_numpy(judged.queries.domain_of_query == judged.queries.domain)
    values = {
        "base": judged.base.per_user(metric)[rows],
        "base_within_domain": judged.base_within.per_user(metric),
        "adapter_within_domain": judged.adapted_within.per_user(metric),
        "adapter": judged.adapted.per_user(metric)[rows],
    }
    return {name: {metric: float(one.mean())} for name, one in values.items()}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the gate found."""

    verdicts: list[Verdict]
    metrics: Metrics
    """As of `metrics_of`."""
    changes: list[Change]

    def as_json(self) -> dict[str, Any]:
        return {
            "verdicts": [verdict.model_dump() for verdict in self.verdicts],
            "metrics": self.metrics,
            "changes": [asdict(change) for change in self.changes],
        }


def judgement_of(judged: Judged, config: AdapterConfig) -> Judgement:
    """Judge an adapter."""
    return Judgement(
        verdicts=harm_verdicts(judged, config),
        metrics=metrics_of(judged, config.metric),
        changes=changes_of(judged, config),
    )


class RefusedAdapterError(RefusedError):
    """The gate refused an adapter."""

    def __init__(self, message: str, judgement: Judgement) -> None:
        super().__init__(message)
        self.judgement = judgement


def refuse_harm(config: RunConfig, domain: str, judgement: Judgement) -> None:
    """Write the verdicts and stop if one of them failed."""
    verdicts = judgement.verdicts
    if all(verdict.passed for verdict in verdicts):
        return
    path = config.workspace / "refused-adapter.json"
    write_durably(path, to_json({"domain": domain, **judgement.as_json()}))
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
