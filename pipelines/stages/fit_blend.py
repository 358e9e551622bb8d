"""Stage fit_blend: learn on validation how the lists of all sources become the one that is served.

Where reciprocal rank fusion or one source alone is better than learned weights by more than noise,
that is served, and blends.json says so; and the former where no user has a held-out event.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from pipelines.candidates.blends import FILE, profiles_of, validation_lists
from pipelines.candidates.load import load_sources
from pipelines.engine.artifacts import to_json
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs, tie_orders
from recsys.fitting.blend import fit_blend as fit_profile
from recsys.fitting.blend import unjudged_blend
from recsys.retrieval.sources import source_name
from serving.surfaces import HOME


def save_unjudged(folder: Path, models: Mapping[str, object]) -> None:
    """Write the surface's weights for each profile, since nothing can be learned or judged."""
    profiles = {}
    for profile, names in profiles_of({source_name(model): None for model in models}).items():
        blend, profiles[profile] = unjudged_blend(names, HOME.weights)
        blend.save(folder, profile)
    (folder / FILE).write_text(to_json({"profiles": profiles}))


def fit_blend(context: StageContext) -> StageRows:
    """Choose the blend of each profile once for each order of tied times."""
    config, features = context.config, context.inputs["build_features"]
    num_users = num_sources = 0
    for order in tie_orders(features):
        inputs = read_inputs(features, context.inputs.get("embed_items"), order)
        sources_of_order = load_sources(context, inputs, order)
        if not inputs.sequences.num_labels("validation"):
            save_unjudged(context.output / order, sources_of_order)
            num_sources = len(sources_of_order)
            continue
        examples = validation_lists(sources_of_order, inputs, config)
        everyone = torch.arange(len(examples))
        profiles = {}
        for profile, sources in profiles_of(examples.lists).items():
            blend, profiles[profile] = fit_profile(
                examples.of(everyone, sources),
                config.blend,
                HOME.weights,
                config.evaluation.primary_metric,
            )
            blend.save(context.output / order, profile)
        (context.output / order / FILE).write_text(to_json({"profiles": profiles}))
        num_users, num_sources = len(everyone), len(examples.lists)
    return StageRows(rows_in=num_users, rows_out=num_sources)
