"""The gated delta rule over sequences of any lengths: our kernels on CUDA, else chunks in torch.

Gradients are those of the chunked form in torch: the kernels run where none is needed, as in
evaluation and serving.

Axes: as in ``reference``; T is the length of the longest sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.kernels.choice import runs
from recsys.kernels.gated_delta.chunked import chunked
from recsys.kernels.gated_delta.reference import DeltaInputs, one_step

MAX_WIDTH = 128
"""Of a head in the kernels; wider ones run in torch."""


def gated_delta(
    inputs: DeltaInputs, offsets: Tensor, max_length: int, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Read each sequence from its first event to its last.

    Args:
        inputs: Of all events; heads of at most MAX_WIDTH run in the kernels.
        offsets: [B + 1], where each sequence begins in M.
        max_length: No sequence is longer.
        state: Before the first events, [B, H, D, V]; None is zeros.

    Returns:
        What is read, [M, H, V], and the states after the last events, [B, H, D, V].

    Raises:
        ValueError: Shapes that do not fit.
    """
    _check(inputs, offsets, state)
    query, value = inputs.query, inputs.value
    gradients = torch.is_grad_enabled() and any(part.requires_grad for part in inputs)
    narrow = max(query.shape[2], value.shape[2]) <= MAX_WIDTH
    if narrow and not gradients and runs("gated_delta", query):
        from recsys.kernels.gated_delta.triton_kernel import forward

        return forward(inputs, offsets, max_length, state)
    num_sequences = len(offsets) - 1
    if num_sequences == 1 and len(query) == 1 and state is not None:
        return one_step(inputs, state)
    if num_sequences == 1 and len(query) > 0:
        read, after = chunked(DeltaInputs(*(part[None] for part in inputs)), state)
        return read[0], after
    lengths = offsets.diff()
    if not (query.is_cuda and torch.cuda.is_current_stream_capturing()):
        # Waiting for the device costs less than chunks of padding.
        max_length = int(lengths.max()) if num_sequences else 0
    segments = torch.repeat_interleave(
        torch.arange(num_sequences, device=offsets.device), lengths, output_size=len(query)
    )
    places = torch.arange(len(query), device=offsets.device) - offsets[segments]

    def padded(part: Tensor) -> Tensor:
        # Zeros behind a sequence: without beta and decay they leave its state as it is.
        out = part.new_zeros(num_sequences, max(1, max_length), *part.shape[1:])
        return out.index_put((segments, places), part)

    read, after = chunked(DeltaInputs(*(padded(part) for part in inputs)), state)
    return read[segments, places], after


def _check(inputs: DeltaInputs, offsets: Tensor, state: Tensor | None) -> None:
    query, key, value, decay, beta = inputs
    if query.ndim != 3 or key.shape != query.shape or value.shape[:2] != query.shape[:2]:
        raise ValueError(
            "queries and keys must be [M, H, D] and values [M, H, V], got "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if not decay.shape == beta.shape == query.shape[:2]:
        raise ValueError(
            f"decay and beta must be [M, H] = {tuple(query.shape[:2])}, got "
            f"{tuple(decay.shape)} and {tuple(beta.shape)}"
        )
    wanted = (len(offsets) - 1, query.shape[1], query.shape[2], value.shape[2])
    if state is not None and tuple(state.shape) != wanted:
        raise ValueError(f"the state must be [B, H, D, V] = {wanted}, got {tuple(state.shape)}")
