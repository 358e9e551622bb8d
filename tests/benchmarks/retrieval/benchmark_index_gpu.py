"""The index layer at one and ten million items on a GPU: recall, latency, memory, filters.

Vectors are those of benchmark_faiss_index.py, ``clustered``. Queries and lists are in host memory,
as a request's are; a filter is a mask that the host packs for each search.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from recsys.data.item_mask import ItemMask
from recsys.kernels.topk_search.op import fused_top_k
from recsys.retrieval.index import ExactIndex
from tests.benchmarks.harness import Row, command_line, write_results

K, DIM, BLOCK = 100, 64, 1_000_000
NUM_CLUSTERS, NOISE = 2_000, 0.6
BATCHES = (1, 64, 512)
PROMISED = 64
KINDS = ("float32 and half copies", "float32", "float16")
SHARES = (0.5, 0.1, 0.01)
TIE = 1e-6
"""An item this close to the k-th best score counts as one of the best: a float32 sum's rounding."""


def best_scores(queries: Tensor, items: Tensor, k: int) -> NDArray[np.float64]:
    """Greatest k inner products of each query in double precision, [B, k], by chunks of items."""
    best = torch.full((len(queries), k), -torch.inf, dtype=torch.float64, device=items.device)
    for chunk in items[1:].split(500_000):
        scores = queries.double() @ chunk.double().T
        best = torch.cat([best, scores.topk(k, dim=1).values], dim=1).topk(k, dim=1).values
    return best.cpu().numpy()


def recall(item_rows: Tensor, queries: Tensor, items: Tensor, best: NDArray[np.float64]) -> float:
    """Share of the returned items that are among the k best, by scores in double precision."""
    found = items[item_rows.to(items.device)].double()  # [B, k, D]
    scores = torch.einsum("bkd,bd->bk", found, queries.double()).cpu().numpy()
    distinct = np.mean([len(np.unique(rows)) / len(rows) for rows in item_rows.numpy()])
    return float((scores >= best[:, -1:] - TIE).mean() * distinct)


def clustered(num_rows: int, generator: torch.Generator) -> Tensor:
    """Draw vectors on the GPU, a block at a time; row 0 is padding."""
    device = generator.device
    centres = normalize(torch.randn(NUM_CLUSTERS, DIM, generator=generator, device=device))
    weights = 1 / torch.arange(1, NUM_CLUSTERS + 1, device=device).float() ** 0.8
    items = torch.empty(num_rows, DIM, device=device)
    for part in items.split(BLOCK):
        cluster = torch.multinomial(weights, len(part), replacement=True, generator=generator)
        noise = torch.randn(len(part), DIM, generator=generator, device=device)
        part.copy_(normalize(centres[cluster] + NOISE * noise / DIM**0.5))
    items[0] = 0
    return items


def milliseconds(search: Callable[[], object], repeats: int) -> np.ndarray:
    """Times of a search whose lists are back on the host."""
    for _ in range(5):
        search()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        search()
        times.append(1e3 * (time.perf_counter() - begin))
    return np.array(times)


def device_ms(search: Callable[[], object], repeats: int) -> float:
    """Mean time on the device of searches one behind the other."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    search()
    begin.record()
    for _ in range(repeats):
        search()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def matmul_top_k(queries: Tensor, items: Tensor) -> Tensor:
    """Write all scores and choose among them."""
    return (queries @ items.T).topk(K, dim=1).indices


def index_named(kind: str, items: Tensor) -> ExactIndex:
    dtype = torch.float16 if kind == "float16" else torch.float32
    return ExactIndex(items.to(dtype), halves=kind == KINDS[0])


def measured(num_rows: int, options: argparse.Namespace) -> list[Row]:
    """Check, then time, every kind over one catalogue."""
    generator = torch.Generator("cuda").manual_seed(0)
    items = clustered(num_rows, generator)
    origins = torch.randint(1, num_rows, (max(BATCHES),), generator=generator, device="cuda")
    noise = torch.randn(len(origins), DIM, generator=generator, device="cuda")
    queries = normalize(items[origins] + NOISE * noise / DIM**0.5)
    some, host, rows = queries[:PROMISED], queries.cpu(), []
    best, rng = best_scores(some, items, K), np.random.default_rng(0)
    drawn = {f"{share:.0%} allowed": rng.random(num_rows) < share for share in SHARES}
    for kind in KINDS:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        index, name = index_named(kind, items), f"{num_rows:,} items, {kind}"
        held = torch.cuda.memory_allocated() - before + (items.nbytes if "32" in kind else 0)
        found = index.search(some.cpu(), K)
        value = recall(found.item_rows, some, items, best)
        goal = {"at_least": 0.9999} if "32" in kind else {}
        rows.append(Row(name=f"{name}: recall@{K}", value=value, **goal))
        for size in BATCHES:
            times = milliseconds(partial(index.search, host[:size], K), options.repeats)
            for percent in (50, 99):
                most = {"at_most": 1.0} if (size, percent) == (PROMISED, 50) else {}
                value = float(np.percentile(times, percent))
                what = f"{name}: batch {size}, p{percent}"
                rows.append(Row(name=what, value=value, unit="ms", **most))
        # Without what the index does around the kernels: the device's own time.
        vectors, halves = index._vectors, index._halves
        there = some.to(vectors.dtype)
        search = partial(fused_top_k, there, vectors, K, index._every, halves=halves)
        value = device_ms(search, 30)
        rows.append(Row(name=f"{name}: batch {PROMISED}, device", value=value, unit="ms"))
        rows.append(Row(name=f"{name}: memory", value=held / 2**20, unit="MiB"))
        if kind == KINDS[0]:
            rows += under_masks(name, index, items, some, drawn, options)
        print(*(f"{row.name} {row.value:.5g}" for row in rows[-14:]), sep="\n", flush=True)
        del index, vectors, halves, search
    for dtype in (torch.float32, torch.float16):
        cast, asked = items.to(dtype), some.to(dtype)
        value = device_ms(partial(matmul_top_k, asked, cast), 10)
        name = f"{num_rows:,} items, torch matmul + topk, {str(dtype).removeprefix('torch.')}"
        rows.append(Row(name=f"{name}: batch {PROMISED}, device", value=value, unit="ms"))
    return rows


def under_masks(
    name: str,
    index: ExactIndex,
    items: Tensor,
    queries: Tensor,
    drawn: dict[str, np.ndarray],
    options: argparse.Namespace,
) -> list[Row]:
    """Time searches under a filter; each has a mask of its own, packed anew."""
    rows, host = [], queries.cpu()
    for what, allowed in drawn.items():
        mask = ItemMask(allowed)
        kept = torch.from_numpy(mask.rows()).to(items.device)
        best = best_scores(queries, torch.cat([items[:1], items[kept]]), K)
        value = recall(index.search(host, K, mask).item_rows, queries, items, best)
        rows.append(Row(name=f"{name}, {what}: recall@{K}", value=value, at_least=0.9999))
        times = milliseconds(partial(index.search, host, K, mask), options.repeats)
        for percent in (50, 99):
            value = float(np.percentile(times, percent))
            case = f"{name}, {what}: batch {PROMISED}, p{percent}"
            rows.append(Row(name=case, value=value, unit="ms"))
    return rows


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--commit", help="what is measured, where this is no checkout")
    return parser.parse_args()


def main() -> None:
    options = parsed_arguments()
    if not torch.cuda.is_available():
        raise SystemExit("benchmark_index_gpu needs a CUDA device")
    rows = [row for num_rows in options.rows for row in measured(num_rows, options)]
    notes = f"""
{DIM} wide, k {K}. Batches are timed from queries in host memory to lists there, {options.repeats}
searches; "device" is the kernels' own time. Recall counts an item within 1e-06 of the {K}-th best
score in double precision. float32 with half copies chooses groups of items by the copies and scores
them in float32; float16 holds items and queries in half precision alone.
"""
    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    write_results("index_gpu", rows, notes=notes, device=device, commit=options.commit)


if __name__ == "__main__":
    main()
