"""Stage fit_blend: learn on validation how the lists of all sources become the one that is served.

Where reciprocal rank fusion or one source alone is better than learned weights by more than noise,
that is served, and blends.json says so; and the former where no user has a held-out event. With
``search.enabled`` what finds items by a text is fitted too, on queries made of held-out events, and
on those of the log, if there are any and later ones confirm it.
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
    visit_lists,
)
from pipelines.candidates.load import load_sources, outside_files
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.exported import list_served
from pipelines.inputs.tensors import read_inputs
from recsys.fitting.blend import fit_blend as fit_profile
from recsys.fitting.blend import source_gains, unjudged_blend
from recsys.fitting.queries import GIVEN
from recsys.models.names import CONTENT, MODELS
from serving.surfaces import HOME


def raw_files(config: RunConfig) -> Mapping[str, Path]:
    """List the code of outside models, and the served lists that a search learns from."""
    folder = config.data.online_events if config.search.enabled else None
    parts = [] if folder is None else list_served(Path(folder))
    return {**outside_files(config), **{f"served[{path.name}]": path for path in parts}}


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
    visits = visit_lists(every_source, inputs, config)
    everyone = torch.arange(len(examples))
    profiles, log = {}, dict[str, object]()
    for profile, sources in list_profiles(examples.lists).items():
        part = examples.of(everyone, sources)
        fitted = fit_profile(
            part, config.blend, HOME.weights, config.evaluation.primary_metric, visits=visits
        )
        named = [one.name for one in MODELS if one.training or one == CONTENT]
        gains = source_gains(part, [n for n in named if n in sources], fitted, config.blend)
        profiles[profile] = fitted.document | {"gains": gains}
        fitted.blend.save(output, profile)
        if fitted.values is not None:
            save_values(output, profile, fitted.values)
        if profile == FAST and config.search.enabled:
            from pipelines.searching.fit import fit_search

            queries = evaluation_queries(inputs, "validation", config)
            found = fit_search(context, inputs, queries, every_source, fitted.blend)
            if found is not None:
                search, learned = found
                search.save(output / TEXT_SEARCH)
                log = {} if learned is None else {"logged_queries": learned.document}
    (output / FILE).write_text(to_json({"profiles": profiles} | log))
    return StageRows(rows_in=len(everyone), rows_out=len(examples.lists))
