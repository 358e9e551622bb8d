"""The harm gate: an adapter must help its domain, and harm no protected slice or other domain.

Judged on held-out users that neither trained the adapter nor selected its step, on the served path:
queries of all domains in mixed batches, each through its own adapter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pipelines.adapters.inputs import DomainQueries
from pipelines.config.adapter import AdapterConfig
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.errors import RefusedError
from recsys.data.batch import Jagged
from recsys.data.durable import write_durably
from recsys.evaluation.ranking import RankingResult
from recsys.evaluation.slices import Slice, item_popularity_slices, user_activity_slices
from serving.bundle.manifest import Verdict

ONE_SIDED = 1.645
"""Standard errors below 0 of a one-sided test at 5%."""
UNCHANGED = 1.0
"""Share of other domains' lists that must stay the same."""


def harm_verdicts(
    queries: DomainQueries, base: RankingResult, adapted: RankingResult, config: AdapterConfig
) -> list[Verdict]:
    """Compare an adapter with its base.

    Args:
        queries: Held-out queries of every domain, in the order of both results.
    """
    before, after = base.per_user(config.metric), adapted.per_user(config.metric)
    own = torch.from_numpy(queries.domain_of_query == queries.domain)
    verdicts = [_gain(before[own], after[own], queries.domain_name, config)]
    owners = base.targets.segments()
    for part in protected_slices(queries, base.targets):
        inside = torch.zeros(len(own), dtype=torch.bool)
        inside[owners[part.targets]] = True
        inside &= own
        if int(inside.sum()) >= config.min_slice_users:
            name = f"{part.group} {part.name}"
            verdicts.append(_no_harm(before[inside], after[inside], name, config))
    for number, name in enumerate(queries.names):
        other = torch.from_numpy(queries.domain_of_query == number)
        if number != queries.domain and int(other.sum()):
            verdicts.append(_unchanged(base, adapted, other, name))
    return verdicts


def protected_slices(queries: DomainQueries, targets: Jagged) -> list[Slice]:
    """Slice by the activity of users and the popularity of their held-out items."""
    return [
        *user_activity_slices(targets, queries.num_events),
        *item_popularity_slices(targets, queries.item_counts),
    ]


def _gain(before: Tensor, after: Tensor, domain: str, config: AdapterConfig) -> Verdict:
    base, value = float(before.mean()), float(after.mean())
    bound = base * (1 + config.min_gain)
    return Verdict(
        name=f"{config.metric} of domain {domain}",
        value=value,
        bound=bound,
        # Equal is no gain, and an adapter costs something.
        passed=value > bound if config.min_gain == 0 else value >= bound,
        reason=f"{len(before)} held-out users; the base alone has {base:.4f}",
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


def metrics_of(
    queries: DomainQueries, results: Mapping[str, RankingResult], metric: str
) -> dict[str, dict[str, float]]:
    """Average a metric over the domain's users, by model."""
    rows = torch.from_numpy(np.flatnonzero(queries.domain_of_query == queries.domain))
    return {
        name: {metric: float(result.per_user(metric)[rows].mean())}
        for name, result in results.items()
    }


def refuse_harm(config: RunConfig, domain: str, verdicts: list[Verdict]) -> None:
    """Write the verdicts and stop if one of them failed.

    Raises:
        RefusedError: One failed; names each such check with its value and bound.
    """
    if all(verdict.passed for verdict in verdicts):
        return
    path = config.workspace / "refused-adapter.json"
    document = {"domain": domain, "verdicts": [verdict.model_dump() for verdict in verdicts]}
    write_durably(path, to_json(document))
    failed = [
        f"  {one.name}: {one.value:.4f} against a bound of {one.bound:.4f} ({one.reason})"
        for one in verdicts
        if not one.passed
    ]
    raise RefusedError(
        f"the adapter of domain {domain!r} is refused and was not registered; the domain is "
        "answered as before.\n" + "\n".join(failed) + f"\nAll verdicts: {path}. The bounds are "
        "in [adapter]."
    )
