"""Read the models that were fitted on train from the stages' artefacts."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from pipelines.config.run import RunConfig
from pipelines.engine.stage import StageContext
from pipelines.inputs.tensors import retrieval_settings
from pipelines.semantic_ids.store import read_item_codes
from recsys.fitting.catalogue import catalogue_with, index_of_model
from recsys.fitting.queries import GIVEN, ModelInputs
from recsys.fitting.spec import Data, ModelSpec, device_named
from recsys.models.names import MODELS, spec_at
from recsys.retrieval.sources import DeviceSource, Source
from serving.surfaces import HOME

READS = (
    "build_features",
    "embed_items",
    "build_semantic_ids",
    *dict.fromkeys(one.stage for one in MODELS),
)
"""The stages whose artefacts are read."""


def list_models(config: RunConfig) -> tuple[ModelSpec, ...]:
    """List the rows of the catalogue with those that a run takes from other packages."""
    return catalogue_with(config.outside_models())


def outside_files(config: RunConfig) -> dict[str, Path]:
    """Locate the code of models of other packages: all modules next to that of each row."""
    found = {}
    for name, address in config.outside_models().items():
        spec_at(name, address)
        module = sys.modules[address.partition(":")[0]]
        for path in sorted(Path(str(module.__file__)).parent.glob("*.py")):
            found[f"models.{name}: {path.name}"] = path
    return found


def scored_up_to(config: RunConfig) -> int:
    """Item rows up to which every item is scored, in any catalogue where lists are too short.

    Metrics of lists longer than a source's need the ranks after them.
    """
    lists_suffice = max(config.evaluation.ks) <= HOME.num_candidates
    return config.evaluation.scored_up_to if lists_suffice else sys.maxsize


def load_sources(context: StageContext, inputs: ModelInputs) -> dict[str, Source]:
    """Load the fitted models by name; those that are off are left out.

    Trained models rank on the device that they are trained on.
    """
    up_to, device = scored_up_to(context.config), device_named(context.config.device)
    artefact = context.inputs["build_semantic_ids"]
    data = Data(
        index=index_of_model,
        inputs=inputs,
        settings=retrieval_settings(context.config),
        item_codes=cache(lambda: read_item_codes(artefact)),
    )
    sources: dict[str, Source] = {}
    for spec in list_models(context.config):
        folder = context.inputs[spec.names.stage] / GIVEN / spec.name
        if not folder.exists():
            continue
        model, trained = spec.load(folder, data.over), bool(spec.names.training)
        source = spec.ranks_by(model.to(device) if trained else model, data, up_to)
        on_gpu = trained and device.type == "cuda"
        sources[spec.name] = DeviceSource(source, device) if on_gpu else source
    return sources
