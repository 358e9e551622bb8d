"""HSTU attention over jagged sequences: SiLU weights, causal, with relative bias.

    out[i] = sum over allowed j of silu(q[i] . k[j] / sqrt(D) + bias[i, j]) / max_length * v[j]

Zhai et al. 2024, "Actions Speak Louder than Words". On a GPU the Triton kernels run, elsewhere the
reference; both have gradients for q, k, v and the bias weights. The backward adds in a fixed
order, so equal inputs give equal bits.

Axes: M events of all sequences, B sequences, H heads, D width of queries and keys, V of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from recsys.kernels.choice import runs


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


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 256


def hstu_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_length: int,
    *,
    position_bias: PositionBias | None = None,
    time_bias: TimeBias | None = None,
) -> Tensor:
    """Attend within each sequence.

    In bf16 and fp16 the GPU's SiLU has a relative error of about 2^-11, below what those types
    round to; in float32 it is exact.

    Args:
        q: Queries [M, H, D]; heads and widths contiguous, events at any stride.
        k: Keys [M, H, D].
        v: Values [M, H, V].
        offsets: [B + 1] int64 or int32, where each sequence begins in M.
        [M, H, V], of the type of q.
    """
    _check(q, k, v, offsets, max_length)
    _check_biases(q, max_length, position_bias, time_bias)
    if not runs("hstu_attention", q):
        return reference_attention(q, k, v, offsets, max_length, position_bias, time_bias)
    position = None if position_bias is None else (position_bias.weights, position_bias.buckets)
    time = (
        None
        if time_bias is None
        else (time_bias.weights, time_bias.query_times, time_bias.key_times)
    )
    bias = (*(position or (None, None)), *(time or (None, None, None)))
    apply: Any = _Attention.apply
    return cast(Tensor, apply(q, k, v, offsets, max_length, *bias))


class _Attention(torch.autograd.Function):
    """The kernels with their gradients."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        from recsys.kernels.hstu_attention.triton_kernel import forward, lay_out_bias

        q, k, v, offsets, max_length, *weights = arguments
        position = None if weights[0] is None else (weights[0], weights[1])
        time = None if weights[2] is None else (weights[2], weights[3], weights[4])
        bias = lay_out_bias(q, offsets, max_length, position, time)
        ctx.save_for_backward(q, k, v, offsets, *bias[: len(bias) - 2])
        ctx.max_length, ctx.counts = max_length, bias[-2:]
        return forward(q, k, v, offsets, max_length, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        from recsys.kernels.hstu_attention.triton_backward import backward
        from recsys.kernels.hstu_attention.triton_kernel import Bias

        q, k, v, offsets, *saved = ctx.saved_tensors
        bias, do = Bias(*saved, *ctx.counts), gradients[0].contiguous()
        dq, dk, dv, *sums = backward(q, k, v, do, offsets, ctx.max_length, bias)
        d_position, d_time = (
            one if ctx.needs_input_grad[place] else None
            for one, place in zip(sums, (5, 7), strict=True)
        )
        return dq, dk, dv, None, None, d_position, None, d_time, None, None


def _check(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int) -> None:
    if q.ndim != 3 or k.shape != q.shape or v.ndim != 3 or v.shape[:2] != q.shape[:2]:
        raise ValueError(
            "q and k must be [M, H, D] and v [M, H, V], got "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        raise ValueError(
            f"q, k and v must be of one type of {[str(one) for one in DTYPES]}, got "
            f"{q.dtype}, {k.dtype} and {v.dtype}"
        )
    if max(q.shape[2], v.shape[2]) > MAX_WIDTH:
        raise ValueError(
            f"heads may be {MAX_WIDTH} wide, got {q.shape[2]} and {v.shape[2]}; use more heads"
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
            raise ValueError(
                f"{name} must have contiguous heads, got strides {tensor.stride()}; call "
                ".contiguous()"
            )
    if offsets.ndim != 1 or len(offsets) < 1 or offsets.is_floating_point():
        raise ValueError(f"offsets must be [B + 1] integers, got {offsets.dtype} {offsets.shape}")
    if max_length < 1:
        raise ValueError(f"max_length must be >= 1, got {max_length}")


def _check_biases(
    q: Tensor, max_length: int, position: PositionBias | None, time: TimeBias | None
) -> None:
    heads = q.shape[1]
    if position is not None and (
        position.weights.shape[0] != heads or len(position.buckets) < max_length
    ):
        raise ValueError(
            f"the position bias needs weights [{heads}, buckets] and a bucket for each of "
            f"{max_length} distances, got {tuple(position.weights.shape)} and "
            f"{len(position.buckets)}"
        )
    if time is not None and (
        time.weights.shape[0] != heads or not len(time.query_times) == len(time.key_times) == len(q)
    ):
        raise ValueError(
            f"the time bias needs weights [{heads}, buckets] and two times for each of {len(q)} "
            f"events, got {tuple(time.weights.shape)}, {len(time.query_times)} and "
            f"{len(time.key_times)}"
        )
