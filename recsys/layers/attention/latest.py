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

from recsys.kernels.one_query.op import EncoderOfOne
from recsys.layers.attention.softmax import AttentionBlock


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
    def of(cls, block: AttentionBlock) -> LatestEvent:
        """Fold a block of softmax attention."""
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
