"""Settings of the sequence model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from recsys.data.bounds import check_bounds
from recsys.layers.attention.softmax import BlockConfig
from recsys.layers.embedding.tables import Backend

Block = Literal["attention", "convolution", "hstu"]
LAST_DAY = 47_482
"""Days from 1970 to 2100."""


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """Settings of SequenceModel; the defaults were chosen on validation of Amazon Beauty."""

    embedding_dim: int = 128
    """Width of the vectors, of all members together."""
    num_members: int = 1
    """Encoders side by side, each with its own share of the width and a loss of its own. The mean
    of their cosines ranks, as of models trained apart, but it is one model with one vector."""
    trained_apart: bool = False
    """Whether members are trained one by one and then joined (training/members.py), with batches,
    noise and a best step of their own, or all at once."""
    fast_members: int | None = None
    """How many members, from the first on, are the source ``sequence`` of every profile; with all
    of them the model is a further source, ``ensemble``, of profile ``full``. None: all are the
    one source."""
    max_length: int = 50
    """Events of a history that are read, and positions trained of a sequence."""
    block: Block = "attention"
    """Kind of the blocks: SASRec's ``attention``, ``convolution`` (attention and a causal
    convolution together) or ``hstu``."""
    member_blocks: tuple[Block, ...] = ()
    """Kind of each member's blocks where they differ; none: all are as ``block``."""
    num_blocks: int = 1
    """Blocks one after the other."""
    num_heads: int = 1
    """Heads of the attention; they divide the width."""
    hidden_dim: int = 256
    """Width inside an attention block's feed-forward layer."""
    time_buckets: int = 0
    """Biases by log2 of elapsed seconds, where events have times; 0 for none."""
    calendar_days: float = 0.0
    """Days between learned vectors of the calendar, where events have times; 0 for none. One table
    is added to each event as it is read, one to the state after it, both at that event's own time.
    A query is placed at the time of its last event; the time of the query itself, and of the
    next event, is never read."""
    dropout: float = 0.4
    """Share of values that are dropped in a training step."""
    id_dropout: float = 0.1
    """Share of items whose id is hidden in a training step, so that content replaces them."""
    content_weight: float = 3.0
    """Factor of the content's vector relative to that of the id."""
    num_neighbours: int = 0
    """Items whose ids an item also reads: those that occur most near it in the events that the
    model is fitted on (models/sequence/neighbours.py). 0 for none."""
    neighbour_weight: float = 1.0
    """Weight of the mean of the neighbours' ids relative to the item's own id."""
    temperature: float = 0.07
    """Divides the cosine before the softmax."""
    label_smoothing: float = 0.25
    """Share of the target that is spread over all candidates."""
    num_uniform_negatives: int | None = None
    """Uniform draws per step besides the batch's labels; None ranks against every item."""
    leave_out_history: bool = True
    """Whether items that a position has seen do not compete with its label. For data where lists
    do not repeat the history; a label that repeats is learnt either way."""
    backend: Backend = "auto"
    """Backend of the embedding tables: TorchRec, our kernel or torch; ``auto`` is the fastest."""

    def __post_init__(self) -> None:
        check_bounds(self, num_blocks=">= 1", num_members=">= 1", temperature="> 0")
        self._check_members()
        check_bounds(self, **dict.fromkeys(("dropout", "id_dropout", "label_smoothing"), "[0, 1)"))
        # None ranks against every item; no neighbours are read with num_neighbours = 0.
        check_bounds(self, num_neighbours=">= 0", num_uniform_negatives=">= 1")
        check_bounds(self, neighbour_weight="> 0")
        if self.calendar_days and not 1 <= self.calendar_days <= LAST_DAY:
            raise ValueError(
                f"calendar_days must be 0 or in [1, {LAST_DAY}], got {self.calendar_days}"
            )
        self.block_config()

    def _check_members(self) -> None:
        for block in (self.block, *self.member_blocks):
            if block not in get_args(Block):
                raise ValueError(f"block is one of {', '.join(get_args(Block))}, got {block!r}")
        if self.embedding_dim % self.num_members:
            raise ValueError(
                f"num_members must divide embedding_dim {self.embedding_dim}, got "
                f"{self.num_members}"
            )
        if len(self.member_blocks) not in (0, self.num_members):
            raise ValueError(
                f"member_blocks names the kind of each of {self.num_members} members, or of none "
                f"where all are as block says, got {list(self.member_blocks)}"
            )

        if self.fast_members is not None and not (
            self.trained_apart and 1 <= self.fast_members < self.num_members
        ):
            raise ValueError(
                f"fast_members must be in [1, num_members) of members trained_apart, or None; got "
                f"{self.fast_members} of {self.num_members}, trained_apart {self.trained_apart}"
            )

    def blocks_of(self, number: int) -> Block:
        return self.member_blocks[number] if self.member_blocks else self.block

    def block_config(self) -> BlockConfig:
        return BlockConfig(
            dim=self.embedding_dim // self.num_members,
            num_heads=self.num_heads,
            hidden_dim=self.hidden_dim,
            dropout=self.dropout,
            max_length=self.max_length,
            time_buckets=self.time_buckets,
        )
