"""The item tower, and the catalogue of models whose items go through it.

Item tower: id embedding + projected content embedding + mean of the category embeddings. An item
that training never met (row 0, a row added later, a row without events) takes the learned
"unknown" id instead; ids are dropped at random in training, so content carries such items.

An item may also read the ids of its neighbours, the items that occur near it in histories: their
weighted mean is added to its own id. Where items have few events this is what graph convolution
does for LightGCN (He et al. 2020, arXiv:2002.02126), with one layer over a graph of items.

Axes: R distinct items, N item rows, K neighbours of an item, D width.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.threads import side_by_side
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.layers.embedding.tables import Backend, looked_up
from recsys.models.configs import REMOVED_SETTINGS, without_removed

Config = TypeVar("Config")
Inputs = TypeVar("Inputs")
ID_INIT_SCALE = 0.3
"""Factor of the id table's first values, so that content leads before ids are learned."""
NEIGHBOURS = "item.neighbours"
"""Feature by which the tower looks up the ids of neighbours."""
OF_EVENTS = ("item_counts", "neighbours", "neighbour_shares")
"""Buffers that are counted in the events that a model is fitted on, not trained."""
TYPES_TABLE = "event_types.weight"
"""Weights of the types of events; at 0 they are not read."""
ENCODED_AT_A_TIME = 1 << 16
ALL_UP_TO = 4
"""Items of the catalogue for each row that a step reads, up to which a GPU encodes all of them."""
NORM_FLOOR = 1e-6
"""Smallest length a vector is divided by when it is normalised."""


@dataclass(frozen=True, kw_only=True)
class ItemSizes:
    """Sizes of what a model reads of items, from their artefacts (row 0 included)."""

    num_item_rows: int
    content_dim: int = 0
    """Width of the content embeddings, 0 without."""
    num_categories: int = 0


@dataclass(frozen=True, kw_only=True)
class FeatureSizes(ItemSizes):
    """Sizes of what a model reads of items and queries."""

    user_features: Mapping[str, int] = field(default_factory=dict)
    """Cardinality of each ``user.<name>`` feature of a query."""
    context_features: Mapping[str, int] = field(default_factory=dict)
    """Cardinality of each ``context.<name>`` feature of a query."""
    event_types: tuple[str, ...] = ()
    """Types of a history's events by row, from 1; none where all are of one type."""

    @property
    def num_event_types(self) -> int:
        """Rows of the types, row 0 for unknown ones included; 0 where none are read."""
        return len(self.event_types) + 1 if self.event_types else 0

    def query_tables(self, embedding_dim: int) -> list[TableConfig]:
        """Describe one table for each feature of a query."""
        return [
            TableConfig(
                name=f"{kind}_{column}".replace(".", "_"),
                num_rows=rows,
                embedding_dim=embedding_dim,
                features=(f"{kind}.{column}",),
            )
            for kind, features in (("user", self.user_features), ("context", self.context_features))
            for column, rows in features.items()
        ]


@dataclass(frozen=True)
class ItemCatalogue:
    """Content and categories of each item; may have more rows than were trained on."""

    content: Tensor
    """[N, content_dim] float32, row 0 zero."""
    categories: Jagged
    """Category rows of each of the N item rows."""

    @classmethod
    def empty(cls, num_item_rows: int) -> ItemCatalogue:
        """Make a catalogue that knows of nothing but ids."""
        nothing = Jagged(
            torch.empty(0, dtype=torch.int64), torch.zeros(num_item_rows + 1, dtype=torch.int64)
        )
        return cls(torch.empty(num_item_rows, 0), nothing)


class Over(NamedTuple):
    """Data that a model is loaded with."""

    catalogue: ItemCatalogue
    item_codes: Callable[[], Any] | None = None
    """Reads the semantic IDs (`recsys.semantic_ids.codes.ItemCodes`); None without any."""


class ItemTowerConfig(Protocol):
    """Settings that ItemTower reads."""

    @property
    def embedding_dim(self) -> int: ...
    @property
    def id_dropout(self) -> float: ...
    @property
    def content_weight(self) -> float: ...
    @property
    def backend(self) -> Backend: ...


class ItemTower(nn.Module):
    """Turns an item's id, content and categories into one vector."""

    def __init__(
        self,
        config: ItemTowerConfig,
        inputs: ItemSizes,
        *,
        num_neighbours: int = 0,
        neighbour_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        dim = config.embedding_dim
        tables = [
            TableConfig(
                name="item",
                num_rows=inputs.num_item_rows,
                embedding_dim=dim,
                features=("item", NEIGHBOURS) if num_neighbours else ("item",),
            )
        ]
        if inputs.num_categories:
            tables.append(
                TableConfig(
                    name="category",
                    num_rows=inputs.num_categories,
                    embedding_dim=dim,
                    features=("item.categories",),
                    pooling="mean",
                )
            )
        self.tables = EmbeddingBags(tables, config.backend)
        with torch.no_grad():
            self.tables.weight("item").mul_(ID_INIT_SCALE)
        self.content = (
            nn.Linear(inputs.content_dim, dim, bias=False) if inputs.content_dim else None
        )
        self.item_counts: Tensor
        self.register_buffer("item_counts", torch.zeros(inputs.num_item_rows, dtype=torch.int64))
        self.num_neighbours, self.neighbour_weight = num_neighbours, neighbour_weight
        self.neighbours: Tensor
        self.neighbour_shares: Tensor
        if num_neighbours:
            shape = (inputs.num_item_rows, num_neighbours)
            self.register_buffer("neighbours", torch.zeros(shape, dtype=torch.int64))
            self.register_buffer("neighbour_shares", torch.zeros(shape))

    def lookups(self, items: JaggedBatch) -> JaggedBatch:
        """Return what the tables look up for items: rows of those with events, and the rest."""
        rows = items["item"].values
        met = rows < self.inputs.num_item_rows
        met = met & (self.item_counts[torch.where(met, rows, 0)] > 0)
        features = dict(items.features)
        if self.num_neighbours:
            features[NEIGHBOURS] = self._look_up_neighbours(torch.where(met, rows, 0))
        if self.training and self.config.id_dropout > 0:
            met = met & (torch.rand(len(rows), device=rows.device) >= self.config.id_dropout)
        features["item"] = items["item"]._replace(values=torch.where(met, rows, 0))
        return JaggedBatch(features)

    def forward(
        self, items: JaggedBatch, content: Tensor, lookups: JaggedBatch | None = None
    ) -> Tensor:
        """Encode items, not normalised: the history reads them so, [R, D].

        Args:
            content: Content embeddings, [R, content_dim].
            lookups: Of the items, if made before.
        """
        pooled = self.tables(self.lookups(items) if lookups is None else lookups)
        if self.num_neighbours:
            pooled[NEIGHBOURS] = self.neighbour_weight * pooled[NEIGHBOURS]
        vectors: Tensor = sum(pooled.values())
        if self.content is not None:
            vectors = vectors + self.config.content_weight * self.content(content)
        return vectors

    def _look_up_neighbours(self, rows: Tensor) -> Jagged:
        """Look up the neighbours of items with events, R ragged rows; row 0 has none."""
        offsets = torch.arange(len(rows) + 1, device=rows.device) * self.num_neighbours
        shares = self.neighbour_shares[rows].flatten()
        return Jagged(self.neighbours[rows].flatten(), offsets, shares)


def _forget_catalogue(model: nn.Module, _: object) -> None:
    model.train(model.training)


class CatalogueModel(nn.Module):
    """Base of models whose items go through an ItemTower: the catalogue and its vectors."""

    FILE: ClassVar[str]
    """File of the weights."""
    config: Any
    inputs: Any
    item_tower: ItemTower
    _content: Tensor
    _category_rows: Tensor
    _category_offsets: Tensor

    def __init__(self, catalogue: ItemCatalogue) -> None:
        super().__init__()
        self.register_buffer("_content", catalogue.content, persistent=False)
        self.register_buffer("_category_rows", catalogue.categories.values, persistent=False)
        self.register_buffer("_category_offsets", catalogue.categories.offsets, persistent=False)
        self._all_inputs: Tensor | None = None
        # Not by the tensors' version counters: fused optimizers change weights without counting.
        self.register_load_state_dict_post_hook(_forget_catalogue)  # type: ignore[no-untyped-call]

    @property
    def num_item_rows(self) -> int:
        """Item rows of the catalogue, of which the tower's first ones have an id."""
        return len(self._content)

    def encodes_all(self, num_rows: int) -> bool:
        """True if a GPU encodes all items sooner than it finds the distinct ones of some."""
        few, tables = self.inputs.num_item_rows <= ALL_UP_TO * num_rows, self.item_tower.tables
        return few and tables.updates is None and not tables.is_sharded

    def look_up_content(self, rows: Tensor) -> Tensor:
        """Look up content embeddings, [R] -> [R, content_dim]."""
        return self._content[rows]

    def item_inputs(self, rows: Tensor) -> Tensor:
        """Encode rows of the catalogue as the history reads them, [R] -> [R, D]."""
        return self.encoded(rows, self._content[rows])

    def item_inputs_of_all(self) -> tuple[Tensor, Tensor]:
        """Encode all rows that have an id: their numbers, [R], and their inputs, [R, D]."""
        rows = torch.arange(self.inputs.num_item_rows, device=self._content.device)
        if len(rows) < self.num_item_rows or rows.device.type == "cpu":
            return rows, self.item_inputs(rows)
        # The catalogue as it lies: to pick categories a GPU would have to be waited for.
        categories = Jagged(self._category_rows, self._category_offsets)
        items = JaggedBatch({"item": Jagged.one_each(rows), "item.categories": categories})
        return rows, self.tower_output(items, self._content)

    def encoded(self, rows: Tensor, content: Tensor) -> Tensor:
        """Encode rows of the catalogue whose content [R, content_dim] was looked up, [R, D]."""
        return self.tower_output(self.items_of_rows(rows), content)

    def items_of_rows(self, rows: Tensor) -> JaggedBatch:
        """Describe rows of the catalogue, R items."""
        categories = Jagged(self._category_rows, self._category_offsets)
        if len(categories.values):
            categories = categories.take(rows)
        else:  # to count the categories of rows a GPU would have to be waited for
            categories = categories._replace(offsets=rows.new_zeros(len(rows) + 1))
        return JaggedBatch({"item": Jagged.one_each(rows), "item.categories": categories})

    def tower_output(self, items: JaggedBatch, content: Tensor) -> Tensor:
        """Encode items as the history reads them; arguments as ``ItemTower.forward``."""
        inputs: Tensor = self.item_tower(items, content)
        return inputs

    def train(self, mode: bool = True) -> Self:
        """Switch the mode and forget the encoded catalogue."""
        self._all_inputs = None
        return super().train(mode)

    def all_item_inputs(self) -> Tensor:
        """Encode the whole catalogue, [N, D]; kept until train(), eval() or load_state_dict()."""
        if self._all_inputs is None or self.training:
            with torch.no_grad():
                self._all_inputs = torch.cat(self._encoded_from(0))
        return self._all_inputs

    def take_item_inputs(self, other: CatalogueModel) -> None:
        """Keep what another model of the same items encoded, instead of encoding it again."""
        self._all_inputs = other.all_item_inputs()

    @torch.no_grad()
    def grown(self, catalogue: ItemCatalogue) -> Self:
        """Read a catalogue with rows after those of this one: shares weights, encodes the new."""
        twin = copy.copy(self)
        for kind in ("_buffers", "_modules", "_parameters"):
            twin.__dict__[kind] = dict(self.__dict__[kind])
        twin._content = catalogue.content
        twin._category_rows, twin._category_offsets, _ = catalogue.categories
        before = self.all_item_inputs()
        twin._all_inputs = torch.cat([before, *twin._encoded_from(len(before))])
        return twin

    def _encoded_from(self, first: int) -> list[Tensor]:
        """Encode all rows from one on, in parts [at most ENCODED_AT_A_TIME, D]."""
        rows = torch.arange(first, self.num_item_rows, device=self._content.device)
        parts = zip(
            torch.split(rows, ENCODED_AT_A_TIME),
            # A slice, where rows that are looked up would be copied.
            torch.split(self._content[first:], ENCODED_AT_A_TIME),
            strict=True,
        )
        if self._content.device.type != "cpu" or self.training:
            return [self.encoded(some, content) for some, content in parts]
        return side_by_side(lambda part: self.encoded(*part), parts)

    @torch.no_grad()
    def item_vectors(self, items: JaggedBatch, content: Tensor) -> Tensor:
        """Encode any items, also ones outside the catalogue, as unit vectors, [R, D].

        Args:
            content: Content embeddings, [R, content_dim].
        """
        return self.normalized(self.item_tower(items, content))

    def all_item_vectors(self) -> Tensor:
        """Encode the whole catalogue as unit vectors, [N, D]; row 0 is no item."""
        return self.normalized(self.all_item_inputs())

    def normalized(self, inputs: Tensor) -> Tensor:
        """Make unit vectors of items' inputs, [R, D]."""
        return functional.normalize(inputs, dim=1, eps=NORM_FLOOR)

    def save(self, directory: Path) -> None:
        """Write weights and settings; catalogue and semantic IDs belong to their own artefacts."""
        directory.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(state, directory / self.FILE)
        document = {"config": asdict(self.config), "inputs": asdict(self.inputs)}
        (directory / "config.json").write_text(json.dumps(document, indent=2) + "\n")

    def with_weights(self, directory: Path) -> Self:
        """Take the weights that ``save`` wrote; in evaluation mode."""
        self.load_state_dict(load_file(directory / self.FILE))
        return self.eval()


def read_settings(
    directory: Path, config: type[Config], inputs: Callable[..., Inputs], backend: Backend | None
) -> tuple[Config, Inputs]:
    """Read the settings that a model's ``save`` wrote.

    Args:
        backend: Of the embedding tables; None is the one it was trained with.
    """
    document = json.loads((directory / "config.json").read_text())
    settings, sizes = (
        {name: tuple(one) if isinstance(one, list) else one for name, one in part.items()}
        for part in (document["config"], document["inputs"])
    )
    own = {field.name for field in fields(cast("Any", config))}
    removed = {name: value for name, value in REMOVED_SETTINGS.items() if name not in own}
    settings = without_removed(settings, removed, directory)
    return config(**settings | ({"backend": backend} if backend else {})), inputs(**sizes)


def types_table(num_event_types: int, dim: int) -> nn.Embedding | None:
    """Make the vectors of events' types, which start as if none were read; None without types.

    Row 0, unknown types, is never trained: they are read as no type.
    """
    if not num_event_types:
        return None
    table = nn.Embedding(num_event_types, dim)
    nn.init.zeros_(table.weight)
    return table


class RetrievalModel(CatalogueModel):
    """A model that makes of a query a vector to compare with the items'."""

    event_types: nn.Embedding | None

    def with_types(self, inputs: Tensor, types: Tensor | None) -> Tensor:
        """Add what the types of events [M] say to the events' inputs, [M, D]."""
        if self.event_types is None or types is None:
            return inputs
        table = self.event_types.weight
        return inputs + looked_up(table, torch.where(types < len(table), types, 0))

    def query_vectors(self, queries: JaggedBatch) -> Tensor:
        """Encode queries as unit vectors, [B, D]."""
        raise NotImplementedError

    @torch.no_grad()
    def score(self, queries: JaggedBatch) -> Tensor:
        """Score every item of the catalogue for each query by cosine, [B, N]; row 0 is -inf."""
        scores = self.query_vectors(queries) @ self.all_item_vectors().T
        scores[:, 0] = -torch.inf
        return scores
