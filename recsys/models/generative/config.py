"""Settings of the generative model, and the sizes of what it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from recsys.data.bounds import check_bounds, check_choices
from recsys.layers.attention.softmax import BlockConfig
from recsys.layers.embedding.tables import Backend
from recsys.models.item_tower import ItemSizes


@dataclass(frozen=True, kw_only=True)
class GenerativeConfig:
    """Settings of GenerativeModel; the defaults were chosen on validation of Amazon Beauty."""

    embedding_dim: int = 128
    """Width of codes, events and states."""
    max_length: int = 50
    """Events of a history that are read."""
    num_layers: int = 2
    """Blocks of the decoder."""
    num_heads: int = 2
    """Heads of the attention; they divide the width."""
    hidden_dim: int = 256
    """Width inside a block's feed-forward layer."""
    dropout: float = 0.3
    """Share of values that are dropped in a training step."""
    items: Literal["codes", "codes_tower", "codes_vectors"] = "codes_tower"
    """Parts of an event: codes alone, or also the item's id, content and categories, or also
    a vector of the item that another model has made, which is read as it is."""
    carries_place: bool = False
    """Whether tokens also carry the state of the place that they follow, so that attention
    need not find the last one."""
    id_dropout: float = 0.05
    """Share of items whose id is hidden in a training step, so that content replaces them."""
    content_weight: float = 3.0
    """Factor of the content's vector relative to that of the id."""
    label_smoothing: float = 0.1
    """Share of a code's target spread over the other codes of its softmax."""
    backend: Backend = "auto"
    """Backend of the embedding tables: TorchRec, our kernel or torch; ``auto`` is the fastest."""

    def __post_init__(self) -> None:
        check_choices(self, items=("codes", "codes_tower", "codes_vectors"))
        check_bounds(self, num_layers=">= 1", max_length=">= 1")
        check_bounds(self, **dict.fromkeys(("dropout", "id_dropout", "label_smoothing"), "[0, 1)"))
        self.block_config()

    @property
    def reads_items(self) -> bool:
        """Whether events are read by an item tower too."""
        return self.items == "codes_tower"

    def block_config(self) -> BlockConfig:
        return BlockConfig(
            dim=self.embedding_dim,
            num_heads=self.num_heads,
            hidden_dim=self.hidden_dim,
            dropout=self.dropout,
            max_length=self.max_length,
        )


@dataclass(frozen=True, kw_only=True)
class GenerativeInputs(ItemSizes):
    """Sizes of what the model reads, from the artefacts it is trained on (row 0 included)."""

    level_sizes: tuple[int, ...]
    """Codes of each level of the semantic IDs."""
    semantic_ids: str
    """Version of the semantic IDs."""
    vector_dim: int = 0
    """Width of the items' vectors, 0 without."""

    def check_version(self, semantic_ids: str) -> None:
        if semantic_ids != self.semantic_ids:
            raise ValueError(
                f"the model speaks semantic IDs {self.semantic_ids}, the codes are of "
                f"{semantic_ids}; give it the codes it was trained on or train it again"
            )

    def check_codes(self, codes: Tensor, num_item_rows: int) -> None:
        """Refuse codes [N, L] that are not one ID or none for each row of the catalogue."""
        if codes.shape != (num_item_rows, len(self.level_sizes)) or codes.is_floating_point():
            raise ValueError(
                f"codes {tuple(codes.shape)} {codes.dtype} must be whole numbers, one row for each "
                f"of the catalogue's {num_item_rows} item rows and a column for each of the levels "
                f"{self.level_sizes}"
            )
        limits = codes.new_tensor(self.level_sizes)
        wrong = ~(((codes >= 0) & (codes < limits)).all(1) | (codes == -1).all(1))
        if wrong.any():
            row = int(wrong.int().argmax())
            raise ValueError(
                f"item row {row} has codes {codes[row].tolist()}; each must be in "
                f"[0, {self.level_sizes}), or all -1 where the item has no ID"
            )


@dataclass(frozen=True, kw_only=True)
class TeachingConfig:
    """How much a generative model learns from a sequence model, and on what."""

    share: float = 0.0
    """Share of a position's target that the teacher says, the rest is the label; 0 is no teacher.
    The first event of a sequence, which follows on nothing, is all label."""
    dropped_events: float = 0.0
    """Sequences lose events at random, each its own share of at most this, so that the teacher
    speaks of histories that no user has."""

    def __post_init__(self) -> None:
        check_bounds(self, share="[0, 1]", dropped_events="[0, 1)")
