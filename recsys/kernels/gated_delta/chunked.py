"""The gated delta rule in chunks: products of matrices within a chunk, a loop over chunks.

Within a chunk the updates of all events solve one triangular system (the WY representation:
Bischof and Van Loan 1987; Yang et al. 2024, arXiv:2406.06484 and, with decay, arXiv:2412.06464).
With G the running sum of the decays and S the state before the chunk:

    A = tril(beta_i (k_i . k_j) exp(G_i - G_j), -1)
    U, W = (I + A)^-1 (beta V), (I + A)^-1 (beta exp(G) K)
    N = U - W S
    O = (exp(G) Q S + tril((q_i . k_j) exp(G_i - G_j)) N) / sqrt(D)
    S = exp(G_C) S + (exp(G_C - G) K)^T N

Axes: B sequences, H heads, L chunks, C events of a chunk, D width of keys, V width of values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recsys.kernels.gated_delta.reference import DeltaInputs

CHUNK = 64


def chunked(
    inputs: DeltaInputs, state: Tensor | None = None, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Read sequences of one length; events without effect have ``beta`` and ``decay`` 0.

    Args:
        inputs: With two axes in place of M, as [B, T, H, ...].
        state: Before the first event, [B, H, D, V]; None is zeros.
        chunk: Events of a chunk.

    Returns:
        What is read, [B, T, H, V], and the states after the last events, [B, H, D, V].
    """
    # In bfloat16 the state would lose what each of thousands of events adds.
    with torch.autocast(inputs.query.device.type, enabled=False):
        return _chunked(inputs, state, min(chunk, max(1, inputs.query.shape[1])))


def _chunked(inputs: DeltaInputs, state: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    length = inputs.query.shape[1]
    query, key, value = (_in_chunks(part, chunk) for part in inputs[:3])  # [B, H, L, C, D or V]
    decay, beta = (_in_chunks(part[..., None], chunk)[..., 0] for part in inputs[3:])
    total = decay.cumsum(3)  # [B, H, L, C]
    between = total[..., :, None] - total[..., None, :]  # [B, H, L, C, C]
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).tril()
    # exp above the diagonal would overflow, and its gradient be NaN.
    between = between.masked_fill(~below, -torch.inf).exp()
    weighted = key * beta[..., None]
    system = (weighted @ key.mT * between).tril(-1)
    sides = torch.cat([value * beta[..., None], weighted * total.exp()[..., None]], dim=4)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    updates, reads = solved.split([value.shape[4], key.shape[4]], dim=4)
    scores = query @ key.mT * between
    from_state = query * total.exp()[..., None]
    kept = total[..., -1:].exp()  # [B, H, L, 1]
    to_state = (key * (total[..., -1:] - total).exp()[..., None]).mT  # [B, H, L, D, C]
    if state is None:
        shape = (*key.shape[:2], key.shape[4], value.shape[4])
        state = torch.zeros(shape, dtype=query.dtype, device=query.device)
    outputs = []
    for place in range(query.shape[2]):
        update = updates[:, :, place] - reads[:, :, place] @ state
        outputs.append(from_state[:, :, place] @ state + scores[:, :, place] @ update)
        state = kept[:, :, place, :, None] * state + to_state[:, :, place] @ update
    out = torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length]  # [B, H, T, V]
    return out.transpose(1, 2) * key.shape[4] ** -0.5, state


def _in_chunks(part: Tensor, chunk: int) -> Tensor:
    """Cut the events, zeros behind the last, [B, T, H, X] -> [B, H, L, C, X]."""
    beyond = -part.shape[1] % chunk
    if beyond:
        part = functional.pad(part, (0, 0, 0, 0, 0, beyond))
    return part.reshape(len(part), -1, chunk, *part.shape[2:]).permute(0, 3, 1, 2, 4)
