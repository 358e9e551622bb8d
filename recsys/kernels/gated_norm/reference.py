"""The truth beside the kernel: layer norm, gate and dropout in plain PyTorch; the CPU's path too.

    y = keep * (layer_norm(x) * weight + bias) * u / (1 - dropout)

The norm of an HSTU layer's attention, gated by u: Zhai et al. 2024, "Actions Speak Louder than
Words".

Axes: N rows, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

DROPOUT_STEPS = 1 << 16
"""Dropout is rounded to a multiple of one over this, and the kept numbers grow to match."""
_WORD = 0xFFFFFFFF


def dropout_threshold(dropout: float) -> int:
    """Of the 65,536 values that a number's 16 random bits can have, how many drop it."""
    return min(round(dropout * DROPOUT_STEPS), DROPOUT_STEPS - 1)


def kept_scale(dropout: float) -> float:
    """Factor of the kept numbers, which leaves the mean as it was."""
    return DROPOUT_STEPS / (DROPOUT_STEPS - dropout_threshold(dropout))


def _philox(words: list[Tensor], seed: int) -> list[Tensor]:
    """Philox 4x32-10 (Salmon et al. 2011): four counter words to four random words, in int64."""
    keys = [seed & _WORD, seed >> 32 & _WORD]
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            (second >> 32 & _WORD) ^ words[1] ^ keys[0],
            second & _WORD,
            (first >> 32 & _WORD) ^ words[3] ^ keys[1],
            first & _WORD,
        ]
        keys = [keys[0] + 0x9E3779B9 & _WORD, keys[1] + 0xBB67AE85 & _WORD]
    return words


def dropout_mask(
    num_rows: int, width: int, seed: int, dropout: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Decide which numbers stay, [N, D] bool: a function of seed, row and column alone.

    Eight neighbouring columns share one call of the generator, 16 bits each.
    """
    groups = -(-width // 8)
    row = torch.arange(num_rows, device=device)[:, None].expand(num_rows, groups)
    group = torch.arange(groups, device=device)[None, :].expand(num_rows, groups)
    words = _philox([group, row & _WORD, row >> 32, torch.zeros_like(row)], seed)
    halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    bits = torch.stack(halves, dim=2).flatten(1)[:, :width]
    return bits >= dropout_threshold(dropout)


def _normed(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Rows of mean 0 and deviation 1, and one over their deviation, [N, 1]."""
    centred = x - x.mean(dim=1, keepdim=True)
    rstd = (centred.square().mean(dim=1, keepdim=True) + epsilon).rsqrt()
    return centred * rstd, rstd


def _kept(like: Tensor, seed: int, dropout: float) -> Tensor:
    """Factor of each number, [N, D]: 0, or what makes up for the dropped ones."""
    if not dropout:
        return torch.ones_like(like)
    mask = dropout_mask(like.shape[0], like.shape[1], seed, dropout, like.device)
    return mask.to(like.dtype) * kept_scale(dropout)


def forward(
    x: Tensor, u: Tensor, weight: Tensor, bias: Tensor, seed: int, dropout: float, epsilon: float
) -> Tensor:
    """Norm, gate and drop, [N, D]; 16-bit types are computed in float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    normed, _ = _normed(x.to(wide), epsilon)
    out = (normed * weight.to(wide) + bias.to(wide)) * u.to(wide)
    return (out * _kept(out, seed, dropout)).to(x.dtype)


def backward(
    grad: Tensor,
    x: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: int,
    dropout: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, u, weight and bias."""
    wide = torch.promote_types(x.dtype, torch.float32)
    normed, rstd = _normed(x.to(wide), epsilon)
    grad = grad.to(wide) * _kept(normed, seed, dropout)
    d_u = grad * (normed * weight.to(wide) + bias.to(wide))
    d_out = grad * u.to(wide)
    d_normed = d_out * weight.to(wide)
    mean = d_normed.mean(dim=1, keepdim=True)
    along = (d_normed * normed).mean(dim=1, keepdim=True)
    d_x = rstd * (d_normed - mean - normed * along)
    d_weight, d_bias = (d_out * normed).sum(0), d_out.sum(0)
    return (
        d_x.to(x.dtype),
        d_u.to(u.dtype),
        d_weight.to(weight.dtype),
        d_bias.to(bias.dtype),
    )
