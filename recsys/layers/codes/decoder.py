"""Blocks that read a history and decode semantic IDs after it, code by code.

A block either reads places that attend to the places before them, or decodes tokens that attend,
by one softmax, to their own tokens before them and to a history whose keys and values were computed
once and are shared by all beams of a request.

Axes: B requests, W beams (in training: places that are trained), S tokens of a beam, T places of
the history, D width, H heads, M events, N item rows, L levels, K codes of a level, P prefixes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.kernels.hstu_attention.op import distance_buckets
from recsys.layers.attention.softmax import BlockConfig, feed_forward
from recsys.layers.dropout import Dropout


class CodeTokens(nn.Module):
    """Tables of codes."""

    def __init__(self, dim: int, level_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.level_sizes = level_sizes
        # Each level has a row for items without an ID, its first.
        self.of_events = nn.Embedding(sum(level_sizes) + len(level_sizes), dim)
        self.taken = nn.Embedding(sum(level_sizes), dim)
        self.levels = nn.Parameter(torch.randn(len(level_sizes), dim) / math.sqrt(dim))
        for table in (self.of_events, self.taken):
            nn.init.normal_(table.weight, std=1 / math.sqrt(dim))
        shift = torch.tensor([1, *(size + 1 for size in level_sizes[:-1])]).cumsum(0)
        self.shift: Tensor
        self.register_buffer("shift", shift, persistent=False)

    def step(self, prefixes: Tensor, codes: Tensor, level: int) -> Tensor:
        """Append a code of ``level`` to prefixes read as numbers; 0 is the empty one."""
        return prefixes * self.level_sizes[level] + codes

    def events(self, codes: Tensor) -> Tensor:
        """Add up the codes of events, [M, L] -> [M, D]; -1 is no ID."""
        return functional.embedding_bag(codes + self.shift, self.of_events.weight, mode="sum")

    def token(self, level: int, taken: Tensor) -> Tensor:
        """Embed the token that a code of ``level`` is predicted from, [...] -> [..., D]."""
        token = self.levels[level].expand(*taken.shape, -1)
        if level == 0:
            return token
        offset = sum(self.level_sizes[: level - 1])
        return token + functional.embedding(taken + offset, self.taken.weight)


NOBODY = 1 << 62
"""A prefix, read as a number, that no item has."""


class CodeChildren(nn.Module):
    """The prefixes of a catalogue's semantic IDs, sorted, level by level; no parameters.

    Args:
        codes: [N, L]; rows without an ID hold -1.
    """

    def __init__(self, codes: Tensor, level_sizes: Sequence[int]) -> None:
        super().__init__()
        self.level_sizes = tuple(level_sizes)
        known = codes[codes[:, 0] >= 0].long()
        keys = torch.zeros(len(known), dtype=torch.int64, device=codes.device)
        self.most: list[int] = []
        for level, size in enumerate(self.level_sizes):
            keys = keys * size + known[:, level]
            distinct = torch.unique(keys)
            parents = torch.unique(distinct // size, return_counts=True)[1]
            self.most.append(int(parents.max()) if len(parents) else 1)
            # Behind the last one nothing follows any prefix. Not saved: the codes are not either.
            padded = functional.pad(distinct, (0, 1), value=NOBODY)
            self.register_buffer(f"keys_{level}", padded, persistent=False)

    def forward(self, prefixes: Tensor, level: int) -> Tensor:
        """Return which codes of ``level`` some item has after each prefix, [P] -> [P, K] bool.

        No shape depends on data, so no device sync is needed.
        """
        size, keys = self.level_sizes[level], self._keys(level)
        first = torch.searchsorted(keys, prefixes * size)  # [P]
        window = torch.arange(self.most[level], device=keys.device)
        children = keys[(first[:, None] + window).clamp(max=len(keys) - 1)]  # [P, most]
        codes = (children - prefixes[:, None] * size).clamp(max=size)
        allowed = torch.zeros(len(prefixes), size + 1, dtype=torch.bool, device=keys.device)
        return allowed.scatter(1, codes, True)[:, :size]

    def _keys(self, level: int) -> Tensor:
        keys: Tensor = getattr(self, f"keys_{level}")
        return keys


StateT = TypeVar("StateT")
Context_contra = TypeVar("Context_contra", contravariant=True)


class Beams(NamedTuple, Generic[StateT]):
    """Prefixes that continue to the next level."""

    level: int
    """Codes taken so far, the level to be scored: 1 .. L - 1."""
    parents: Tensor
    """Which beam of the level before each one continues, [B, W] int64."""
    codes: Tensor
    """The code that each one took there, [B, W] int64; in range also for beams that are dead."""
    state: StateT
    """State of the step before, its beams in the order of that step."""


class Decoded(NamedTuple, Generic[StateT]):
    """Prediction of the next code."""

    logits: Tensor
    """Logits or log-probabilities, [B, W, K]; minus infinity is never chosen. Their softmax is over
    the codes that lead to an item of the catalogue, shown or not."""
    state: StateT
    """The model's own memory of its beams (their keys and values), handed to the next step."""


class DecodeStep(Protocol[Context_contra, StateT]):
    """Score the next code of every beam.

    The context is what a request's beams share, encoded before the search, once: keys and values
    of the history for a decoder that attends to it, [B, ...]. The state is what differs by beam.
    A step with ``beams`` None scores the first level: [B, 1, K] of the one empty prefix. Later
    ones pick the state of ``beams.parents``, append ``beams.codes``, and score ``beams.level``.
    """

    def __call__(
        self, context: Context_contra, beams: Beams[StateT] | None, /
    ) -> Decoded[StateT]: ...


MANY_SCORES = 1 << 24
"""Scores of beams against a context from which writing them costs more than a fused kernel: on an
H200 200 beams of 16 requests after 2048 places, 8 layers, took 62 ms and take 25; of one request
7.7 ms, and 8.2 fused."""


class SharedContext(NamedTuple):
    """A history as one block reads it for every beam."""

    keys: Tensor
    """[B, H, T, D / H]"""
    values: Tensor
    """[B, H, T, D / H]"""
    bias: Tensor
    """Added to scores, -inf where nothing is read: [B or 1, H or 1, W or 1, T]."""


class OwnTokens(NamedTuple):
    """Keys and values of the tokens of each beam, [B, W, S, H, D / H] each."""

    keys: Tensor
    values: Tensor


class DistanceBias(nn.Module):
    """Learned bias of each head by how many places back another one is."""

    def __init__(self, num_heads: int, num_buckets: int, num_places: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_buckets, num_heads))
        self.buckets: Tensor
        buckets = distance_buckets(num_places, num_buckets).long()
        self.register_buffer("buckets", buckets, persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        """Look up distances back in time, [..., T] -> [..., H, T]; the sign is not read."""
        bucket = self.buckets[distance.abs().clamp(max=len(self.buckets) - 1)]
        return functional.embedding(bucket, self.weights).movedim(-1, -2)

    def pairs(self, num_places: int) -> Tensor:
        """Return every place its bias of every other, [H, T, T], -inf ahead; each distance once."""
        device = self.weights.device
        distance = torch.arange(num_places - 1, -num_places, -1, device=device)  # [2 T - 1]
        numbers: Tensor = self(distance).contiguous()  # [H, 2 T - 1]
        numbers = numbers.masked_fill(distance < 0, -torch.inf)
        # Row i of the pairs is a window that begins at the distance from i to the first place.
        return numbers.unfold(1, num_places, 1).flip(1)


class CodeBlock(nn.Module):
    """Attention and a feed-forward layer, each after a norm and added to its input."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        dim = config.dim
        self.num_heads, self.head_dim = config.num_heads, dim // config.num_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.hidden = feed_forward(dim, config.hidden_dim, config.dropout)
        self.dropout = Dropout(config.dropout)

    def _heads(self, projected: Tensor) -> Tensor:
        """Split the width, [..., D] -> [..., H, D / H]."""
        return projected.view(*projected.shape[:-1], self.num_heads, self.head_dim)

    def _add(self, state: Tensor, read: Tensor) -> Tensor:
        state = state + self.dropout(read)
        added: Tensor = state + self.dropout(self.hidden(state))
        return added

    def read(self, places: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute attention among places.

        Args:
            places: [B, T, D].
            bias: [B or 1, H or 1, T, T], -inf where a place is not read.

        Returns:
            The places, [B, T, D], and their keys and values, [B, H, T, D / H].
        """
        query, key, value = self._projected(places)
        mask = bias.to(query.dtype)
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self._add(places, self.output(read.transpose(1, 2).flatten(2))), key, value

    def keys_and_values(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ``read`` gives besides the places, if those are not read any more."""
        _, key, value = self._projected(places)
        return key, value

    def _projected(self, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project places as queries, keys and values, [B, H, T, D / H] each."""
        projected = self.query_key_value(self.attention_norm(places))
        query, key, value = (
            self._heads(part).transpose(1, 2) for part in projected.chunk(3, dim=-1)
        )
        return query, key, value

    def decode(
        self, tokens: Tensor, context: SharedContext, past: OwnTokens | None
    ) -> tuple[Tensor, OwnTokens]:
        """Decode tokens that follow the ``past`` ones of their beam, [B, W, S, D] -> the same."""
        projected = self.query_key_value(self.attention_norm(tokens))
        query, key, value = (self._heads(part) for part in projected.chunk(3, dim=-1))
        own = OwnTokens(key, value)  # [B, W, S, H, D / H]
        if past is not None:
            own = OwnTokens(*(torch.cat(pair, dim=2) for pair in zip(past, own, strict=True)))
        scores = own_scores(query, own.keys)  # [B, W, S, H, all S]
        read = joint_attention(query, scores, own.values, context)
        return self._add(tokens, self.output(read)), own


def own_scores(query: Tensor, keys: Tensor) -> Tensor:
    """Score a beam's tokens up to each query, [B, W, S, H, d] -> [B, W, S, H, all S] float32."""
    num_new, num_all = query.shape[2], keys.shape[2]
    scale = float(query.shape[-1]) ** -0.5
    scores: Tensor = (query[..., None, :] * keys.transpose(2, 3)[:, :, None]).sum(
        -1
    ).float() * scale
    if num_new == 1:
        return scores
    place = torch.arange(num_all, device=keys.device)
    later = place[None, :] > place[num_all - num_new :, None]  # [S, all S]
    return scores.masked_fill(later[:, None, :], -torch.inf)


def side_by_side(query: Tensor) -> Tensor:
    """Put the tokens of all beams in one row, [B, W, S, H, d] -> [B, H, W S, d]."""
    return query.flatten(1, 2).transpose(1, 2)


def repeat_tokens(bias: Tensor, num_tokens: int) -> Tensor:
    """Return each token its beam's bias, [.., W or 1, T] -> [.., W S or 1, T]."""
    return bias if bias.shape[2] == 1 else bias.repeat_interleave(num_tokens, dim=2)


def joint_attention(
    query: Tensor, scores: Tensor, values: Tensor, context: SharedContext
) -> Tensor:
    """Attend to own tokens and the context by one softmax.

    Args:
        query: [B, W, S, H, d].
        scores: Of own tokens, [B, W, S, H, all S].
        values: Of own tokens, [B, W, all S, H, d].

    Returns:
        [B, W, S, D].
    """
    shape, length = query.shape, context.keys.shape[2]
    single = scores.flatten(1, 2).transpose(1, 2)  # [B, H, W S, all S]
    if is_fused_faster(query, length):
        read, weights = fused_shares(side_by_side(query), context, single, shape[2])
    else:
        # The few queries are scaled, not the many scores; the sum makes these float32 as it goes.
        scaled = side_by_side(query) * float(shape[-1]) ** -0.5
        shared = scaled @ context.keys.transpose(-1, -2)  # [B, H, W S, T]
        shared = shared + repeat_tokens(context.bias, shape[2]).float()
        both = torch.softmax(torch.cat([shared, single], -1), -1).to(values.dtype)
        read, weights = both[..., :length] @ context.values, both[..., length:]
    read = read.transpose(1, 2).reshape(shape)
    weights = weights.transpose(1, 2).reshape(scores.shape)  # [B, W, S, H, all S]
    read = read + (weights[..., None] * values.transpose(2, 3)[:, :, None]).sum(-2)
    return read.flatten(3)


def is_fused_faster(query: Tensor, length: int) -> bool:
    """True if a kernel that never writes the scores of a context pays, on a GPU without grad.

    It wants the bias' rows aligned.
    """
    batch_size, num_beams, num_tokens, num_heads, _ = query.shape
    many = batch_size * num_heads * num_beams * num_tokens * length >= MANY_SCORES
    return query.is_cuda and many and length % 8 == 0 and not torch.is_grad_enabled()


def fused_shares(
    query: Tensor, context: SharedContext, single: Tensor, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Read the context by a fused kernel, which also says the sum of its exponentials.

    Args:
        query: [B, H, W S, d].
        single: Scores of own tokens, [B, H, W S, all S].

    Returns:
        The context's part, [B, H, W S, d], and the weights of own tokens, [B, H, W S, all S].
    """
    bias = repeat_tokens(context.bias, num_tokens).to(query.dtype)
    bias = bias.expand(*query.shape[:3], -1)
    # scaled_dot_product_attention keeps the logarithm of the sum to itself.
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    read, log_sum, *_ = kernel(query, context.keys, context.values, bias, True)
    return merged_shares(read, log_sum[..., : query.shape[2]], single)


def merged_shares(read: Tensor, log_sum: Tensor, single: Tensor) -> tuple[Tensor, Tensor]:
    """Make one softmax of two: of a context, already read, and of own tokens.

    Args:
        read: By the context's softmax alone, [B, H, W S, d].
        log_sum: Logarithm of the sum of the exponentials of its scores, [B, H, W S].
        single: Scores of own tokens, [B, H, W S, all S].
    """
    total = torch.logaddexp(log_sum, torch.logsumexp(single, -1))
    weights = torch.exp(single - total[..., None]).to(read.dtype)
    return read * torch.exp(log_sum - total)[..., None].to(read.dtype), weights
