"""Output of a block of sparse attention for one history's latest event, weights folded.

Keys and values are products with the normed events (``latest``), and a mean of keys is a product
with a mean of normed events. So of ten thousand events only the means of their blocks are computed,
and of a few hundred the logits.

Axes: N item rows, M events of the history, D width, H heads, E = D / H.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recsys.layers.attention import sparse
from recsys.layers.attention.latest import LatestEvent
from recsys.layers.attention.sparse import SparseBlock

SHORTEST_WITH_BLOCKS = sparse.WINDOW + sparse.BLOCK
"""Events of the shortest history with a block before its window."""


class LatestSparse:
    """A block for the last of some events; its weights must not change afterwards."""

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
        end = max(0, len(rows) - sparse.WINDOW) // sparse.BLOCK
        if before is not None and first == end:
            return before
        blocks = rows[first * sparse.BLOCK : end * sparse.BLOCK].view(-1, sparse.BLOCK)
        means = functional.embedding_bag(blocks, self._normed, mode="mean")
        return means if before is None else torch.cat([before, means])

    def __call__(self, rows: Tensor, means: Tensor) -> Tensor:
        """Read the events of these item rows, oldest first, at least one, [M] -> [D]."""
        event = self._inputs[rows[-1]]
        latest = self._normed.index_select(0, rows[-sparse.WINDOW :])
        queries = self._folded.queries(latest[-1])  # [H, D]
        logits = queries @ latest.T + self._near[:, -len(latest) :]
        read = logits.softmax(1) @ latest
        count = len(means)
        if not count:
            return self._folded.written(read, event)
        blocks = rows[: count * sparse.BLOCK].view(count, sparse.BLOCK)
        logits = queries @ means.T  # [H, blocks]
        best = logits.topk(min(sparse.CHOSEN, count), dim=1).indices.flatten()
        events = blocks.index_select(0, best).flatten()
        chosen = self._normed.index_select(0, events).view(len(queries), -1, read.shape[1])
        near = torch.bmm(chosen, queries[:, :, None]).softmax(1)  # [H, events, 1]
        gates = torch.addmv(*self._gates, latest[-1]).sigmoid_().view(2, -1, 1)
        read.addcmul_(gates[0], logits.softmax(1) @ means)
        read.addcmul_(gates[1], torch.bmm(near.transpose(1, 2), chosen)[:, 0])
        return self._folded.written(read, torch.addmv(event, self._value_bias, gates.sum(0)[:, 0]))
