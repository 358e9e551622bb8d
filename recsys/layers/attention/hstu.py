"""The HSTU block: SiLU attention without softmax, gated by the event itself.

Zhai et al. 2024, arXiv:2402.17152:

    U, V, Q, K = silu(linear(norm(x)))
    y = x + linear(norm(attention(Q, K, V)) * U)

Axes: M events of all sequences, D width, H heads.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from recsys.kernels.hstu_attention.op import PositionBias, TimeBias, hstu_attention
from recsys.layers.attention.softmax import BlockConfig, RelativeBias, SequenceLayout


class HstuBlock(nn.Module):
    """One HSTU block; on CUDA the attention runs in our kernels, elsewhere in their reference."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.heads = (config.num_heads, config.dim // config.num_heads)
        self.max_length = config.max_length
        self.input_norm = nn.LayerNorm(config.dim)
        self.projection = nn.Linear(config.dim, 4 * config.dim)
        self.bias = RelativeBias(config)
        self.read_norm = nn.LayerNorm(config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, events: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend to each event itself and those before it, [M, D] -> [M, D]."""
        projected = functional.silu(self.projection(self.input_norm(events)))  # [M, 4 D]
        gate, value, query, key = projected.chunk(4, dim=1)
        query, key, value = (
            part.contiguous().view(len(part), *self.heads) for part in (query, key, value)
        )
        position, time = self._biases(layout)
        read = hstu_attention(
            query,
            key,
            value,
            layout.offsets,
            self.max_length,
            position_bias=position,
            time_bias=time,
        ).flatten(1)  # [M, D]
        read = self.dropout(self.read_norm(read) * gate)
        out: Tensor = events + self.output(read)
        return out

    def _biases(self, layout: SequenceLayout) -> tuple[PositionBias | None, TimeBias | None]:
        bias = self.bias
        position = time = None
        if bias.positions is not None:
            position = PositionBias(weights=bias.positions, buckets=bias.buckets)
        if bias.times is not None and layout.times is not None:
            time = TimeBias(weights=bias.times, query_times=layout.times, key_times=layout.times)
        return position, time
