"""The truth beside the kernels: one sequence at a time, in plain PyTorch; also the path of the CPU.

HSTU: Zhai et al. 2024, "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers
for Generative Recommendations".

Axes: M events of all sequences, H heads, D width of a head, L events of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PositionBias:
    """A learned number for each head and bucket of distance i - j."""

    weights: Tensor
    """[H, number of buckets] float32."""
    buckets: Tensor
    """[max_length] int32, ascending: the bucket of each distance."""


@dataclass(frozen=True, kw_only=True)
class TimeBias:
    """A learned number for each head and bucket of elapsed time, log2(1 + seconds)."""

    weights: Tensor
    """[H, number of buckets] float32; longer times fall into the last bucket."""
    query_times: Tensor
    """[M] int64 seconds: when event i asks, for example the time of the event after it."""
    key_times: Tensor
    """[M] int64 seconds."""


def distance_buckets(max_length: int, num_buckets: int) -> Tensor:
    """Return each distance a bucket: the nearer half one by one, the rest on a log scale.

    The buckets of Raffel et al. 2020 (T5).

    Returns:
        [max_length] int32, ascending, in [0, num_buckets).
    """
    exact = num_buckets // 2
    distance = torch.arange(max_length, dtype=torch.float64)
    span = torch.log(torch.tensor(max(max_length, exact + 1) / max(exact, 1), dtype=torch.float64))
    grown = exact + torch.log(distance.clamp_min(1) / max(exact, 1)) / span * (num_buckets - exact)
    chosen = torch.where(distance < exact, distance, grown.floor())
    return chosen.clamp(0, num_buckets - 1).to(torch.int32)


def time_buckets(elapsed: Tensor, num_buckets: int) -> Tensor:
    """Return elapsed seconds a bucket, floor(log2(1 + seconds)); negative ones count as 0."""
    # The exponent of a 64-bit float; a logarithm rounds up just below a power of two.
    exponent = torch.frexp(elapsed.clamp_min(0).double() + 1.0).exponent.long() - 1
    return exponent.clamp_max(num_buckets - 1)


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_length: int,
    position_bias: PositionBias | None = None,
    time_bias: TimeBias | None = None,
) -> Tensor:
    """Attend within each sequence; arguments and reply as `hstu_attention`."""
    out = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
    scale = q.shape[2] ** -0.5
    parts = []
    for sequence in range(len(offsets) - 1):
        begin, end = int(offsets[sequence]), int(offsets[sequence + 1])
        length = end - begin
        scores = torch.einsum("ihd,jhd->hij", q[begin:end], k[begin:end]) * scale
        row = torch.arange(length, device=q.device)
        if position_bias is not None:
            distance = (row[:, None] - row[None, :]).clamp_min(0)
            bucket = position_bias.buckets.to(q.device)[distance].long()
            scores = scores + position_bias.weights[:, bucket]
        if time_bias is not None:
            query_times, key_times = (
                time_bias.query_times[begin:end],
                time_bias.key_times[begin:end],
            )
            elapsed = query_times[:, None] - key_times[None, :]
            bucket = time_buckets(elapsed, time_bias.weights.shape[1])
            scores = scores + time_bias.weights[:, bucket]
        weights = torch.nn.functional.silu(scores) / max_length
        weights = weights.masked_fill(row[:, None] < row[None, :], 0.0)
        parts.append(torch.einsum("hij,jhd->ihd", weights.to(v.dtype), v[begin:end]))
    return torch.cat(parts).to(q.dtype) if parts else out
