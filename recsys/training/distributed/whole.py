"""Whole tensors from the shards of ranks, and shards from whole tensors.

Axes: N rows of a table, D width (none for one number a row).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK_BYTES = 1 << 26
"""Sent at a time, so that a table needs no second copy on its way."""
Place = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a table and the rank that holds it; every rank knows all of them."""

    offsets: Place
    sizes: Place
    owner: int

    def of(self, whole: Tensor) -> Tensor:
        """Cut the part out of a whole tensor; of one number a row, by rows alone."""
        ends = zip(self.offsets, self.sizes, strict=True)
        return whole[tuple(slice(one, one + size) for one, size in ends)[: whole.dim()]]


def shards_of(sharded: Any) -> list[Shard]:
    """List all parts of a ShardedTensor, in the order in which they are gathered."""
    return [
        Shard(
            offsets=tuple(meta.shard_offsets),
            sizes=tuple(meta.shard_sizes),
            owner=meta.placement.rank(),
        )
        for meta in sharded.metadata().shards_metadata
    ]


def local_parts(sharded: Any) -> dict[Place, Tensor]:
    """Return this rank's parts of a ShardedTensor by the offsets of its first axes."""
    return {tuple(one.metadata.shard_offsets): one.tensor for one in sharded.local_shards()}


def gathered_parts(
    shards: Sequence[Shard], mine: Mapping[Place, Tensor], shape: Sequence[int]
) -> Tensor | None:
    """Gather a table on the first rank's host, [N, D] or [N], float32; None on the others.

    Args:
        shards: All parts, the same on every rank.
        mine: This rank's parts by their offsets.
        shape: Of the whole.
    """
    rank = dist.get_rank()
    whole = torch.empty(tuple(shape)) if rank == 0 else None
    for shard in shards:
        if shard.owner == rank == 0:
            assert whole is not None
            shard.of(whole).copy_(_part(mine, shard, whole.dim()))
        elif shard.owner == rank:
            for chunk in _chunks(_part(mine, shard, len(shape))):
                dist.send(chunk.detach().float().cpu().contiguous(), dst=0)
        elif whole is not None:
            for chunk in _chunks(shard.of(whole)):
                received = torch.empty(chunk.shape)
                dist.recv(received, src=shard.owner)
                chunk.copy_(received)
    return whole


def copy_parts(shards: Sequence[Shard], mine: Mapping[Place, Tensor], whole: Tensor) -> None:
    """Copy what this rank holds out of a whole tensor, [N, D] or [N]."""
    for shard in shards:
        if shard.owner == dist.get_rank():
            part = _part(mine, shard, whole.dim())
            part.copy_(shard.of(whole).view_as(part))


def _part(mine: Mapping[Place, Tensor], shard: Shard, num_axes: int) -> Tensor:
    part = mine[shard.offsets] if shard.offsets in mine else mine[shard.offsets[:num_axes]]
    return part.view(part.shape[0]) if num_axes == 1 else part


def _chunks(part: Tensor) -> list[Tensor]:
    row_bytes = max(1, part[:1].numel() * part.element_size())
    return list(torch.split(part, max(1, CHUNK_BYTES // row_bytes)))


def broadcast_whole(value: Tensor) -> None:
    """Give every rank the first one's tensor, on the host, part by part."""
    flat = value.detach().view(-1)
    if len(flat):
        for part in torch.split(flat, max(1, CHUNK_BYTES // flat.element_size())):
            dist.broadcast(part, src=0)
