"""FAISS flat on a GPU against FAISS flat on the CPU of the same machine, and against torch.

Unit vectors drawn at random, which have no structure: the worst case for an approximate index and
the same as any other for a flat one. All queries at once, results back in host memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from recsys.kernels.topk_search.op import fused_top_k
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_build import FaissIndexConfig
from recsys.retrieval.faiss_index import build_index
from tests.benchmarks.harness import Row, command_line, device_name, median_seconds, write_results

GPU = "faiss flat, GPU"
CPU = "faiss flat, CPU"
TIE = 1e-6
"""An item this close to the k-th best score counts as one of the best: a float32 sum's rounding."""


def matmul_top_k(queries: Tensor, items: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Score everything at once, without the padding row."""
    best = (queries @ items[1:].T).topk(k, dim=1)
    return best.values.cpu(), best.indices.cpu() + 1


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


def measured(num_rows: int, options: argparse.Namespace) -> list[Row]:
    """Time and check every way over one catalogue."""
    cuda, k = torch.device("cuda"), options.k
    generator = torch.Generator().manual_seed(0)
    items = normalize(torch.randn(num_rows, options.dim, generator=generator))
    queries = normalize(torch.randn(options.queries, options.dim, generator=generator))
    items_there, queries_there = items.to(cuda), queries.to(cuda)
    best = best_scores(queries_there, items_there, k)

    index = build_index(items, FaissIndexConfig(kind="flat"))
    times, recalls = {}, {}

    def measure(name: str, search: Callable[[], Tensor], repeats: int = 20) -> None:
        times[name] = median_seconds(search, repeats) * 1e3
        recalls[name] = recall(search(), queries_there, items_there, best)
        print(f"{num_rows:,} {name}: {times[name]:.1f} ms, {recalls[name]:.6f}", flush=True)

    measure(CPU, lambda: index.search(queries, k).item_rows, repeats=3)
    index.to(cuda)
    measure(GPU, lambda: index.search(queries, k).item_rows)
    for name, dtype in (("float32", torch.float32), ("float16", torch.float16)):
        items_cast, queries_cast = items_there.to(dtype), queries_there.to(dtype)
        measure(
            f"torch matmul + topk, GPU, {name}",
            lambda q=queries_cast, v=items_cast: matmul_top_k(q, v, k)[1],
        )
    measure(
        "recsys exact_top_k, GPU",
        lambda: exact_top_k(queries_there, items_there, k).item_rows.cpu(),
    )
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        items_cast, queries_cast = items_there.to(dtype), queries_there.to(dtype)
        measure(
            f"recsys fused_top_k, GPU, {name}",
            lambda q=queries_cast, v=items_cast: fused_top_k(q, v, k).item_rows.cpu(),
        )

    rows = []
    for name, value in times.items():
        where = f"{num_rows:,} x {options.dim}, {name}"
        compared = name != CPU
        rows.append(
            Row(
                name=f"{where}: {options.queries} queries",
                value=value,
                unit="ms",
                peer=CPU if compared else None,
                peer_value=times[CPU] if compared else None,
            )
        )
        held_to = name in (CPU, GPU)
        rows.append(
            Row(
                name=f"{where}: recall@{k}",
                value=recalls[name],
                goal="1.0" if held_to else None,
                met=recalls[name] == 1.0 if held_to else None,
            )
        )
    return rows


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--k", type=int, default=100)
    return parser.parse_args()


def main() -> None:
    options = parsed_arguments()
    if not torch.cuda.is_available():
        raise SystemExit("benchmark_faiss_gpu needs a CUDA device and faiss-gpu")
    import faiss

    rows = [row for num_rows in options.rows for row in measured(num_rows, options)]
    notes = f"""
{__doc__}
{options.queries} queries, k {options.k}; median of 20 searches after one to warm up (3 on the CPU,
with all its cores). Both sides are the same package, faiss {faiss.__version__} with GPU support,
beside torch {torch.__version__}. The ratio is the CPU's time over this one. Recall is by scores in
double precision: an item counts if its score is no more than {TIE:g} below the k-th best, which is
the rounding of a float32 sum. "float16" and "bfloat16" hold items and queries in half precision, so
they miss items by that rounding.
"""
    device = f"{torch.cuda.get_device_name()}; {device_name()}"
    write_results("faiss_gpu", rows, notes=notes, device=device)


if __name__ == "__main__":
    main()
