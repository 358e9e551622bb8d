"""Read the models that were fitted on train from the stages' artefacts."""

from __future__ import annotations

import sys

from pipelines.config.run import RunConfig
from pipelines.engine.stage import StageContext
from pipelines.semantic_ids.artefact import read_item_codes
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.sources import source_of
from recsys.fitting.training import device_named
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_weights.model import ItemWeights
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.retrieval.sources import ITEM_WEIGHTS, DeviceSource, Source, generated_source
from serving.surfaces import HOME

READS = (
    "build_features",
    "embed_items",
    "build_semantic_ids",
    "fit_baselines",
    "train_two_tower",
    "train_sequence",
    "train_generative",
)
"""The stages whose artefacts are read."""
TRAINED = ("two_tower", "sequence", "ensemble", "generative")


def scored_up_to(config: RunConfig) -> int:
    """Item rows up to which every item is scored, whatever the catalogue where lists are too short.

    Metrics of lists longer than a source's need the ranks behind them.
    """
    lists_suffice = max(config.evaluation.ks) <= HOME.num_candidates
    return config.evaluation.scored_up_to if lists_suffice else sys.maxsize


def load_sources(context: StageContext, inputs: ModelInputs, order: str) -> dict[str, Source]:
    """Load the models of a tie order, by model; those that are off are left out.

    Trained models rank on the device that they are trained on.

    Raises:
        ValueError: The generative model was trained for other semantic IDs than the run's.
    """
    catalogue, up_to = inputs.catalogue, scored_up_to(context.config)
    device = device_named(context.config.training.device)
    on_gpu = device.type == "cuda"
    baselines = context.inputs["fit_baselines"] / order
    popularity = Popularity.load(baselines / "popularity")
    sources: dict[str, Source] = {"popularity": source_of(popularity, inputs, up_to)}
    for name in ITEM_WEIGHTS:
        if (baselines / name).exists():
            sources[name] = source_of(ItemWeights.load(baselines / name), inputs, up_to)
    if (baselines / "content").exists():
        content = ContentSimilarity.load(baselines / "content")
        sources["content"] = source_of(content, inputs, up_to)
    trained = context.inputs["train_two_tower"] / order / "two_tower"
    if trained.exists():
        two_tower = TwoTower.load(trained, catalogue).to(device)
        sources["two_tower"] = source_of(two_tower, inputs, up_to)
    trained = context.inputs["train_sequence"] / order / "sequence"
    if trained.exists():
        sequence = SequenceModel.load(trained, catalogue).to(device)
        sources["sequence"] = source_of(
            sequence, inputs, up_to, item_vectors=sequence.all_item_vectors
        )
    trained = context.inputs["train_sequence"] / order / "ensemble"
    if trained.exists():
        ensemble = SequenceModel.load(trained, catalogue).to(device)
        sources["ensemble"] = source_of(ensemble, inputs, up_to)
    trained = context.inputs["train_generative"] / order / "generative"
    if trained.exists():
        codes = read_item_codes(context.inputs["build_semantic_ids"], order)
        generative = GenerativeModel.load(
            trained, catalogue, codes.codes, semantic_ids=codes.version
        ).to(device)
        sources["generative"] = generated_source(generative, codes, HOME.beam_width)
    if on_gpu:
        sources |= {
            name: DeviceSource(sources[name], device) for name in TRAINED if name in sources
        }
    return sources
