"""The configuration of one run: the rooms' own configurations in one tree.

    preset = "auto"
    workspace = "runs/my-shop"

    [data]
    events = "events.csv"

Every key has its default in its dataclass; a preset is a TOML file, which other files override.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from features.schema import (
    JSON_LINES,
    SEPARATED,
    FeatureChoice,
    FileFormat,
    FilterConfig,
    SplitConfig,
)
from pipelines.config.content import (
    BEHAVIOUR,
    ContentConfig,
    EnrichItemsConfig,
    SearchConfig,
    SemanticIdsConfig,
)
from pipelines.config.operation import (
    AutoConfig,
    Engine,
    MonitoringConfig,
    Place,
    Places,
    TrackingConfig,
    UpdatesConfig,
)
from pipelines.config.operation import ReleaseConfig as ReleaseConfig
from pipelines.config.trainings import (
    AdapterConfig,
    GenerativeTrainingConfig,
    RankerTrainingConfig,
    SequenceTrainingConfig,
    TorchrunConfig,
    TwoTowerTrainingConfig,
)
from pipelines.config.trainings import OutsideModelConfig as OutsideModelConfig
from recsys.evaluation.config import ReplayConfig, check_metric_name
from recsys.evaluation.ranking import RankingConfig
from recsys.models.configs import (
    ContentSimilarityConfig,
    EaseWeightsConfig,
    ItemToItemConfig,
    NextBasketConfig,
    PopularityConfig,
    RepeatsConfig,
    TwoTowerConfig,
)
from recsys.models.generative.config import GenerativeConfig
from recsys.models.names import check_outside
from recsys.models.ranker.config import RankerConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.training.passes import TrainingConfig as TrainingConfig

SHARED = "shared_training"
OWN_DATA = "Your data"


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(RankingConfig):
    """Metrics on the held-out events, over the full catalogue."""

    exclude_history: bool = True
    """Leave a user's history out of the lists. A bundle is served as it was evaluated,
    unless the deployment says otherwise."""
    target_types: tuple[str, ...] = ()
    """Event types that lists are for, such as purchase: validation and test, and so the blend, the
    ranker and the release, look at these alone. Models learn from all types; empty takes all."""
    max_users: int | None = None
    """Most users that are measured, drawn once by the seed; None takes all."""
    scored_up_to: int = 200_000
    """Item rows up to which every model scores the whole catalogue. Larger catalogues are ranked by
    lists, through approximate indexes as in serving; targets outside a list have no rank."""
    primary_metric: str = "ndcg@10"
    """Metric by which a report calls a model best and measures slices; not that of a release."""
    metrics: tuple[str, ...] = ("recall@10", "recall@50", "mrr@10", "map@10", "precision@10")
    """Other metrics with an interval: recall, ndcg, hit_rate, mrr, map, precision at any length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for metric in (self.primary_metric, *self.metrics):
            check_metric_name(metric)

    def interval_metrics(self) -> list[str]:
        """List the metrics that get an interval, the primary one first."""
        return list(dict.fromkeys((self.primary_metric, *self.metrics)))

    def slice_metrics(self) -> list[str]:
        """List the metrics of slices and paired tests."""
        return list(dict.fromkeys((self.primary_metric, "recall@10")))


def files_under(path: Path) -> tuple[Path, ...]:
    """List the files of a table: the path itself, or those below a folder, by name."""
    if not path.is_dir():
        return (path,)
    endings = (".parquet", *SEPARATED, *JSON_LINES)
    found = [
        one
        for one in path.rglob("*")
        if one.name.removesuffix(".gz").endswith(endings) and not one.name.startswith(".")
    ]
    if not found:
        raise ValueError(f"no file below {path} ends in {', '.join(endings)}; check the path")
    return tuple(sorted(found))


@dataclass(frozen=True, kw_only=True)
class DataConfig(FileFormat):
    """Places of the raw tables and names of their columns; ``[data]`` of a TOML file."""

    dataset: str | None = None
    """A data set known by name (recsys data list), instead of files."""
    events: Places | None = None
    """CSV, TSV, JSONL or Parquet: a file, a folder of files, or a list; relative to the TOML
    file. Or a database: postgresql://USER@HOST/DATABASE#TABLE, sqlite:FILE#TABLE, duckdb:FILE#TABLE
    (TABLE or a query); or a lake: delta:FOLDER, iceberg:CATALOG/NAMESPACE.TABLE."""
    partitions: str | None = None
    """Events that arrive by day or hour: a folder, a glob, an address such as s3://shop/events, or
    a database; read by recsys ingest, which every run and update begins with. They follow
    ``events``."""
    online_events: str | None = None
    """Events that a server collected: a folder of recsys data export, or its store, which is then
    exported at the start of the run (sqlite:runs/shop/online, redis://host:6379/0). They
    follow the events and have none of the columns and formats below."""
    items: Place | None = None
    """The catalogue, a file, a folder or a database: item_id, title, categories and what else is
    known. May be left out."""
    users: Place | None = None
    """The users: user_id and any columns. May be left out."""
    forgotten: Path | None = None
    """The list of users whose rows are left out, which recsys data forget keeps;
    <workspace>/forgotten.json without. Beside raw files that several runs read, it serves all."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our column of the events -> the file's, for example user_id = "customer"; "" leaves out a
    column of ours that the file has."""
    item_columns: Mapping[str, str] = field(default_factory=dict)
    """The same of the items."""
    user_columns: Mapping[str, str] = field(default_factory=dict)
    """The same of the users."""

    def tables(self) -> dict[str, tuple[Path | str, ...]]:
        """Return the places of each table."""
        events = self.events if isinstance(self.events, tuple) else (self.events,)
        found = {"events": events, "items": (self.items,), "users": (self.users,)}
        return {name: tuple(filter(None, places)) for name, places in found.items()}

    def event_paths(self) -> tuple[Path, ...]:
        events = self.tables()["events"]
        return tuple(path for one in events if isinstance(one, Path) for path in files_under(one))

    def item_paths(self) -> tuple[Path, ...]:
        return files_under(self.items) if isinstance(self.items, Path) else ()

    def files(self) -> dict[str, Path]:
        """Return every raw file by name."""
        events = {f"events[{place}]": path for place, path in enumerate(self.event_paths())}
        items = {
            "items" if path == self.items else f"items[{place}]": path
            for place, path in enumerate(self.item_paths())
        }
        users = {"users": self.users} if isinstance(self.users, Path) else {}
        return {**events, **items, **users}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, from raw events to a released bundle."""

    workspace: Path
    """Folder of the run's artefacts, relative to the working directory."""
    seed: int = 0
    """Random seed."""
    device: str = "auto"
    """Device of trainings and local models: ``auto`` takes a GPU if there is one; or ``cpu``,
    ``cuda``, ``cuda:1``."""
    engine: Engine = "local"
    """Place of the work: this process; or training stages on several
    (``torchrun``). No artefact depends on it."""
    torchrun: TorchrunConfig = field(default_factory=TorchrunConfig)
    auto: AutoConfig = field(default_factory=AutoConfig)
    data: DataConfig = field(default_factory=DataConfig)
    filters: FilterConfig = field(default_factory=FilterConfig)
    splits: SplitConfig = field(default_factory=SplitConfig)
    features: FeatureChoice = field(default_factory=FeatureChoice)
    enrichment: EnrichItemsConfig = field(default_factory=EnrichItemsConfig)
    content: ContentConfig = field(default_factory=ContentConfig)
    semantic_ids: SemanticIdsConfig = field(default_factory=SemanticIdsConfig)
    popularity: PopularityConfig = field(default_factory=PopularityConfig)
    item_to_item: ItemToItemConfig = field(default_factory=ItemToItemConfig)
    ease: EaseWeightsConfig = field(default_factory=EaseWeightsConfig)
    repeats: RepeatsConfig = field(default_factory=RepeatsConfig)
    next_basket: NextBasketConfig = field(default_factory=NextBasketConfig)
    content_similarity: ContentSimilarityConfig = field(default_factory=ContentSimilarityConfig)
    models: Mapping[str, OutsideModelConfig] = field(default_factory=dict)
    """Models of other packages by name: ``[models.NAME]``."""
    two_tower: TwoTowerConfig = field(default_factory=TwoTowerConfig)
    two_tower_training: TwoTowerTrainingConfig = field(default_factory=TwoTowerTrainingConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    sequence_training: SequenceTrainingConfig = field(default_factory=SequenceTrainingConfig)
    generative: GenerativeConfig = field(default_factory=GenerativeConfig)
    generative_training: GenerativeTrainingConfig = field(default_factory=GenerativeTrainingConfig)
    blend: BlendConfig = field(default_factory=BlendConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    ranker: RankerConfig = field(default_factory=RankerConfig)
    ranker_training: RankerTrainingConfig = field(default_factory=RankerTrainingConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    index: FaissIndexConfig = field(default_factory=FaissIndexConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    backtest: ReplayConfig = field(default_factory=ReplayConfig)
    updates: UpdatesConfig = field(default_factory=UpdatesConfig)
    release: ReleaseConfig = field(default_factory=ReleaseConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    monitoring: MonitoringConfig = field(default_factory=MonitoringConfig)

    def __post_init__(self) -> None:
        check_outside(self.outside_models())
        if self.makes_ids_of_behaviour() and not self.sequence_training.enabled:
            raise ValueError(
                f'semantic_ids.source = "{BEHAVIOUR}" needs a sequence model: set '
                'sequence_training.enabled = true, or semantic_ids.source = "content"'
            )
        if self.sequence.trained_apart and self.sequence_training.refit_epochs is not None:
            raise ValueError(
                "sequence_training.refit_epochs continues one training, and members that are "
                "trained apart have several; leave it out, or set sequence.trained_apart = false"
            )
        if self.generation_is_taught() and not self.sequence_training.enabled:
            raise ValueError(
                'generative_training.teaching.share > 0 or generative.items = "codes_vectors" '
                "needs a sequence model: set sequence_training.enabled = true, or the share to 0 "
                'and items to "codes_tower"'
            )

    def outside_models(self) -> dict[str, str]:
        """Return the addresses of models of other packages that are on, by name."""
        return {name: one.spec for name, one in self.models.items() if one.enabled}

    def makes_ids_of_behaviour(self) -> bool:
        """Return True if semantic IDs are made from the sequence model's item vectors."""
        return self.semantic_ids.method != "none" and self.semantic_ids.source == BEHAVIOUR

    def generation_is_taught(self) -> bool:
        """Return True if the generative model needs the sequence model."""
        taught = self.generative_training.teaching.share > 0
        reads = self.generative.items == "codes_vectors"
        return self.generative_training.enabled and (taught or reads)

    def raw_file_keys(self) -> list[str]:
        """List the keys of raw files' places, which shape no artefact."""
        places = ("dataset", "events", "partitions", "online_events", "items", "users", "forgotten")
        return [*(f"data.{name}" for name in places), "release.bundles"]


@dataclass(frozen=True, kw_only=True)
class SharedTraining:
    """Keys that a file sets for all trainings at once."""

    shared_training: TrainingConfig = field(default_factory=TrainingConfig)
    """Keys of every training whose own section does not set them."""


TRAININGS = tuple(
    one.name
    for one in fields(RunConfig)
    if isinstance(one.default_factory, type) and issubclass(one.default_factory, TrainingConfig)
)
"""Sections that configure a training."""
