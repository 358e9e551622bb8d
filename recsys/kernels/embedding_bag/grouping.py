"""Group a batch's ids by row on the GPU, for the update.

No step waits for the device: counts stay there, and launches read them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.launch import Arguments, Kernel, part_streams
from recsys.kernels.embedding_bag.layout import TableLayout

CHUNK = 64
"""Sorted ids that one program adds up; a run in more than two such chunks is cut there."""
SHORT_RUN = 8
"""Most ids of a run that is one of a tile of short runs."""
KEY_BLOCK, LIST_BLOCK = 1024, 1024
LIST_WARPS = 8
MOST_ROWS = 2**31 - 1
"""From here on keys have 64 bits."""
NUM_COUNTS = 64
"""Words for the lengths of the lists, each on a cache line of its own."""
MIN_OVERLAP_BYTES = 1 << 27
"""A lookup of fewer bytes ends before the host has launched the sort on a second stream."""


class Keys(NamedTuple):
    """Key and place of each id, [M] each, and cleared words for the lists' counts."""

    keys: Tensor
    places: Tensor
    words: Tensor


class Runs(NamedTuple):
    """Keys in order, [M], factors of the gradients in order, [M] or None, and the lists."""

    keys: Tensor
    scales: Tensor | None
    work: Tensor
    counts: Tensor
    stride: int


def blocks(count: int, block: int) -> int:
    """Count the blocks that cover ``count``."""
    return -(-count // block)


@lru_cache(maxsize=64)
def _key_kernel(block: int) -> Kernel:
    from recsys.kernels.embedding_bag.triton_kernel import _key_ids

    return Kernel(_key_ids, {"block": block})


@lru_cache(maxsize=64)
def _list_kernel(chunk: int, short: int, block: int) -> Kernel:
    from recsys.kernels.embedding_bag.triton_kernel import _list_work

    constants = {"chunk": chunk, "short": short, "block": block}
    return Kernel(_list_work, constants, num_warps=LIST_WARPS)


def key_ids(layout: TableLayout, feature_data: Tensor, ids: Tensor, offsets: Tensor) -> Keys:
    """Find key and place of each id; the key is R where the id is out of range or in no bag."""
    num_features = len(layout.feature_tables)
    num_bags, num_ids = offsets.shape[0] - 1, ids.shape[0]
    key_type = torch.int32 if layout.total_rows < MOST_ROWS else torch.int64
    keys = torch.empty(num_ids, dtype=key_type, device=ids.device)
    places = torch.empty(num_ids, dtype=torch.int32, device=ids.device)
    words = torch.empty(NUM_COUNTS, dtype=torch.int32, device=ids.device)
    numbers = (
        max(1, num_bags // num_features), num_features, num_bags, num_ids, NUM_COUNTS,
        layout.total_rows, (num_bags + 1).bit_length(),
    )  # fmt: skip
    arguments = Arguments((ids, offsets, feature_data, keys, places, words), numbers)
    _key_kernel(KEY_BLOCK).launch(blocks(num_ids, KEY_BLOCK), arguments)
    return Keys(keys, places, words)


def group(
    layout: TableLayout, feature_data: Tensor, batch: tuple[Tensor, Tensor, Tensor | None]
) -> Runs:
    """Sort ids by key, equal keys in their order, and list what there is to do."""
    ids, offsets, sample_weights = batch
    num_ids = ids.shape[0]
    keys, places, words = key_ids(layout, feature_data, ids, offsets)
    keys, order = torch.sort(keys, stable=True)
    stride = blocks(num_ids, 16) * 16
    # Allocated after the sort, in the memory that it gave back.
    work = torch.empty(3 * stride + stride // CHUNK + 16, dtype=torch.int32, device=ids.device)
    scales = None if sample_weights is None else torch.empty(num_ids, device=ids.device)
    arguments = Arguments(
        (keys, order, places, sample_weights, scales, work, words),
        (num_ids, stride, layout.total_rows),
    )
    kernel = _list_kernel(CHUNK, SHORT_RUN, LIST_BLOCK)
    kernel.launch(blocks(num_ids, LIST_BLOCK), arguments)
    return Runs(keys, scales, work, words, stride)


def group_during_lookup(
    layout: TableLayout,
    feature_data: Tensor,
    batch: tuple[Tensor, Tensor, Tensor | None],
    lookup: Callable[[], Tensor],
    num_bytes: int,
) -> tuple[Tensor, Runs]:
    """Look up ``num_bytes``, and group meanwhile; what comes after waits for both.

    The lookup waits for memory and the sort for its own steps, so the two fit together. Streams
    meet again here, so that no tensor is freed while the other stream uses it.
    """
    ids = batch[0]
    streams = part_streams(ids.device) if num_bytes >= MIN_OVERLAP_BYTES else None
    if streams is None:
        return lookup(), group(layout, feature_data, batch)
    out = lookup()
    streams.switch()
    try:
        runs = group(layout, feature_data, batch)
    finally:
        streams.resume()
    streams.join()
    return out, runs
