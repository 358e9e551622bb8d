"""Build, tune and search every kind of index against exact search, and find the auto rules.

Clustered vectors stand for learnt embeddings: 2,000 unit centres drawn with Zipf weights
(exponent 0.8), each item its centre plus Gaussian noise of length 0.6, scaled to unit length; a
query is an item plus such noise. Uniform vectors have no structure and are the worst case.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from recsys.data.top_k import ItemMask
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import FaissIndex, build_index
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index_recall import tune_effort
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.retrieval.recall import measure_recall

KINDS = ("flat", "hnsw", "ivf_sq8")


@dataclass(frozen=True)
class Vectors:
    """Item vectors [N, D], their clusters [N], and queries to tune on and to measure with."""

    name: str
    items: Tensor
    clusters: Tensor
    tuning: Tensor
    queries: Tensor


def clustered(num_rows: int, dim: int, num_queries: int) -> Vectors:
    generator = torch.Generator().manual_seed(0)

    def noise(count: int) -> Tensor:
        return 0.6 * torch.randn(count, dim, generator=generator) / dim**0.5

    centres = normalize(torch.randn(2000, dim, generator=generator))
    weights = 1 / torch.arange(1, 2001).float() ** 0.8
    cluster = torch.multinomial(weights, num_rows, replacement=True, generator=generator)
    items = normalize(centres[cluster] + noise(num_rows))
    origins = torch.randint(1, num_rows, (2 * num_queries,), generator=generator)
    queries = normalize(items[origins] + noise(2 * num_queries))
    name = f"clustered {num_rows:,} x {dim}"
    return Vectors(name, items, cluster, queries[:num_queries], queries[num_queries:])


def uniform(num_rows: int, dim: int, num_queries: int) -> Vectors:
    generator = torch.Generator().manual_seed(1)
    items = normalize(torch.randn(num_rows, dim, generator=generator))
    queries = normalize(torch.randn(2 * num_queries, dim, generator=generator))
    name = f"uniform {num_rows:,} x {dim}"
    nowhere = torch.zeros(num_rows)
    return Vectors(name, items, nowhere, queries[:num_queries], queries[num_queries:])


def saved_vectors(path: Path, num_queries: int) -> Vectors:
    """Take real vectors from a .npy file [N, D]; row 0 is padding, queries are items + noise."""
    items = normalize(torch.from_numpy(np.load(path, allow_pickle=False)).float())
    generator = torch.Generator().manual_seed(2)
    origins = torch.randint(1, len(items), (2 * num_queries,), generator=generator)
    noise = torch.randn(2 * num_queries, items.shape[1], generator=generator)
    queries = normalize(items[origins] + 0.3 * normalize(noise))
    name = f"{path.stem} {len(items):,} x {items.shape[1]}"
    return Vectors(
        name, items, torch.zeros(len(items)), queries[:num_queries], queries[num_queries:]
    )


def milliseconds_each(search: Callable[[Tensor], object], queries: Tensor, count: int) -> float:
    """Median time of one query alone."""
    for query in queries[:5]:
        search(query[None])
    times = []
    for query in queries[:count]:
        begin = time.perf_counter()
        search(query[None])
        times.append(time.perf_counter() - begin)
    return float(np.median(times) * 1e3)


def queries_per_second(search: Callable[[], object], num_queries: int) -> float:
    """Best of three searches for all queries at once."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        search()
        times.append(time.perf_counter() - begin)
    return num_queries / min(times)


def measured(vectors: Vectors, kind: str) -> tuple[FaissIndex, dict[str, float]]:
    """Build, tune to recall 0.99 on other queries, and measure."""
    begin = time.perf_counter()
    index = build_index(vectors.items, FaissIndexConfig(kind=kind))
    build = time.perf_counter() - begin
    tune_effort(index, vectors.tuning, vectors.items)
    recall = measure_recall(index, vectors.queries, vectors.items)
    index.num_threads = 1
    single = milliseconds_each(lambda query: index.search(query, 100), vectors.queries, 200)
    index.num_threads = None
    batched = queries_per_second(lambda: index.search(vectors.queries, 100), len(vectors.queries))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.faiss"
        index.save(path)
        size = path.stat().st_size / 1e6
        begin = time.perf_counter()
        FaissIndex.load(path)
        load = time.perf_counter() - begin
    return index, {
        "recall@100": recall,
        "build s": build,
        "effort": index.effort,
        "ms a query": single,
        "queries/s alone": 1e3 / single,
        "queries/s batched": batched,
        "MB": size,
        "verified load s": load,
    }


def masked_rows(vectors: Vectors, index: FaissIndex) -> list[list[str]]:
    """Compare index and exact search under masks of random items and of whole clusters."""
    random = np.random.default_rng(3)
    num_rows = len(vectors.items)
    lines = []
    for share in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001):
        picked = torch.from_numpy(random.random(int(vectors.clusters.max()) + 1) < share)
        for name, allowed in (
            ("random items", random.random(num_rows) < share),
            ("whole clusters", picked[vectors.clusters.long()].numpy()),
        ):
            mask = ItemMask(allowed)
            if mask.count() < 100:
                continue
            queries = vectors.queries[:200]
            index.masked_exact_max_rows, index.num_threads = 0, 1
            recall = measure_recall(index, queries, vectors.items, mask=mask)
            torch.set_num_threads(1)
            ours = milliseconds_each(lambda q, m=mask: index.search(q, 100, m), queries, 30)
            index.masked_exact_max_rows = num_rows
            exact = milliseconds_each(lambda q, m=mask: index.search(q, 100, m), queries, 30)
            torch.set_num_threads(2)
            cells = [f"{num_rows:,}", index.kind, name, f"{mask.count():,}", f"{recall:.4f}"]
            lines.append([*cells, f"{ours:.2f}", f"{exact:.2f}"])
    return lines


def table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="size of the large catalogue")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--vectors", type=Path, help=".npy file of real item vectors, [N, D]")
    return parser.parse_args()


def main() -> None:
    options = parsed_arguments()
    rows: list[Row] = []
    masks: list[list[str]] = []
    sizes = [size for size in (10_000, 50_000, 100_000, 200_000) if size < options.rows]
    sets = [clustered(size, options.dim, options.queries) for size in sizes]
    sets.append(uniform(min(200_000, options.rows), options.dim, options.queries))
    if options.vectors:
        sets.append(saved_vectors(options.vectors, options.queries))
    sets.append(clustered(options.rows, options.dim, options.queries))
    for vectors in sets:
        large = vectors is sets[-1]
        for kind in KINDS:
            index, numbers = measured(vectors, kind)
            print(vectors.name, kind, *(f"{value:.4g}" for value in numbers.values()), flush=True)
            reached = numbers["recall@100"] >= 0.99
            for name, value in numbers.items():
                is_recall = name == "recall@100"
                rows.append(
                    Row(
                        name=f"{vectors.name}, {kind}: {name}",
                        value=value,
                        goal=">= 0.99 at the chosen setting" if is_recall else None,
                        met=reached if is_recall else None,
                    )
                )
            if large or (len(vectors.items) == 100_000 and kind != "hnsw"):
                masks += masked_rows(vectors, index)
        batched = queries_per_second(
            lambda v=vectors: exact_top_k(v.queries, v.items, 100), len(vectors.queries)
        )
        rows.append(Row(name=f"{vectors.name}, exact.py: queries/s batched", value=batched))
    mask_header = ["rows", "kind", "mask", "allowed", "recall@100", "ms by index", "ms exact"]
    notes = f"""
{__doc__}
Built with one thread (equal bytes on any machine). Effort (probes or candidates) is doubled on
{options.queries} tuning queries until recall@100 reaches 0.99; all else is measured on
{options.queries} other queries. Alone: one query at a time on one thread; batched: all queries at
once on all cores. MB: the saved file, which is also what the index takes in memory.

One query under an item mask, one thread. "ms exact" is exact search over the allowed rows, which
the index falls back to for selective masks:

{table(mask_header, masks)}
"""
    write_results("faiss_index", rows, notes=notes)


if __name__ == "__main__":
    main()
