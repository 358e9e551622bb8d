"""The gated delta rule, one event after the other: the truth the other forms are held against.

Yang et al. 2024 (Gated Delta Networks, arXiv:2412.06464), with S the state of a head, [D, V]:

    S' = exp(decay_t) S
    S  = S' + beta_t k_t (v_t - S'^T k_t)^T
    o_t = S^T q_t / sqrt(D)

Axes: B sequences, M events of all sequences, H heads, D width of queries and keys, V of values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class DeltaInputs(NamedTuple):
    """What the rule reads of each event."""

    query: Tensor
    """[M, H, D]"""
    key: Tensor
    """[M, H, D], of length 1."""
    value: Tensor
    """[M, H, V]"""
    decay: Tensor
    """[M, H] log of the share of the state that is kept, at most 0."""
    beta: Tensor
    """[M, H] in [0, 1], how much of the value under a key is replaced."""


def one_step(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Read one event of each sequence, M = B.

    Args:
        inputs: Of these events.
        state: [B, H, D, V].

    Returns:
        What is read, [B, H, V], and the next state.
    """
    query, key, value, decay, beta = inputs
    state = state * decay.exp()[:, :, None, None]
    known = torch.einsum("bhdv,bhd->bhv", state, key)
    update = beta[:, :, None] * (value - known)
    state = state + key[:, :, :, None] * update[:, :, None, :]
    read = torch.einsum("bhdv,bhd->bhv", state, query) * query.shape[2] ** -0.5
    return read, state


def recurrent(
    inputs: DeltaInputs, offsets: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Read whole sequences event by event.

    Args:
        inputs: Of all events.
        offsets: [B + 1], where each sequence begins in M.
        state: Before the first events, [B, H, D, V]; None is zeros.

    Returns:
        What is read, [M, H, V], and the states after the last events.
    """
    query, value = inputs.query, inputs.value
    if state is None:
        shape = (len(offsets) - 1, query.shape[1], query.shape[2], value.shape[2])
        state = query.new_zeros(shape)
    reads, states = [], []
    bounds = offsets.tolist()
    for number, (first, end) in enumerate(pairwise(bounds)):
        own = state[number : number + 1]
        for event in range(first, end):
            read, own = one_step(DeltaInputs(*(part[event : event + 1] for part in inputs)), own)
            reads.append(read)
        states.append(own)
    return torch.cat(reads) if reads else torch.zeros_like(value), torch.cat(states)
