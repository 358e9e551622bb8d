"""Output of a block of attention for one history's latest event, weights folded.

A server needs that event alone, and a few small products take less time than starting the twenty
operations of the block. With q = W_q x + b and k_j = W_k x_j, q . k_j = (W_k^T q) . x_j up to a
number that the softmax leaves out; and values are mixed before they are projected. So keys and
values of the other events are never computed.

Axes: N item rows, M events of the history, D width, H heads, E = D / H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.kernels.one_query.op import EncoderOfOne
from recsys.layers.attention.softmax import AttentionBlock
from recsys.layers.attention.sparse import BLOCK, CHOSEN, WINDOW, SparseBlock


class LatestEvent:
    """A block for the last of some events; its weights must not change afterwards."""

    def __init__(
        self,
        norm: nn.LayerNorm,
        query: tuple[Tensor, Tensor],
        heads: tuple[Tensor, Tensor],
        output: tuple[Tensor, Tensor],
        hidden: nn.Sequential,
    ) -> None:
        """Fold the weights, in float64.

        Args:
            query: Weight [D, D] and bias [D].
            heads: Keys and values of each head, [H, E, D] each.
            output: Weight [D, D] and bias [D].
        """
        keys, values = (one.detach().double() for one in heads)
        weight, bias = (one.detach().double() for one in query)
        num_heads, head_dim, dim = keys.shape
        scale = head_dim**-0.5
        each = weight.view(num_heads, head_dim, dim)
        self._keys = (scale * keys.transpose(1, 2) @ each).flatten(0, 1).float()  # [H D, D]
        own = bias.view(num_heads, head_dim, 1)
        self._offset = (scale * keys.transpose(1, 2) @ own).flatten().float()  # [H D]
        last = output[0].detach().double().view(dim, num_heads, head_dim)
        self._output = torch.einsum("ohe,hed->ohd", last, values).flatten(1).float()  # [D, H D]
        self._bias = output[1].detach()
        self._shape, self._num_heads = (dim,), num_heads
        self._norm = (norm.weight.detach(), norm.bias.detach(), norm.eps)
        inner = cast("nn.LayerNorm", hidden[0])
        first, second = (cast("nn.Linear", hidden[place]) for place in (1, 4))
        self._inner_norm = (inner.weight.detach(), inner.bias.detach(), inner.eps)
        # With y = x / sqrt(2), gelu(x) = (y + y erf(y)) / sqrt(2): a third of gelu's own time.
        half = math.sqrt(0.5)
        self._first = (half * first.bias.detach(), half * first.weight.detach())
        self._second = (second.bias.detach(), half * second.weight.detach())

    def encoder(
        self,
        inputs: Tensor,
        places: Tensor | None,
        last: tuple[Tensor, Tensor, float],
        floor: float,
        tables: Sequence[Tensor] = (),
        *,
        from_end: bool,
    ) -> EncoderOfOne:
        """Build the compiled form of a tower: inputs, this block, a norm, rows of tables, length 1.

        Args:
            inputs: Of every item, [N, D].
            places: What is added to events by their place, [P, D]; ``from_end`` if the latest event
                takes the last of them, else the oldest takes the first.
            last: Weight, bias and epsilon of the norm after the block.
            floor: Least length that the vector is divided by.
            tables: Tables of which a row each is added after that norm.
        """
        norms = {"norm": self._norm, "inner": self._inner_norm, "last": last}
        fields: dict[str, float | Tensor | None] = {
            "heads": self._num_heads,
            "hidden": len(self._first[0]),
            "num_rows": len(inputs),
            "num_places": 0 if places is None else len(places),
            "from_end": from_end,
            "inputs": inputs,
            "places": places,
            "floor": floor,
            "keys": self._keys,
            "offset": self._offset,
            "output": self._output,
            "bias": self._bias,
            "first": self._first[1],
            "first_bias": self._first[0],
            "second": self._second[1],
            "second_bias": self._second[0],
            **{f"{name}_weight": norm[0] for name, norm in norms.items()},
            **{f"{name}_bias": norm[1] for name, norm in norms.items()},
            **{f"{name}_eps": float(norm[2]) for name, norm in norms.items()},
        }
        return EncoderOfOne(self._shape[0], fields, tables)

    @classmethod
    def of(cls, block: AttentionBlock | SparseBlock) -> LatestEvent:
        """Fold a block of softmax attention; of a sparse one, the reading of its window."""
        projection, output = block.query_key_value, block.output
        query, key, value = projection.weight.detach().chunk(3)
        query_bias, _, value_bias = projection.bias.detach().chunk(3)
        shape = (block.num_heads, len(query) // block.num_heads, -1)
        # The weights of a softmax add up to 1, so a bias of the values goes into the output's.
        bias = output.bias.double() + output.weight.double() @ value_bias.double()
        return cls(
            block.attention_norm,
            (query, query_bias),
            (key.view(shape), value.view(shape)),
            (output.weight, bias.float()),
            block.hidden,
        )

    def __call__(self, events: Tensor, bias: Tensor | None) -> Tensor:
        """Read the events, [M, D] -> [D]."""
        normed = self.normed(events)
        logits = self.queries(normed[-1]) @ normed.T  # [H, M]
        if bias is not None:
            logits += bias
        return self.written(logits.softmax(1) @ normed, events[-1])

    def normed(self, events: Tensor) -> Tensor:
        """Normalise events as the block's attention reads them, [M, D]."""
        return torch.layer_norm(events, self._shape, *self._norm)

    def queries(self, normed: Tensor) -> Tensor:
        """Turn the normed latest event [D] into what its logits are products with, [H, D]."""
        return torch.addmv(self._offset, self._keys, normed).view(self._num_heads, -1)

    def written(self, read: Tensor, event: Tensor) -> Tensor:
        """Turn the normed events that each head read [H, D], and the latest event [D], to [D]."""
        state = torch.addmv(self._bias, self._output, read.flatten()).add_(event)
        inner = torch.layer_norm(state, self._shape, *self._inner_norm)
        inner = torch.addmv(self._first[0], self._first[1], inner)
        inner.addcmul_(inner, inner.erf())
        return torch.addmv(self._second[0], self._second[1], inner).add_(state)


def unit_vector(vector: Tensor, floor: float) -> Tensor:
    """Divide a vector by its length, as ``functional.normalize`` does, [D]."""
    return vector / max(math.sqrt(float(vector.dot(vector))), floor)


SHORTEST_WITH_BLOCKS = WINDOW + BLOCK
"""Events of the shortest history with a block before its window."""


class LatestSparse:
    """A block of sparse attention for the last of some events; its weights must not change.

    A mean of keys is a product with a mean of normed events: of ten thousand events only the means
    of their blocks are computed, and of a few hundred the logits.
    """

    def __init__(self, block: SparseBlock, inputs: Tensor) -> None:
        """Fold the weights, and norm what the block reads of every item.

        Args:
            inputs: Of every item, [N, D].
        """
        self._folded = LatestEvent.of(block)
        self._inputs, self._normed = inputs, self._folded.normed(inputs)
        self._gates = (block.gates.bias.detach(), block.gates.weight.detach())
        self._near = block.near.detach()[:, block.buckets].flip(1)  # the latest place last
        heads, width = block.num_heads, block.output.in_features // block.num_heads
        value_bias = block.query_key_value.bias.detach().chunk(3)[2].view(heads, width)
        output = block.output.weight.detach().view(-1, heads, width)
        # The folded bias counts the values' own once; the gated parts add it again.
        self._value_bias = torch.einsum("ohe,he->oh", output, value_bias)

    def means(self, rows: Tensor, before: Tensor | None) -> Tensor:
        """Return the mean normed event of each block before the window, [blocks, D].

        Args:
            rows: Of the history's items, oldest first, [M].
        """
        first = 0 if before is None else len(before)
        end = max(0, len(rows) - WINDOW) // BLOCK
        if before is not None and first == end:
            return before
        blocks = rows[first * BLOCK : end * BLOCK].view(-1, BLOCK)
        means = functional.embedding_bag(blocks, self._normed, mode="mean")
        return means if before is None else torch.cat([before, means])

    def __call__(self, rows: Tensor, means: Tensor) -> Tensor:
        """Read the events of these item rows, oldest first, at least one, [M] -> [D]."""
        event = self._inputs[rows[-1]]
        latest = self._normed.index_select(0, rows[-WINDOW:])
        queries = self._folded.queries(latest[-1])  # [H, D]
        logits = queries @ latest.T + self._near[:, -len(latest) :]
        read = logits.softmax(1) @ latest
        count = len(means)
        if not count:
            return self._folded.written(read, event)
        blocks = rows[: count * BLOCK].view(count, BLOCK)
        logits = queries @ means.T  # [H, blocks]
        best = logits.topk(min(CHOSEN, count), dim=1).indices.flatten()
        events = blocks.index_select(0, best).flatten()
        chosen = self._normed.index_select(0, events).view(len(queries), -1, read.shape[1])
        near = torch.bmm(chosen, queries[:, :, None]).softmax(1)  # [H, events, 1]
        gates = torch.addmv(*self._gates, latest[-1]).sigmoid_().view(2, -1, 1)
        read.addcmul_(gates[0], logits.softmax(1) @ means)
        read.addcmul_(gates[1], torch.bmm(near.transpose(1, 2), chosen)[:, 0])
        return self._folded.written(read, torch.addmv(event, self._value_bias, gates.sum(0)[:, 0]))
