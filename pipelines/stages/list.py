"""The list of stages, in the order they run; the command line, the DAGs and the README read it."""

from __future__ import annotations

from pipelines.candidates.load import READS as SOURCES
from pipelines.config.run import RunConfig
from pipelines.engine.stage import Stage
from pipelines.stages.adapt_domains import adapt_domains, are_registered
from pipelines.stages.build_features import build_features, raw_files
from pipelines.stages.build_index import build_index
from pipelines.stages.build_semantic_ids import build_semantic_ids, is_newest
from pipelines.stages.embed_items import embed_items
from pipelines.stages.embed_items import raw_files as encoder_files
from pipelines.stages.enrich_items import enrich_items
from pipelines.stages.enrich_items import raw_files as language_model_files
from pipelines.stages.evaluate import evaluate
from pipelines.stages.fit_baselines import fit_baselines
from pipelines.stages.fit_blend import fit_blend
from pipelines.stages.refit import refit
from pipelines.stages.release import is_published, release
from pipelines.stages.report import LIBRARIES as REPORT_LIBRARIES
from pipelines.stages.report import SECTIONS as REPORT_SECTIONS
from pipelines.stages.report import report, tells_all_looks
from pipelines.stages.train_generative import train_generative
from pipelines.stages.train_ranker import train_ranker
from pipelines.stages.train_sequence import train_sequence
from pipelines.stages.train_two_tower import train_two_tower

DATA_CODE = ("recsys/data", "pipelines/inputs/tensors.py")
TRAINING_CODE = (
    *DATA_CODE,
    "pipelines/candidates/sources.py",
    "pipelines/training/run.py",
    "recsys/layers",
    "recsys/models/item_tower.py",
    "recsys/training",
)
TENSORS = ("numpy", "torch")
GENERATIVE_CODE = (
    *TRAINING_CODE,
    "pipelines/candidates/blends.py",
    "pipelines/candidates/generation.py",
    "recsys/models",
    "recsys/retrieval/beam_search.py",
    "recsys/retrieval/blend/source_lists.py",
    "recsys/semantic_ids",
    "serving/surfaces.py",
)
SOURCE_CODE = (
    *DATA_CODE,
    "pipelines/candidates/blends.py",
    "pipelines/candidates/load.py",
    "pipelines/candidates/generation.py",
    "pipelines/candidates/sources.py",
    "recsys/evaluation",
    "recsys/layers",
    "recsys/models",
    "recsys/retrieval",
    "recsys/semantic_ids",
    "serving/surfaces.py",
)
SEQUENCE_CODE = (
    "recsys/models/sequence/model.py",
    "recsys/models/sequence/encoder.py",
    "recsys/models/sequence/members.py",
)
RANKER_CODE = (
    "pipelines/ranking/compare.py",
    "pipelines/ranking/earlier_sources.py",
    "pipelines/stages/fit_baselines.py",
    "pipelines/stages/fit_blend.py",
    "pipelines/ranking/fit.py",
    "pipelines/config/ranker.py",
    "pipelines/ranking/measures.py",
    "pipelines/ranking/artefact.py",
    "pipelines/ranking/examples.py",
    "pipelines/stages/refit.py",
    "pipelines/ranking/shown_lists.py",
    "pipelines/stages/train_sequence.py",
    "pipelines/stages/train_two_tower.py",
)

STAGES = [
    Stage(
        name="build_features",
        description="Validate events, items and users; filter, number, order and split them",
        reads=(),
        writes="events, vocabularies, sequences, catalogue, quarantine, report",
        sections=("data", "filters", "splits", "features", "seed"),
        code=("features",),
        libraries=("numpy", "polars"),
        function=build_features,
        raw_files=raw_files,
    ),
    Stage(
        name="enrich_items",
        description="Describe each item by a language model; off unless one is named",
        reads=("build_features",),
        writes="attributes with their origin, items without and why",
        sections=("enrichment", "content.text_columns"),
        code=("pipelines/inputs/content_models.py", "recsys/content"),
        libraries=("openai", "polars", "transformers"),
        function=enrich_items,
        raw_files=language_model_files,
    ),
    Stage(
        name="embed_items",
        description="Turn each item's text into a vector",
        reads=("build_features", "enrich_items"),
        writes="content embeddings",
        sections=("content",),
        code=(
            "pipelines/inputs/content_models.py",
            "pipelines/stages/enrich_items.py",
            "recsys/content",
        ),
        libraries=("numpy", "sentence-transformers", "torch"),
        function=embed_items,
        raw_files=encoder_files,
    ),
    Stage(
        name="train_sequence",
        description="Train the sequence model where it is on; validation picks its best step",
        reads=("build_features", "embed_items"),
        writes="sequence, ensemble, training curve",
        sections=("sequence", "sequence_training", "evaluation.exclude_history", "seed"),
        code=(*TRAINING_CODE, *SEQUENCE_CODE),
        libraries=TENSORS,
        function=train_sequence,
    ),
    Stage(
        name="build_semantic_ids",
        description="Give each item a short sequence of codes by its content, or by what it is "
        "taken with; published IDs stay",
        reads=("build_features", "embed_items", "train_sequence"),
        reads_if={"train_sequence": RunConfig.makes_ids_of_behaviour},
        writes="semantic IDs, their quantiser, quality",
        sections=("semantic_ids", "seed"),
        code=(
            *DATA_CODE,
            "pipelines/semantic_ids/store.py",
            "pipelines/semantic_ids/versions.py",
            "recsys/layers",
            "recsys/models/item_tower.py",
            *SEQUENCE_CODE,
            "recsys/semantic_ids",
        ),
        libraries=("numpy", "polars", "torch"),
        function=build_semantic_ids,
        outputs_exist=is_newest,
    ),
    Stage(
        name="fit_baselines",
        description="Fit popularity, item-to-item and likeness by content before what is held out",
        reads=("build_features", "embed_items"),
        writes="popularity, item_to_item, content",
        sections=("popularity", "item_to_item", "content_similarity"),
        code=(
            *DATA_CODE,
            "recsys/models/content_similarity.py",
            "recsys/models/item_to_item.py",
            "recsys/models/popularity.py",
        ),
        libraries=TENSORS,
        function=fit_baselines,
    ),
    Stage(
        name="train_two_tower",
        description="Train the two-tower; validation picks its best step",
        reads=("build_features", "embed_items"),
        writes="two_tower, training curve",
        sections=("two_tower", "training", "evaluation.exclude_history", "seed"),
        code=(*TRAINING_CODE, "recsys/models/two_tower.py"),
        libraries=TENSORS,
        function=train_two_tower,
    ),
    Stage(
        name="train_generative",
        description="Train the generative model where it is on; validation picks its step",
        reads=("build_features", "embed_items", "train_sequence", "build_semantic_ids"),
        reads_if={"train_sequence": RunConfig.generation_is_taught},
        writes="generative, training curve",
        sections=("generative", "generative_training", "evaluation.exclude_history", "seed"),
        code=GENERATIVE_CODE,
        libraries=TENSORS,
        function=train_generative,
    ),
    Stage(
        name="fit_blend",
        description="Learn on validation how the lists of all models become the one that is served",
        reads=SOURCES,
        writes="weights of each profile, what validation says of them",
        sections=("blend", "evaluation", "seed"),
        code=SOURCE_CODE,
        libraries=TENSORS,
        function=fit_blend,
    ),
    Stage(
        name="train_ranker",
        description="Train what orders the blend's first places where it is on; validation judges",
        reads=(*SOURCES, "fit_blend"),
        writes="ranker, its calibration, what validation says of it",
        sections=(
            "ranker",
            "ranker_training",
            "blend",
            "popularity",
            "item_to_item",
            "content_similarity",
            "two_tower",
            "training",
            "sequence",
            "sequence_training",
            "evaluation",
            "seed",
        ),
        code=(*SOURCE_CODE, *RANKER_CODE, "pipelines/training/run.py", "recsys/training"),
        libraries=("numpy", "polars", "torch"),
        function=train_ranker,
    ),
    Stage(
        name="evaluate",
        description="Measure every model, the served blends and the ranker on validation and test",
        reads=(*SOURCES, "fit_blend", "train_ranker"),
        writes="metrics, their analysis, per-user ranks and lists",
        sections=("evaluation", "seed"),
        code=(
            *SOURCE_CODE,
            "pipelines/evaluation/analyse.py",
            "pipelines/evaluation/analysis.py",
            "pipelines/ranking/artefact.py",
        ),
        libraries=("numpy", "polars", "torch"),
        function=evaluate,
    ),
    Stage(
        name="report",
        description="Write what the evaluation found as one HTML file that opens anywhere",
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
        code=(
            "pipelines/reports",
            "recsys/data",
            "recsys/evaluation/beyond_accuracy.py",
            "recsys/evaluation/slices.py",
        ),
        libraries=REPORT_LIBRARIES,
        function=report,
        outputs_exist=tells_all_looks,
    ),
    Stage(
        name="refit",
        description="Fit all models again on everything, for release",
        reads=(
            "build_features",
            "embed_items",
            "build_semantic_ids",
            "train_two_tower",
            "train_sequence",
            "train_generative",
        ),
        writes="popularity, item_to_item, content, two_tower, sequence, ensemble, generative",
        sections=(
            "popularity",
            "item_to_item",
            "content_similarity",
            "two_tower",
            "training",
            "sequence",
            "sequence_training",
            "generative",
            "generative_training",
            "evaluation.exclude_history",
            "seed",
        ),
        code=(
            *GENERATIVE_CODE,
            "pipelines/stages/fit_baselines.py",
            "pipelines/stages/train_generative.py",
            "pipelines/stages/train_sequence.py",
            "pipelines/stages/train_two_tower.py",
            "recsys/models",
        ),
        libraries=TENSORS,
        function=refit,
    ),
    Stage(
        name="build_index",
        description="Index the item vectors and measure the index against exact search",
        reads=("build_features", "embed_items", "refit"),
        writes="item vectors, index, recall",
        sections=("index",),
        code=(
            *DATA_CODE,
            "recsys/layers",
            "recsys/models/item_tower.py",
            "recsys/models/two_tower.py",
            "recsys/retrieval",
        ),
        libraries=("faiss-cpu", *TENSORS),
        function=build_index,
    ),
    Stage(
        name="release",
        description="Check the new bundle and publish it, or refuse it and keep the old one",
        reads=(
            "build_features",
            "embed_items",
            "build_semantic_ids",
            "fit_blend",
            "train_ranker",
            "evaluate",
            "refit",
            "build_index",
        ),
        writes="verdicts, and bundles/bundle-<version> with the link bundles/current",
        sections=("release", "content", "enrichment"),
        code=(
            "pipelines/candidates/blends.py",
            "pipelines/ranking/artefact.py",
            "pipelines/publishing/checks.py",
            "serving/bundle/load.py",
            "serving/bundle/manifest.py",
            "serving/bundle/ranker.py",
            "serving/bundle/retriever.py",
            "serving/bundle/semantic_ids.py",
        ),
        libraries=("numpy", "polars"),
        function=release,
        outputs_exist=is_published,
    ),
    Stage(
        name="adapt_domains",
        description="Adapt the released model to each domain that is named; off unless one is",
        reads=("build_features", "embed_items", "train_two_tower", "train_sequence", "release"),
        writes="what became of each adapter, and bundles/adapters/domain-<name> with its current",
        sections=("adapter", "evaluation.exclude_history", "seed"),
        code=(
            *TRAINING_CODE,
            "pipelines/adapters/retriever.py",
            "pipelines/adapters/gate.py",
            "pipelines/adapters/inputs.py",
            "pipelines/adapters/outcome.py",
            "pipelines/adapters/ranker.py",
            "pipelines/ranking/examples.py",
            "recsys/models",
            "serving/bundle/adapters.py",
        ),
        libraries=TENSORS,
        function=adapt_domains,
        outputs_exist=are_registered,
    ),
]
