"""Generative model: reads a history and says the next item's semantic ID, code by code.

TIGER (arXiv:2305.05065) with one place per event instead of one per code: an event is the sum of
its codes' embeddings and, where wanted, its item tower's vector. The decoder runs after every
event of a sequence at once, so that all prefixes are trained in one pass. A code's probability is
shared among the codes that lead to an item of the catalogue, so the probabilities of all IDs sum to
one.

Axes: B sequences, T places (a start and the events), W beams, P positions trained, L levels, K
codes of a level, N item rows, R distinct items, J blocks, H heads, D width.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.layers.attention.layout import SequenceLayout
from recsys.layers.codes.decoder import (
    Beams,
    CodeBlock,
    CodeChildren,
    CodeTokens,
    Decoded,
    DistanceBias,
    OwnTokens,
    SharedContext,
)
from recsys.layers.dropout import Dropout
from recsys.layers.embedding.tables import Backend
from recsys.models.generative.config import GenerativeConfig, GenerativeInputs
from recsys.models.generative.loss import (
    Positions,
    TaughtCodes,
    Teacher,
    code_loss,
    cut_by_length,
    shortest_first,
)
from recsys.models.item_tower import (
    CatalogueModel,
    ItemCatalogue,
    ItemSizes,
    ItemTower,
    read_settings,
)

POSITION_BUCKETS = 32
"""Distances between places that have a bias of their own."""


class GenerativeContext(NamedTuple):
    """A batch of histories as every beam reads them."""

    keys: Tensor
    """[J, B, H, T, D / H]"""
    values: Tensor
    """[J, B, H, T, D / H]"""
    bias: Tensor
    """By distance, -inf where there is no event, [B or 1, H, W or 1, T]."""
    carried: Tensor
    """State of its place that each token carries, [B, W or 1, D]; of width 0 without."""

    def block(self, index: int) -> SharedContext:
        return SharedContext(self.keys[index], self.values[index], self.bias)


class BeamState(NamedTuple):
    """State of the beams."""

    keys: Tensor
    """Keys of the tokens decoded so far, [J, B, W, S, H, D / H]."""
    values: Tensor
    """[J, B, W, S, H, D / H]"""


class HistoryReader(nn.Module):
    """Turns the places of a history into keys and values for the decoder's blocks."""

    def __init__(self, config: GenerativeConfig) -> None:
        super().__init__()
        dim, places = config.embedding_dim, config.max_length + 1
        self.config = config
        self.start = nn.Parameter(torch.randn(dim) / math.sqrt(dim))
        self.dropout = Dropout(config.dropout)
        self.carried_norm = nn.LayerNorm(dim) if config.carries_place else None
        self.among_places = DistanceBias(config.num_heads, POSITION_BUCKETS, places)
        self.to_places = DistanceBias(config.num_heads, POSITION_BUCKETS, places)

    def index_places(self, inputs: Tensor, layout: SequenceLayout) -> Tensor:
        """Pad events after the start, [M, D] -> [B, T, D]."""
        padded = layout.padded(inputs)
        start = self.start.to(padded.dtype).expand(len(padded), 1, -1)
        places = torch.cat([start, padded], dim=1)
        placed: Tensor = self.dropout(places)
        return placed

    def forward(self, places: Tensor, blocks: list[CodeBlock]) -> tuple[Tensor, Tensor, Tensor]:
        """Read places [B, T, D] by the decoder's blocks, each with the places before it.

        Returns:
            Keys and values, [J, B, H, T, D / H] each, and the state of each place, [B, T, D]; of
            width 0 where tokens carry none.
        """
        bias = self.among_places.pairs(places.shape[1])[None]  # [1, H, T, T]
        shared = []
        # In training the draws of dropout behind the last block stay in their order.
        is_read = self.training or self.carried_norm is not None
        for index, block in enumerate(blocks):
            if index == len(blocks) - 1 and not is_read:
                shared.append(block.keys_and_values(places))
                break
            places, key, value = block.read(places, bias)
            shared.append((key, value))
        carried = places[..., :0] if self.carried_norm is None else self.carried_norm(places)
        keys, values = zip(*shared, strict=True)
        return torch.stack(keys), torch.stack(values), carried

    def bias(self, places: Tensor, num_places: int) -> Tensor:
        """Mask all but the first ``places`` events, [...] -> [..., H, T]."""
        place = torch.arange(num_places, device=places.device)
        distance = places[..., None] - place
        bias: Tensor = self.to_places(distance)
        return bias.masked_fill((distance < 0)[..., None, :], -torch.inf)


__all__ = ["GenerativeConfig", "GenerativeContext", "GenerativeInputs", "GenerativeModel"]


class GenerativeModel(CatalogueModel):
    """History reader and code decoder, and the item tower with its catalogue."""

    FILE = "generative.safetensors"
    config: GenerativeConfig
    inputs: GenerativeInputs

    codes: Tensor

    def __init__(
        self,
        config: GenerativeConfig,
        inputs: GenerativeInputs,
        codes: Tensor,
        catalogue: ItemCatalogue,
        item_counts: Tensor | None = None,
        vectors: Tensor | None = None,
    ) -> None:
        """Build the model.

        Args:
            codes: Semantic ID of each item row of the catalogue, [N, L]; -1 where there is none.
            item_counts: Training events of each item, [num_item_rows]: items without any count as
                never met. A loaded model has its own.
            vectors: Of each item, [num_item_rows, vector_dim], where the config reads them; row 0
                is used for items that came later. A loaded model has its own.
        """
        super().__init__(catalogue)
        inputs.check_codes(codes, self.num_item_rows)
        self.config, self.inputs = config, inputs
        dim, sizes = config.embedding_dim, inputs.level_sizes
        self.register_buffer("codes", codes.long(), persistent=False)
        self.code_children = CodeChildren(self.codes, sizes)
        self.tokens = CodeTokens(dim, sizes)
        self.reader = HistoryReader(config)
        self.decoder = nn.ModuleList(
            CodeBlock(config.block_config()) for _ in range(config.num_layers)
        )
        self.decoder_norm = nn.LayerNorm(dim)
        self.heads = nn.ModuleList(nn.Linear(dim, size) for size in sizes)
        if config.items == "codes_vectors":
            self._take_vectors(vectors)
        # Codes alone need no tower; one of one row stands in.
        self.item_tower = ItemTower(
            config, inputs if config.reads_items else ItemSizes(num_item_rows=1)
        )
        if item_counts is not None and config.reads_items:
            self.item_tower.item_counts.copy_(item_counts)

    def with_codes(self, codes: Tensor) -> Self:
        """Read the semantic IDs of a catalogue that this model was ``grown`` to, in place.

        Args:
            codes: Of each item row, [N, L]; -1 where there is none.
        """
        self.inputs.check_codes(codes, self.num_item_rows)
        self.codes = codes.long()
        self.code_children = CodeChildren(self.codes, self.inputs.level_sizes)
        return self

    def _take_vectors(self, vectors: Tensor | None) -> None:
        width, dim = self.inputs.vector_dim, self.config.embedding_dim
        shape = (self.inputs.num_item_rows, width)
        vectors = torch.zeros(shape) if vectors is None else vectors
        self.vectors: Tensor
        self.register_buffer("vectors", vectors.detach().clone())
        self.of_vectors = nn.Linear(width, dim)
        if width == dim:
            nn.init.eye_(self.of_vectors.weight)
        elif width:
            nn.init.orthogonal_(self.of_vectors.weight)
        nn.init.zeros_(self.of_vectors.bias)

    def blocks(self) -> list[CodeBlock]:
        return cast("list[CodeBlock]", list(self.decoder))

    def _known(self, history: Jagged) -> Jagged:
        inside = (history.values >= 0) & (history.values < self.num_item_rows)
        return Jagged(torch.where(inside, history.values, 0), history.offsets)

    def _places(self, history: Jagged, layout: SequenceLayout, from_tower: Tensor | None) -> Tensor:
        """Arrange the events for the reader, [B, T, D]."""
        inputs = self.tokens.events(self.codes[history.values])
        if self.config.items == "codes_vectors":
            known = torch.where(history.values < len(self.vectors), history.values, 0)
            inputs = inputs + self.of_vectors(self.vectors[known])
        if from_tower is not None:
            inputs = inputs + from_tower
        return self.reader.index_places(inputs, layout)

    @torch.no_grad()
    def context(self, queries: JaggedBatch) -> GenerativeContext:
        """Read histories, once for all beams.

        Args:
            queries: ``history`` (item rows, oldest first); empty ones are read as the start alone.
        """
        history = self._known(latest(queries["history"], self.config.max_length))
        layout = SequenceLayout.of(
            history.offsets, history.segments(), self.config.max_length, None
        )
        from_tower = None
        if self.config.items == "codes_tower":
            from_tower = self.all_item_inputs()[history.values]
        places = self._places(history, layout, from_tower)
        seen = history.lengths()
        keys, values, states = self.reader(places, self.blocks())
        bias = self.reader.bias(seen, places.shape[1])[:, :, None]  # [B, H, 1, T]
        carried = states[torch.arange(len(seen), device=seen.device), seen][:, None]
        return GenerativeContext(keys, values, bias.to(keys.dtype), carried)

    def _logits(self, hidden: Tensor, level: int) -> Tensor:
        """Score the codes of a level, [..., D] -> [..., K]."""
        logits: Tensor = self.heads[level](hidden)
        return logits

    def decode_step(
        self, context: GenerativeContext, beams: Beams[BeamState] | None, /
    ) -> Decoded[BeamState]:
        """Score the next code of every beam, see ``recsys.layers.codes.decoder``."""
        if beams is None:
            hidden, state = self._decode(context, self._first_token(context), None)
            return Decoded(self._logits(hidden, 0), state)
        batch = torch.arange(len(beams.parents), device=beams.parents.device)[:, None]
        past = BeamState(*(part[:, batch, beams.parents] for part in beams.state))
        token = self._token(context, beams.level, beams.codes)
        hidden, state = self._decode(context, token, past)
        return Decoded(self._logits(hidden, beams.level), state)

    def _decode(
        self, context: GenerativeContext, token: Tensor, past: BeamState | None
    ) -> tuple[Tensor, BeamState]:
        """Decode one token of each beam, [B, W, D] -> [B, W, D] and keys and values of all."""
        hidden, owns = token[:, :, None], []
        for index, block in enumerate(self.blocks()):
            own = None if past is None else OwnTokens(past.keys[index], past.values[index])
            hidden, own = block.decode(hidden, context.block(index), own)
            owns.append(own)
        keys, values = zip(*owns, strict=True)
        return self.decoder_norm(hidden[:, :, 0]), BeamState(torch.stack(keys), torch.stack(values))

    def _first_token(self, context: GenerativeContext) -> Tensor:
        """Embed the token of the first code for one beam of each request, [B, 1, D]."""
        nothing = context.bias.new_zeros(context.keys.shape[1], 1, dtype=torch.int64)
        return self._token(context, 0, nothing)

    def _token(self, context: GenerativeContext, level: int, taken: Tensor) -> Tensor:
        """Embed the token of a level's code after the codes ``taken``, [B, W] -> [B, W, D]."""
        token = self.tokens.token(level, taken)
        return token + context.carried if self.config.carries_place else token

    def loss(self, batch: JaggedBatch, teacher: Teacher | None = None) -> Tensor:
        """Negative log-probability of every event's ID.

        Args:
            batch: ``history``, whole sequences of at most max_length + 1 events (longer ones are
                cut to the latest), and the other features of each event that a teacher reads.
                ``history.counted``, if it is there, is 0 for events that are no labels.
        """
        # A sequence's last event is read by no position, but to take it out a GPU would wait.
        if teacher is None:
            own = [name for name in ("history", "history.counted") if name in batch]
            batch = JaggedBatch({name: batch[name] for name in own})
        batch = shortest_first(batch, self.config.max_length + 1)
        history = self._known(batch["history"])
        positions = Positions.of(history)
        if "history.counted" in batch:
            weights = positions.weights * batch["history.counted"].values
            positions = positions._replace(weights=weights)
        rows, inputs = self._tower_inputs(history.values)
        parts = [
            (self._training_context(part[0], rows, inputs), part[1])
            for part in cut_by_length(history, positions)
        ]
        codes = self.codes[positions.labels]  # [P, L]
        weights = positions.weights * (codes[:, 0] >= 0)
        taught = TaughtCodes(codes, ()) if teacher is None else teacher(batch, positions)
        hidden = self._forced(parts, taught.forced.clamp(min=0))  # [P, L, D]
        return self._code_loss(hidden, taught, weights)

    def _tower_inputs(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """Encode the items of events: their rows, ascending, [R], and their vectors, [R, D]."""
        if not self.config.reads_items:
            rows = read[:0]
        elif read.is_cuda and self.encodes_all(len(read)):
            return self.item_inputs_of_all()
        else:
            rows = torch.unique(read)
        return rows, self.item_inputs(rows)

    def _training_context(self, history: Jagged, rows: Tensor, inputs: Tensor) -> GenerativeContext:
        """Read histories for all positions; each position reads up to its place."""
        from_tower = None
        if self.config.items == "codes_tower":
            from_tower = embedding(torch.searchsorted(rows, history.values), inputs)
        length = self.config.max_length + 1
        layout = SequenceLayout.of(history.offsets, history.segments(), length, None)
        places = self._places(history, layout, from_tower)
        every = torch.arange(places.shape[1], device=places.device)
        bias = self.reader.bias(every, len(every)).transpose(0, 1)[None]  # [1, H, T, T]
        keys, values, states = self.reader(places, self.blocks())
        return GenerativeContext(keys, values, bias, states)

    def _forced(self, parts: list[tuple[GenerativeContext, Positions]], codes: Tensor) -> Tensor:
        """Decode after given codes, [P, L], the tokens of each position: [P, L, D]."""
        sizes = [len(positions.places) for _, positions in parts]
        hidden = [
            self._forced_part(*part, some)
            for part, some in zip(parts, torch.split(codes, sizes), strict=True)
        ]
        return cast("Tensor", self.decoder_norm(torch.cat(hidden)))

    def _forced_part(
        self, context: GenerativeContext, positions: Positions, codes: Tensor
    ) -> Tensor:
        shape = (context.keys.shape[1], context.keys.shape[3], codes.shape[1])
        grid = codes.new_zeros(shape).index_put((positions.sequences, positions.places), codes)
        tokens = [
            self._token(context, level, grid[..., max(0, level - 1)])
            for level in range(codes.shape[1])
        ]
        hidden = torch.stack(tokens, dim=2)  # [B, W, L, D]
        for index, block in enumerate(self.blocks()):
            hidden, _ = block.decode(hidden, context.block(index), None)
        return hidden[positions.sequences, positions.places]

    def _code_loss(self, hidden: Tensor, taught: TaughtCodes, weights: Tensor) -> Tensor:
        """Sum the levels' losses, the mean over positions whose label has an ID."""
        share, codes = weights / weights.sum().clamp(min=1e-12), taught.forced.clamp(min=0)
        loss, prefixes = torch.zeros((), device=hidden.device), torch.zeros_like(codes[:, 0])
        for level in range(codes.shape[1]):
            following = self.code_children(prefixes, level)
            logits = self._logits(hidden[:, level], level)
            target = taught.targets[level] if taught.targets else None
            loss = loss + code_loss(
                logits, codes[:, level], following, share, self.config.label_smoothing, target
            )
            prefixes = self.tokens.step(prefixes, codes[:, level], level)
        return loss

    @classmethod
    def load(
        cls,
        directory: Path,
        catalogue: ItemCatalogue,
        codes: Tensor,
        *,
        semantic_ids: str,
        backend: Backend | None = None,
    ) -> GenerativeModel:
        """Read a saved model, in evaluation mode, over a catalogue that may have grown.

        Args:
            codes: Semantic ID of each item row of the catalogue, [N, L]; -1 where there is none.
            backend: Of the embedding tables; None is the one it was trained with.
        """
        config, inputs = read_settings(directory, GenerativeConfig, GenerativeInputs, backend)
        inputs.check_version(semantic_ids)
        return cls(config, inputs, codes, catalogue).with_weights(directory)
