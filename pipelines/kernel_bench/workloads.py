"""The cases of ``recsys kernels``, of real size.

Axes: D width, Q queries, N item rows, k list length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch

from pipelines.kernel_bench.bags import prepare_bags
from pipelines.kernel_bench.layers import prepare_attention, prepare_routed_experts
from pipelines.kernel_bench.workload import NUM_SETS, Prepared, Workload, distance
from recsys.kernels.topk_search.op import fused_top_k, mask_words
from recsys.kernels.topk_search.reference import reference_top_k

Sizes = tuple[int, ...]


def prepare_search(sizes: Sizes, device: torch.device) -> Prepared:
    """Search the 100 best items of every query, sizes N, Q, D; bf16 on a GPU."""
    num_items, num_queries, dim = sizes
    generator = torch.Generator(device).manual_seed(2)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    items = torch.randn(num_items, dim, generator=generator, device=device).to(dtype)
    query_sets = [
        torch.randn(num_queries, dim, generator=generator, device=device).to(dtype)
        for _ in range(NUM_SETS)
    ]
    words = mask_words(None, num_items, device)

    def error() -> float:
        few = query_sets[0][:32]
        return distance(
            fused_top_k(few, items, 100, words).scores,
            reference_top_k(few, items, 100, words).scores,
        )

    return Prepared(
        ours=[partial(fused_top_k, one, items, 100, words) for one in query_sets],
        error=error,
        tolerance=1e-5,
    )


class Family(NamedTuple):
    """The cases of one kernel: each of the sizes with each of the variants."""

    prepare: Callable[..., Prepared]
    name: str
    """Format of the sizes."""
    variants: Mapping[str, Mapping[str, bool]]
    sizes: list[Sizes]


DIRECTIONS = {": forward": {"backward": False}, ": forward + backward": {"backward": True}}
FAMILIES = {
    "embedding_bag": Family(
        prepare_bags,
        "{} x {:,} x {}, batch {}, {} ids",
        DIRECTIONS,
        [(26, 1_000_000, 128, 16_384, 1), (32, 1_000_000, 128, 4_096, 20),
         (1, 10_000_000, 64, 4_096, 200)],
    ),
    "topk_search": Family(
        prepare_search,
        "{1} queries, {0:,} x {2}, k 100",
        {"": {}},
        [(1_000_000, 512, 64)],
    ),
    "hstu_attention": Family(
        prepare_attention,
        "{} x {}, {} heads of {}",
        DIRECTIONS,
        [(64, 1_024, 4, 64), (32, 2_048, 4, 128)],
    ),
    "routed_experts": Family(
        prepare_routed_experts,
        "{:,} x {}, within {}",
        DIRECTIONS,
        [(16_384, 512, 1_024), (16_384, 512, 2_048)],
    ),
}  # fmt: skip


def workloads() -> list[Workload]:
    """List the cases."""
    return [
        Workload(
            kernel=kernel,
            name=family.name.format(*sizes) + variant,
            prepare=partial(family.prepare, sizes, **settings),
        )
        for kernel, family in FAMILIES.items()
        for sizes in family.sizes
        for variant, settings in family.variants.items()
    ]
