"""Read the models that were fitted on train from the stages' artefacts."""

from __future__ import annotations

from pipelines.engine.stage import StageContext
from pipelines.semantic_ids.artefact import read_item_codes
from recsys.fitting.inputs import ModelInputs
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_weights.model import ItemWeights
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.retrieval.sources import ITEM_WEIGHTS, ScoredSource, Source, generated_source
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


def load_sources(context: StageContext, inputs: ModelInputs, order: str) -> dict[str, Source]:
    """Load the models of a tie order, by model; those that are off are left out.

    Raises:
        ValueError: The generative model was trained for other semantic IDs than the run's.
    """
    catalogue = inputs.catalogue
    baselines = context.inputs["fit_baselines"] / order
    popularity = Popularity.load(baselines / "popularity")
    sources: dict[str, Source] = {
        "popularity": ScoredSource(popularity.score, needs_history=False),
    }
    for name in ITEM_WEIGHTS:
        if (baselines / name).exists():
            sources[name] = ScoredSource(ItemWeights.load(baselines / name).score)
    if (baselines / "content").exists():
        sources["content"] = ScoredSource(ContentSimilarity.load(baselines / "content").score)
    trained = context.inputs["train_two_tower"] / order / "two_tower"
    if trained.exists():
        sources["two_tower"] = ScoredSource(TwoTower.load(trained, catalogue).score)
    trained = context.inputs["train_sequence"] / order / "sequence"
    if trained.exists():
        sequence = SequenceModel.load(trained, catalogue)
        sources["sequence"] = ScoredSource(sequence.score, item_vectors=sequence.all_item_vectors)
    trained = context.inputs["train_sequence"] / order / "ensemble"
    if trained.exists():
        sources["ensemble"] = ScoredSource(SequenceModel.load(trained, catalogue).score)
    trained = context.inputs["train_generative"] / order / "generative"
    if trained.exists():
        codes = read_item_codes(context.inputs["build_semantic_ids"], order)
        generative = GenerativeModel.load(
            trained, catalogue, codes.codes, semantic_ids=codes.version
        )
        sources["generative"] = generated_source(generative, codes, HOME.beam_width)
    return sources
