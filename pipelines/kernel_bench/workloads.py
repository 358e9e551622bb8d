"""What ``recsys kernels`` runs: of real size on a GPU, small on a CPU.

Axes: D width, Q queries, N item rows, k list length.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pipelines.kernel_bench.bags import Bags, prepare_bags
from pipelines.kernel_bench.layers import (
    prepare_attention,
    prepare_gated_norm,
    prepare_lora,
    prepare_routed_experts,
)
from pipelines.kernel_bench.workload import (
    NUM_SETS,
    Prepared,
    Workload,
    direction,
    distance,
)
from recsys.kernels.topk_search.op import fused_top_k, mask_words
from recsys.kernels.topk_search.reference import reference_top_k


def prepare_search(num_items: int, num_queries: int, dim: int, device: torch.device) -> Prepared:
    """Search the 100 best items of every query; bf16 on a GPU."""
    generator = torch.Generator(device).manual_seed(2)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    items = torch.randn(num_items, dim, generator=generator, device=device).to(dtype)
    asked = [
        torch.randn(num_queries, dim, generator=generator, device=device).to(dtype)
        for _ in range(NUM_SETS)
    ]
    words = mask_words(None, num_items, device)

    def by_torch(queries: Tensor) -> object:
        return (queries @ items.T).topk(100)

    def error() -> float:
        few = asked[0][:32]
        return distance(
            fused_top_k(few, items, 100, words).scores,
            reference_top_k(few, items, 100, words).scores,
        )

    return Prepared(
        ours=[partial(fused_top_k, one, items, 100, words) for one in asked],
        peers={"torch": [partial(by_torch, one) for one in asked]},
        error=error,
        tolerance=1e-5,
        num_bytes=items.numel() * items.element_size() + num_queries * (4 * dim + 12 * 100),
    )


def workloads(device: torch.device) -> list[Workload]:
    """List the cases: of real size on a GPU, small ones on a CPU."""
    cuda = device.type == "cuda"
    bags = (
        [
            Bags(26, 1_000_000, 128, 16_384, 1),
            Bags(32, 1_000_000, 128, 4_096, 20),
            Bags(1, 10_000_000, 64, 4_096, 200),
        ]
        if cuda
        else [Bags(2, 10_000, 64, 256, 5)]
    )
    searches = [(1_000_000, 512, 64)] if cuda else [(20_000, 32, 64)]
    attentions = [(64, 1_024, 4, 64), (32, 2_048, 4, 128)] if cuda else [(4, 64, 2, 32)]
    found = [
        Workload(
            kernel="embedding_bag",
            name=f"{case}: {'forward + fused backward' if backward else 'forward'}",
            prepare=partial(prepare_bags, case, backward=backward),
        )
        for case in bags
        for backward in (False, True)
    ]
    found += [
        Workload(
            kernel="topk_search",
            name=f"{queries} queries, {items:,} x {dim}, k 100",
            prepare=partial(prepare_search, items, queries, dim),
        )
        for items, queries, dim in searches
    ]
    found += [
        Workload(
            kernel="hstu_attention",
            name=f"{sizes[0]} x {sizes[1]}, {sizes[2]} heads of {sizes[3]}: {direction(backward)}",
            prepare=partial(prepare_attention, sizes, backward=backward),
        )
        for sizes in attentions
        for backward in (False, True)
    ]
    return found + layer_workloads(cuda=cuda)


def layer_workloads(*, cuda: bool) -> list[Workload]:
    """List the cases of layers other than attention."""
    norms = [(131_072, 512), (65_536, 1_024)] if cuda else [(512, 64)]
    layers = [(16_384, 512, 1_024), (16_384, 512, 2_048)] if cuda else [(64, 16, 32)]
    corrected = [(7_680, 128, 384), (7_680, 256, 128)] if cuda else [(60, 16, 24)]
    found = [
        Workload(
            kernel="gated_norm",
            name=f"{num_rows:,} x {width}: {direction(backward)}",
            prepare=partial(prepare_gated_norm, num_rows, width, backward=backward),
        )
        for num_rows, width in norms
        for backward in (False, True)
    ]
    found += [
        Workload(
            kernel="routed_experts",
            name=f"{sizes[0]:,} x {sizes[1]}, within {sizes[2]}: {direction(backward)}",
            prepare=partial(prepare_routed_experts, sizes, backward=backward),
        )
        for sizes in layers
        for backward in (False, True)
    ]
    found += [
        Workload(
            kernel="lora",
            name=f"{sizes[0]:,} x {sizes[1]} to {sizes[2]}, three adapters: "
            f"{'the layer and its corrections' if whole else 'its corrections'}",
            prepare=partial(prepare_lora, sizes, whole=whole),
        )
        for sizes in corrected
        for whole in (True, False)
    ]
    return found
