"""Stage fit_blend: learn on validation how the lists of all sources become the one that is served.

Where reciprocal rank fusion or one source alone is better than learned weights by more than noise,
that is served, and blends.json says so; and the former where no user has a held-out event. With
``search.enabled`` what finds items by a text is fitted too, on queries made of held-out events.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from pipelines.candidates.blends import (
    FAST,
    FILE,
    TEXT_SEARCH,
    evaluation_queries,
    list_profiles,
    save_values,
    validation_lists,
)
from pipelines.candidates.load import load_sources
from pipelines.engine.artifacts import to_json
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs
from recsys.fitting.blend import fit_blend as fit_profile
from recsys.fitting.blend import source_gains, unjudged_blend
from recsys.fitting.queries import GIVEN
from recsys.models.names import MODELS
from serving.surfaces import HOME


def save_unjudged(folder: Path, models: Mapping[str, object]) -> None:
    """Write the surface's weights for each profile, since nothing can be learned or judged."""
    profiles = {}
    for profile, names in list_profiles(dict.fromkeys(models)).items():
        fitted = unjudged_blend(names, HOME.weights)
        profiles[profile] = fitted.document
        fitted.blend.save(folder, profile)
    (folder / FILE).write_text(to_json({"profiles": profiles}))


def fit_blend(context: StageContext) -> StageRows:
    """Choose the blend of each profile."""
    config, output = context.config, context.output / GIVEN
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"))
    every_source = load_sources(context, inputs)
    if not inputs.sequences.num_labels("validation"):
        save_unjudged(output, every_source)
        return StageRows(rows_in=0, rows_out=len(every_source))
    examples = validation_lists(every_source, inputs, config)
    everyone = torch.arange(len(examples))
    profiles = {}
    for profile, sources in list_profiles(examples.lists).items():
        part = examples.of(everyone, sources)
        fitted = fit_profile(part, config.blend, HOME.weights, config.evaluation.primary_metric)
        trained = [one.name for one in MODELS if one.training and one.name in sources]
        gains = source_gains(part, trained, fitted, config.blend)
        profiles[profile] = fitted.document | {"gains": gains}
        fitted.blend.save(output, profile)
        if fitted.values is not None:
            save_values(output, profile, fitted.values)
        if profile == FAST and config.search.enabled:
            from pipelines.searching.fit import fit_search

            queries = evaluation_queries(inputs, "validation", config)
            search = fit_search(context, inputs, queries, every_source, fitted.blend)
            if search is not None:
                search.save(output / TEXT_SEARCH)
    (output / FILE).write_text(to_json({"profiles": profiles}))
    return StageRows(rows_in=len(everyone), rows_out=len(examples.lists))
