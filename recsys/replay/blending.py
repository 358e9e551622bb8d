"""The served list of each step, by weights that were learned on the steps before it.

Axes: Q queries, N item rows.
"""

from __future__ import annotations

from typing import Any

import torch

from recsys.fitting.blend import FittedBlend, SourceLists, fit_blend
from recsys.fitting.training import device_named
from recsys.models.names import source_name
from recsys.replay.fits import Replay
from recsys.replay.folder import (
    FIRST,
    KEPT,
    SERVED,
    WARM_UP,
    load_source,
    read_json,
    save_lists,
    write_json,
)


def answered_by(policy: str, number: int) -> str:
    """Name the models that answer a step for a policy: the first two steps are all policies'."""
    return {0: WARM_UP, 1: FIRST}.get(number, policy)


def source_lists(replay: Replay, number: int, policy: str) -> SourceLists:
    """Read what every model of a policy listed for a step."""
    folder, step = replay.folder, replay.steps[number]
    models = answered_by(policy, number)
    done = read_json(folder.done(number, models))
    lists = {
        source_name(name): load_source(folder.source(number, models, name))
        for name in done["models"]
    }
    queries = replay.evaluation_queries(replay.queries(step))
    moment = done["known_at"]
    return SourceLists.of_queries(
        lists, queries, replay.item_counts(moment), replay.seed, replay.demand(moment)
    )


def fitted_on(replay: Replay, examples: SourceLists) -> FittedBlend:
    """Learn weights on the queries of a step that is over."""
    recipe = replay.prepared.recipe
    drawn = torch.arange(len(examples))
    if len(drawn) > recipe.blend.max_queries:
        drawn = torch.linspace(0, len(drawn) - 1, recipe.blend.max_queries).long()
    weights = {name: recipe.fusion_weights.get(name, 1.0) for name in examples.lists}
    return fit_blend(
        examples.of(drawn, tuple(examples.lists)),
        recipe.blend,
        weights,
        recipe.metric,
        device_named(replay.device),
    )


def serve(replay: Replay, policy: str) -> None:
    """Write the served lists of every judged step."""
    folder, fitted = replay.folder, None
    before = source_lists(replay, 0, policy)
    for step in replay.steps[1:]:
        lists = source_lists(replay, step.number, policy)
        path = folder.lists(step.number, policy, SERVED)
        if not path.exists():
            if fitted is None or policy != "never":
                fitted = fitted_on(replay, before)
            top = fitted.blend.merged(lists, KEPT, device=device_named(replay.device))
            write_json(folder.step(step.number) / "blends" / f"{policy}.json", summary_of(fitted))
            save_lists(path, top.item_rows, 0.0, 0.0)
        before = lists


def summary_of(fitted: FittedBlend) -> dict[str, Any]:
    """Keep of a blend's document what a reader wants."""
    parts = ("served", "reason", "validation", "weights", "shares")
    return {name: fitted.document[name] for name in parts if name in fitted.document}
