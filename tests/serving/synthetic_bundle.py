"""Bundles of any size from made-up arrays, for tests and load tests.

Even users took even items and odd users odd items, popular ones more often; popularity and
item-to-item are fitted on that, the other models are left as they were initialised and blends
weigh their lists by made-up numbers. With ``cluster_items`` items lie in clusters as those of a
real catalogue do: variants around a centre, centres around a topic, and a user stays with three of
them; else every vector is drawn by itself, which no index shortens much.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from features.point_in_time import FEATURES
from recsys.data.batch import Jagged
from recsys.models.configs import (
    ContentSimilarityConfig,
    EaseWeightsConfig,
    ItemToItemConfig,
    PopularityConfig,
    TwoTowerConfig,
)
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.config import GenerativeConfig, GenerativeInputs
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_to_item import item_to_item_model
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.item_weights.co_occurrence import CoOccurrence, UserItems
from recsys.models.item_weights.ease import ease_model, fit_ease, most_frequent, shared_users
from recsys.models.popularity import Popularity
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.retrieval.blend.candidate_features import CandidateBuilder, feature_names
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.blend.demand import DEMAND, PARTS
from recsys.retrieval.blend.history_features import HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import FEATURES as LIST_FEATURES
from recsys.retrieval.faiss_index import build_index
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.collisions import resolve_collisions
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from serving.bundle.catalogue import Catalogue
from serving.bundle.item_index import TwoTowerParts
from serving.bundle.semantic_ids import ID_ROWS, QUANTIZER
from serving.bundle.users import Users
from serving.bundle.write import BundleParts, write_bundle

Rows = NDArray[np.int64]
CATEGORIES = ("even", "odd", "tens")
NUM_AGE_ROWS = 4
NUM_LEVELS = 3
MAX_EXACT = 2_000
"""Items whose weights are regressed exactly, which takes memory with their square."""
MAX_CANDIDATES = 200
CLUSTERS_OF_TOPIC = 20


@dataclass(frozen=True, kw_only=True)
class SyntheticSize:
    """How large a made-up bundle is."""

    num_items: int = 40
    num_users: int = 12
    events_per_user: int = 8
    embedding_dim: int = 8
    content_dim: int = 4
    cluster_items: int = 0
    """Items of a cluster, on average; 0 makes no clusters."""
    context_features: tuple[str, ...] = ("user_num_events",)
    """Of features.point_in_time; the events are from November 2023."""
    event_types: tuple[str, ...] = ()
    """Types of the events in histories, which the sequence model reads."""
    semantic_ids: bool = True
    history_models: bool = False
    """Whether there are a sequence and a generative model, content similarity and blends."""
    ranker: bool = False
    """Whether a ranker orders what they find; needs ``history_models``."""
    seed: int = 0


def write_synthetic_bundle(
    bundles_dir: Path, version: str, size: SyntheticSize | None = None
) -> Path:
    """Write ``bundle-<version>``: items ``item-1`` .. and users ``user-1`` .., titles and all."""
    size = size or SyntheticSize()
    with tempfile.TemporaryDirectory() as scratch:
        parts = synthetic_parts(Path(scratch), size)
        return write_bundle(
            bundles_dir, parts, version=version, metrics={"popularity": {"recall@10": 0.5}}
        )


def synthetic_parts(scratch: Path, size: SyntheticSize) -> BundleParts:
    """Make the parts; models lie in ``scratch``."""
    torch.manual_seed(size.seed)
    num_item_rows = size.num_items + 1
    users, catalogue = _users(size), _catalogue(size)
    starts, ends = users.offsets[:-1], users.offsets[1:]
    parts = [(users.item_rows, users.times)]
    popularity = Popularity.fit(lambda: iter(parts), num_item_rows, PopularityConfig())
    popularity.save(scratch / "popularity")
    neighbours = item_to_item_model(
        users.item_rows, starts, ends, num_item_rows, ItemToItemConfig()
    )
    neighbours.save(scratch / "item_to_item")
    content = _content(size)
    two_tower = _two_tower(scratch, catalogue, content, size)
    parts = BundleParts(
        catalogue=catalogue,
        users=users,
        models={
            name: scratch / name
            for name in ("popularity", "item_to_item", "two_tower")
            if (scratch / name).exists()
        },
        content=content.numpy(),
        two_tower=two_tower,
        semantic_ids=_semantic_ids(scratch, content.numpy()) if size.semantic_ids else None,
        user_features={"age": NUM_AGE_ROWS},
        context_features=_cardinalities(size),
        event_types=size.event_types,
    )
    return _with_history_models(parts, scratch, size) if size.history_models else parts


def with_model(parts: BundleParts, name: str, folder: Path) -> BundleParts:
    """Take a model from another folder."""
    return replace(parts, models={**parts.models, name: folder})


def without(parts: BundleParts, *names: str) -> BundleParts:
    """Leave models out."""
    kept = {name: path for name, path in parts.models.items() if name not in names}
    two_tower = parts.two_tower if "two_tower" in kept else None
    return replace(parts, models=kept, two_tower=two_tower)


def _cardinalities(size: SyntheticSize) -> dict[str, int]:
    return {name: FEATURES[name].cardinality for name in size.context_features}


def _users(size: SyntheticSize) -> Users:
    rng = np.random.default_rng(size.seed)
    histories = _histories_in_clusters(size, rng) if size.cluster_items else []
    for user_row in range(1 + len(histories), size.num_users + 1):
        own = np.arange(1 + (user_row + 1) % 2, size.num_items + 1, 2)
        weight = 1 / np.arange(1, len(own) + 1)
        count = min(size.events_per_user, len(own))
        histories.append(rng.choice(own, count, replace=False, p=weight / weight.sum()))
    item_rows = np.concatenate(histories).astype(np.int64)
    lengths = [0, 0, *(len(history) for history in histories)]
    return Users.from_lists(
        user_ids=[f"user-{row}" for row in range(1, size.num_users + 1)],
        features={"age": np.arange(size.num_users + 1) % NUM_AGE_ROWS},
        item_rows=item_rows,
        offsets=np.cumsum(lengths),
        times=1_700_000_000 + 3_600 * np.arange(len(item_rows)),
        types=np.arange(len(item_rows)) % (1 + len(size.event_types)) if size.event_types else None,
    )


def _histories_in_clusters(size: SyntheticSize, rng: np.random.Generator) -> list[Rows]:
    """Draw what each user took from three clusters."""
    clusters = _clusters(size)
    rows = 1 + np.argsort(clusters[1:], kind="stable")
    starts = np.searchsorted(clusters[rows], np.arange(clusters.max() + 2))
    histories = []
    for _ in range(size.num_users):
        own = rng.integers(0, clusters.max() + 1, 3)
        near = np.unique(np.concatenate([rows[starts[one] : starts[one + 1]] for one in own]))
        # A cluster may be empty.
        near = near if len(near) else rows[:1]
        histories.append(rng.permutation(near)[: size.events_per_user])
    return histories


def _clusters(size: SyntheticSize) -> Rows:
    """Number the cluster of each item row, [N]."""
    rng = np.random.default_rng(size.seed + 1)
    count = max(1, size.num_items // size.cluster_items)
    return rng.integers(0, count, size.num_items + 1)


def _catalogue(size: SyntheticSize) -> Catalogue:
    """Every item is even or odd, each tenth is also in the category ``tens``."""
    rows = range(1, size.num_items + 1)
    categories = [[1 + row % 2, 3] if row % 10 == 0 else [1 + row % 2] for row in rows]
    return Catalogue.from_lists(
        item_ids=[f"item-{row}" for row in rows],
        display_texts=[f"Title {row} \u00fc\u4e16\U0001f600" for row in rows],
        category_names=CATEGORIES,
        category_values=np.concatenate(categories).astype(np.int64),
        category_offsets=np.cumsum([0, 0, *map(len, categories)]),
    )


def _categories(catalogue: Catalogue) -> Jagged:
    return Jagged(
        torch.from_numpy(catalogue.category_values), torch.from_numpy(catalogue.category_offsets)
    )


def _content(size: SyntheticSize) -> Tensor:
    content = torch.randn(size.num_items + 1, size.content_dim)
    if size.cluster_items:
        clusters = torch.from_numpy(_clusters(size))
        count = int(clusters.max()) + 1
        topics = torch.randn(count // CLUSTERS_OF_TOPIC + 1, size.content_dim)
        centres = topics[torch.arange(count) // CLUSTERS_OF_TOPIC]
        centres = centres + 0.7 * torch.randn(count, size.content_dim)
        content = centres[clusters] + 0.5 * content
    content[0] = 0
    return content


def _two_tower(
    scratch: Path, catalogue: Catalogue, content: Tensor, size: SyntheticSize
) -> TwoTowerParts:
    config = TwoTowerConfig(
        embedding_dim=size.embedding_dim, hidden_dim=2 * size.embedding_dim, backend="torch"
    )
    inputs = FeatureSizes(
        num_item_rows=size.num_items + 1,
        content_dim=size.content_dim,
        num_categories=catalogue.num_category_rows,
        user_features={"age": NUM_AGE_ROWS},
        context_features=_cardinalities(size),
    )
    counts = torch.ones(size.num_items + 1, dtype=torch.int64)
    items = ItemCatalogue(content, _categories(catalogue))
    model = TwoTower(config, inputs, items, counts).eval()
    with torch.no_grad():
        vectors = model.all_item_vectors()
    model.save(scratch / "two_tower")
    index = build_index(vectors)
    index.save(scratch / "items.faiss")
    return TwoTowerParts(index=scratch / "items.faiss", item_vectors=vectors.numpy())


def _semantic_ids(scratch: Path, content: NDArray[np.float32]) -> Path:
    """Give every item an ID; the last item has the first id row, so that none is its item row."""
    vectors = torch.from_numpy(content[1:])
    codes_per_level = min(256, max(4, len(vectors) // 8))
    config = ResidualKMeansConfig(level_sizes=(codes_per_level,) * NUM_LEVELS)
    quantizer = ResidualKMeans.fit(vectors, config)
    unique = resolve_collisions(quantizer, vectors, quantizer.encode(vectors))
    id_rows = np.arange(len(content), 0, -1)
    ids = SemanticIds.of_items(
        unique.codes,
        level_sizes=unique.level_sizes,
        quantizer_digest=quantizer.digest,
        item_rows=torch.from_numpy(id_rows[1:].copy()),
    )
    directory = scratch / "semantic_ids"
    ids.save(directory)
    quantizer.save(directory / QUANTIZER)
    id_rows[0] = 0
    np.save(directory / ID_ROWS, id_rows)
    return directory


def _with_history_models(parts: BundleParts, scratch: Path, size: SyntheticSize) -> BundleParts:
    """Add content similarity, a sequence model and, with semantic IDs, a generative one."""
    assert parts.content is not None
    items = ItemCatalogue(torch.from_numpy(parts.content), _categories(parts.catalogue))
    counts = torch.ones(size.num_items + 1, dtype=torch.int64)
    inputs = FeatureSizes(
        num_item_rows=size.num_items + 1,
        content_dim=size.content_dim,
        num_categories=parts.catalogue.num_category_rows,
        event_types=size.event_types,
    )
    similarity = ContentSimilarity(ContentSimilarityConfig(), items.content)
    similarity.save(scratch / "content_similarity")
    dim, hidden = size.embedding_dim, 2 * size.embedding_dim
    sequence = SequenceConfig(embedding_dim=dim, hidden_dim=hidden, time_buckets=8, backend="torch")
    model = SequenceModel(sequence, inputs, items, counts)
    if model.event_types is not None:
        torch.nn.init.normal_(model.event_types.weight)
    model.save(scratch / "sequence")
    users = UserItems.of(
        parts.users.item_rows,
        parts.users.offsets[:-1],
        parts.users.offsets[1:],
        size.num_items + 1,
        100,
    )
    pairs = CoOccurrence(users)
    exact = most_frequent(pairs, min(size.num_items // 2, MAX_EXACT))
    linear = EaseWeightsConfig(enabled=True, exact_items=len(exact))
    ease_model(pairs, exact, shared_users(pairs, exact), linear).save(scratch / "ease")
    sources = ["popularity", "item_to_item", "ease", "two_tower", "content_similarity", "sequence"]
    _blend(scratch / "blend_fast", sources)
    names = ["ease", "content_similarity", "sequence"]
    if parts.semantic_ids is not None:
        _generative(parts.semantic_ids, items, scratch, size)
        _blend(scratch / "blend_full", [*sources, "generative"])
        names += ["generative", "blend_full"]
    if size.ranker:
        _ranker(scratch / "ranker", items, scratch / "blend_fast", size)
        names.append("ranker")
    added = {name: scratch / name for name in [*names, "blend_fast"]}
    return replace(parts, models={**parts.models, **added})


def _ranker(directory: Path, items: ItemCatalogue, blend: Path, size: SyntheticSize) -> None:
    """Write an untrained ranker of fewer candidates than there are items."""
    merging = LearnedBlend.load(blend)
    inputs = RankerInputs(
        num_item_rows=size.num_items + 1,
        tasks=("next", "like"),
        content_dim=size.content_dim,
        num_categories=len(CATEGORIES) + 1,
        user_features={"age": NUM_AGE_ROWS},
        context_features=_cardinalities(size),
        candidate_dense=feature_names(merging.sources),
    )
    config = RankerConfig(
        trunk="sparse", embedding_dim=8, hidden_dim=8, num_experts=4, backend="torch"
    )
    Ranker(config, inputs, items).save(directory)
    rows = np.arange(1, min(size.num_items, MAX_EXACT) + 1)
    ease = fit_ease(rows % 3, rows, size.num_items + 1)
    CandidateBuilder(
        blend=merging,
        history_features=HistoryFeatures(items, ease),
        num_candidates=min(3 * size.num_items // 4, MAX_CANDIDATES),
    ).save(directory)


def _generative(
    semantic_ids: Path, items: ItemCatalogue, scratch: Path, size: SyntheticSize
) -> None:
    ids = SemanticIds.load(semantic_ids)
    rows = torch.from_numpy(np.load(semantic_ids / ID_ROWS))
    inputs = GenerativeInputs(
        num_item_rows=size.num_items + 1,
        level_sizes=ids.level_sizes,
        semantic_ids=ids.version,
        content_dim=size.content_dim,
        num_categories=len(CATEGORIES) + 1,
    )
    dim = size.embedding_dim
    config = GenerativeConfig(embedding_dim=dim, hidden_dim=2 * dim, backend="torch")
    counts = torch.ones(size.num_items + 1, dtype=torch.int64)
    model = GenerativeModel(config, inputs, ids.codes[rows], items, counts)
    model.save(scratch / "generative")


def _blend(directory: Path, sources: Sequence[str]) -> None:
    """Weigh sources by the item's events, and read items' demand."""
    config = BlendConfig(item_bounds=(2,))
    weights = torch.rand(3, len(sources), len(LIST_FEATURES)) + 0.1
    demand = 0.1 * torch.rand(PARTS, len(DEMAND))
    LearnedBlend(config, sources, weights, torch.ones(len(sources)), demand=demand).save(directory)
