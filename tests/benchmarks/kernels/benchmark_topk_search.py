"""Time the exact top-k search on one GPU beside torch's matmul + topk and faiss-gpu's flat index.

512 queries, lists of 100, width 64; results stay on the device, but for faiss, which is called with
tensors of the device where it is installed. Lists are first compared with the float64 ranking of
some queries, with and without an item mask; nothing is timed where they disagree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recsys.kernels.topk_search.op import fused_top_k, mask_words
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.comparison import beside_peer, peak_bytes
from tests.benchmarks.kernels.measure import median_ms
from tests.recsys.kernels.topk_reference import reference_top_k

QUERIES, DIM, K = 512, 64, 100
CHECKED = 8
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def share_of_masked(num_items: int) -> Tensor:
    """Mask words that allow half of the items, drawn one by one; never row 0."""
    generator = torch.Generator("cuda").manual_seed(1)
    words = torch.randint(
        -(1 << 31), 1 << 31, (-(-num_items // 32),), generator=generator, device="cuda"
    )
    return words.to(torch.int32) & mask_words(None, num_items, "cuda")


def agreement(queries: Tensor, items: Tensor, words: Tensor | None) -> tuple[float, float]:
    """Recall of the float64 lists, and the largest relative error of a score."""
    some = queries[:CHECKED]
    truth_words = mask_words(None, len(items), "cuda") if words is None else words
    truth = reference_top_k(some, items, K, truth_words)
    # All queries, as timed.
    found = fused_top_k(queries, items, K, words)
    scores, rows = found.scores[:CHECKED], found.item_rows[:CHECKED]
    hits = (rows[:, :, None] == truth.item_rows[:, None, :]).any(2)
    error = ((scores - truth.scores).abs() / truth.scores.abs()).max()
    return float(hits.float().mean()), float(error)


def faiss_flat(items: Tensor) -> Callable[[Tensor], object] | None:
    """Build faiss's flat index on the GPU, or nothing where there is none."""
    try:
        import faiss
        import faiss.contrib.torch_utils
    except ImportError:
        return None
    if not hasattr(faiss, "StandardGpuResources"):
        return None
    index = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), items.shape[1])
    index.add(items.float())
    return lambda queries: index.search(queries.float(), K)


def rows_of(name: str, queries: list[Tensor], items: Tensor) -> list[Row]:
    found = {kind: agreement(queries[0], items, words) for kind, words in masks(items).items()}
    recall = min(recall for recall, _ in found.values())
    # Items whose scores are equal in float32 may change places at the end of a list.
    right = recall >= 0.999 and max(error for _, error in found.values()) < 1e-5
    what = "recall of the float64 lists, with and without a mask"
    rows = [Row(name=f"{name}: {what}", value=recall, goal=">= 0.999", met=right)]
    if not right:
        return rows
    peers: dict[str, Callable[[Tensor], object]] = {
        "matmul + topk": lambda query: (query @ items.T).topk(K, dim=1)
    }
    if flat := faiss_flat(items):
        peers["faiss-gpu flat"] = flat
    times = {
        kind: median_ms([lambda q=q, peer=peer: peer(q) for q in queries])
        for kind, peer in peers.items()
    }
    for kind, words in masks(items).items():
        calls = [lambda q=q, words=words: fused_top_k(q, items, K, words) for q in queries]
        ms = median_ms(calls)
        rows += [
            beside_peer(f"{name}: {kind}", ms, f"{peer}, unmasked", times[peer], 5)
            for peer in times
        ]
    ours = peak_bytes(lambda: fused_top_k(queries[0], items, K))
    theirs = peak_bytes(lambda: peers["matmul + topk"](queries[0]))
    rows.append(
        Row(
            name=f"{name}: memory beyond the items",
            value=ours / 2**20,
            unit="MiB",
            peer="matmul + topk,",
            peer_value=theirs / 2**20,
        )
    )
    return rows


def masks(items: Tensor) -> dict[str, Tensor | None]:
    return {"no mask": None, "half of the items masked": share_of_masked(len(items))}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[1_000_000, 10_000_000])
    arguments = parser.parse_args()
    rows = []
    for num_items in arguments.items:
        generator = torch.Generator("cuda").manual_seed(0)
        single = torch.randn(num_items, DIM, generator=generator, device="cuda")
        drawn = torch.randn(4, QUERIES, DIM, generator=generator, device="cuda")
        for name, dtype in TYPES.items():
            queries = list(drawn.to(dtype))
            rows += rows_of(f"{num_items:,} items, {name}", queries, single.to(dtype))
            print([(row.name, round(row.value, 4)) for row in rows[-4:]], flush=True)
            torch.cuda.empty_cache()
    notes = (
        "faiss-gpu was not installed." if not any("faiss" in (r.peer or "") for r in rows) else ""
    )
    write_results("topk_search", rows, notes=notes, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
