"""The list of stages, in the order they run; the command line, the DAGs and the README read it."""

from __future__ import annotations

from pipelines.candidates.load import READS as SOURCES
from pipelines.candidates.load import outside_files
from pipelines.config.run import RunConfig
from pipelines.engine.stage import Stage
from pipelines.stages.adapt_domains import adapt_domains, are_registered
from pipelines.stages.build_features import build_features, raw_files
from pipelines.stages.build_index import build_index
from pipelines.stages.build_semantic_ids import build_semantic_ids, is_newest
from pipelines.stages.embed_items import embed_items
from pipelines.stages.embed_items import raw_files as encoder_files
from pipelines.stages.enrich_items import enrich_items
from pipelines.stages.evaluate import evaluate
from pipelines.stages.fit_baselines import fit_baselines
from pipelines.stages.fit_blend import fit_blend
from pipelines.stages.fit_blend import raw_files as served_lists
from pipelines.stages.refit import refit
from pipelines.stages.release import is_published, release
from pipelines.stages.report import SECTIONS as REPORT_SECTIONS
from pipelines.stages.report import counts_all_looks, report
from pipelines.stages.train_generative import train_generative
from pipelines.stages.train_ranker import train_ranker
from pipelines.stages.train_sequence import train_sequence
from pipelines.stages.train_two_tower import train_two_tower
from recsys.models.names import COUNTED, GENERATIVE, MODELS, SEQUENCE, TWO_TOWER

BASELINES = (*(one.section for one in COUNTED), "models")
EXCLUDED, TARGETED = "evaluation.exclude_history", "evaluation.target_types"


def trains(config: RunConfig) -> bool:
    """Check whether a released model is trained whose batches several ranks can share."""
    return config.two_tower_training.enabled or config.sequence_training.enabled


STAGES = [
    Stage(
        name="build_features",
        function=build_features,
        description="Validate events, items and users; filter, index, order and split them",
        reads=(),
        writes="events, vocabularies, sequences, catalogue, quarantine, report",
        sections=("data", "filters", "splits", TARGETED, "features", "auto.enabled", "seed"),
        raw_files=raw_files,
    ),
    Stage(
        name="enrich_items",
        function=enrich_items,
        description="Describe each item by a language model, where one is configured",
        reads=("build_features",),
        writes="attributes with their origin, items without and why",
        sections=("enrichment", "content.text_columns"),
    ),
    Stage(
        name="embed_items",
        function=embed_items,
        description="Encode each item's text into a vector",
        reads=("build_features", "enrich_items"),
        writes="content embeddings",
        sections=("content", "enrichment.attributes"),
        raw_files=encoder_files,
    ),
    Stage(
        name="fit_baselines",
        function=fit_baselines,
        raw_files=outside_files,
        description="Fit the models that have no training: they count, compare or solve",
        reads=("build_features", "embed_items"),
        writes=", ".join(one.name for one in COUNTED),
        sections=(*BASELINES, EXCLUDED, "seed"),
    ),
    Stage(
        name="train_two_tower",
        function=train_two_tower,
        on_ranks=lambda config: config.two_tower_training.enabled,
        description="Train the two-tower where it is enabled; validation picks its best step",
        reads=("build_features", "embed_items"),
        writes="two_tower, training curve",
        sections=(*TWO_TOWER.sections, "device", EXCLUDED, "seed"),
    ),
    Stage(
        name="train_sequence",
        function=train_sequence,
        on_ranks=lambda config: config.sequence_training.enabled,
        description="Train the sequence model where it is enabled; validation picks its best step",
        reads=("build_features", "embed_items"),
        writes="sequence, ensemble, training curve",
        sections=(*SEQUENCE.sections, "device", EXCLUDED, "seed"),
    ),
    Stage(
        name="build_semantic_ids",
        function=build_semantic_ids,
        description="Quantise each item's content or sequence vector; published IDs are kept",
        reads=("build_features", "embed_items", "train_sequence"),
        reads_if={"train_sequence": RunConfig.makes_ids_of_behaviour},
        writes="semantic IDs, their quantiser, quality",
        sections=("semantic_ids", "seed"),
        outputs_exist=is_newest,
    ),
    Stage(
        name="train_generative",
        function=train_generative,
        description="Train the generative model where it is enabled; validation picks its step",
        reads=("build_features", "embed_items", "train_sequence", "build_semantic_ids"),
        reads_if={"train_sequence": RunConfig.generation_is_taught},
        writes="generative, training curve",
        sections=(*GENERATIVE.sections, "device", EXCLUDED, "seed"),
    ),
    Stage(
        name="fit_blend",
        function=fit_blend,
        raw_files=served_lists,
        description="Learn on validation how to blend the lists of all models into the served one",
        reads=(*SOURCES, "enrich_items"),
        writes="weights of each profile, their validation metrics, what searches by text",
        sections=("blend", "search", "content", "evaluation", "seed"),
    ),
    Stage(
        name="train_ranker",
        function=train_ranker,
        raw_files=outside_files,
        on_ranks=lambda config: config.ranker_training.enabled,
        description="Train the ranker of blended candidates where it is enabled; validation judges",
        reads=(*SOURCES, "fit_blend"),
        writes="ranker, its calibration, its validation metrics",
        sections=(
            "ranker",
            "ranker_training",
            "blend",
            *BASELINES,
            *TWO_TOWER.sections,
            *SEQUENCE.sections,
            "device",
            "evaluation",
            "seed",
        ),
    ),
    Stage(
        name="evaluate",
        function=evaluate,
        raw_files=outside_files,
        description="Measure every model, the served blends and the ranker on validation and test",
        reads=(*SOURCES, "fit_blend", "train_ranker"),
        writes="metrics, their analysis, per-user ranks and lists",
        sections=("evaluation", "seed"),
    ),
    Stage(
        name="report",
        function=report,
        description="Write the evaluation as one HTML file that opens anywhere",
        reads=(
            "build_features",
            "train_two_tower",
            "train_sequence",
            "train_generative",
            "fit_blend",
            "train_ranker",
            "evaluate",
        ),
        writes="report.html, report.json",
        sections=REPORT_SECTIONS,
        outputs_exist=counts_all_looks,
    ),
    Stage(
        name="refit",
        function=refit,
        raw_files=outside_files,
        on_ranks=trains,
        description="Refit all models on all events, for release",
        reads=(
            "build_features",
            "embed_items",
            "build_semantic_ids",
            "fit_baselines",
            "train_two_tower",
            "train_sequence",
            "train_generative",
        ),
        writes="the models of fit_baselines, two_tower, sequence, ensemble, generative",
        sections=(
            *dict.fromkeys(section for one in MODELS for section in one.sections),
            "device",
            "models",
            EXCLUDED,
            "seed",
        ),
    ),
    Stage(
        name="build_index",
        function=build_index,
        description="Index the item vectors and measure the index's recall against exact search",
        reads=("build_features", "embed_items", "refit"),
        writes="item vectors, index, recall",
        sections=("index",),
    ),
    Stage(
        name="release",
        function=release,
        description="Check the new bundle and publish it, or refuse it and keep the old one",
        reads=(
            "build_features",
            "enrich_items",
            "embed_items",
            "build_semantic_ids",
            "fit_blend",
            "train_ranker",
            "evaluate",
            "refit",
            "build_index",
        ),
        writes="verdicts, and bundles/bundle-<version> with the link bundles/current",
        sections=(
            "release",
            "content",
            "enrichment",
            EXCLUDED,
            "data.item_columns",
            "data.separator",
            "data.list_separator",
        ),
        outputs_exist=is_published,
    ),
    Stage(
        name="adapt_domains",
        function=adapt_domains,
        description="Train adapters of the released models for each configured domain",
        reads=("build_features", "embed_items", "train_two_tower", "train_sequence", "release"),
        writes="outcome of each adapter, and bundles/adapters/domain-<name> with its current",
        sections=("adapter", "device", EXCLUDED, "seed"),
        outputs_exist=are_registered,
    ),
]
