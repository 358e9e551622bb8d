"""The index layer at one and ten million items on a CPU: recall, latency, memory, filters.

    python -m tests.benchmarks.retrieval.benchmark_index_size --kept FOLDER --part build
    taskset -c 0,1 python -m tests.benchmarks.retrieval.benchmark_index_size --kept FOLDER

Vectors are those of benchmark_faiss_index.py, ``clustered``, made by blocks. A catalogue is built
and its exact lists are found once, in one process; what is measured is another process that loads
the index as serving does and searches for one query at a time, as a request does.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from recsys.data.item_mask import ItemMask
from recsys.data.top_k import OneList
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import FaissIndex, build_index
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index_recall import tune_effort
from tests.benchmarks.harness import Row, command_line, write_results

SIZES = (1_000_000, 10_000_000)
DIM, K, BLOCK = 64, 100, 500_000
NUM_CLUSTERS, NOISE = 2_000, 0.6
TARGET, LEAST = 0.99, 0.98
P99 = {1_000_000: 4.0, 10_000_000: 10.0}
"""Goals in milliseconds without a filter."""


def blocks(num_rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw vectors and their clusters, a block at a time."""
    generator = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(NUM_CLUSTERS, DIM, generator=generator))
    weights = 1 / torch.arange(1, NUM_CLUSTERS + 1).float() ** 0.8
    for begin in range(0, num_rows, BLOCK):
        number = min(BLOCK, num_rows - begin)
        cluster = torch.multinomial(weights, number, replacement=True, generator=generator)
        noise = NOISE * torch.randn(number, DIM, generator=generator) / DIM**0.5
        yield normalize(centres[cluster] + noise), cluster


def make(folder: Path, num_rows: int, num_queries: int) -> None:
    """Write items, clusters and queries, half of these to tune on."""
    items = np.lib.format.open_memmap(
        folder / "items.npy", mode="w+", dtype=np.float32, shape=(num_rows, DIM)
    )
    clusters, begin = np.empty(num_rows, np.int16), 0
    for vectors, cluster in blocks(num_rows):
        items[begin : begin + len(vectors)] = vectors.numpy()
        clusters[begin : begin + len(vectors)] = cluster.numpy()
        begin += len(vectors)
    items[0] = 0
    items.flush()
    generator = torch.Generator().manual_seed(1)
    origins = torch.randint(1, num_rows, (2 * num_queries,), generator=generator).numpy()
    noise = NOISE * torch.randn(2 * num_queries, DIM, generator=generator) / DIM**0.5
    np.save(folder / "queries.npy", normalize(torch.from_numpy(items[origins]) + noise).numpy())
    np.save(folder / "clusters.npy", clusters)


def masks(folder: Path) -> dict[str, ItemMask]:
    """Filters that allow some of the items, drawn one by one or by whole clusters."""
    clusters, rng = np.load(folder / "clusters.npy"), np.random.default_rng(3)
    found = {"no filter": ItemMask.all(len(clusters))}
    for share in (0.5, 0.1, 0.01):
        found[f"{share:.0%} of items"] = ItemMask(rng.random(len(clusters)) < share)
    for share in (0.5, 0.1, 0.01):
        picked = rng.random(NUM_CLUSTERS) < share
        found[f"{share:.0%} of clusters"] = ItemMask(picked[clusters])
    return found


def build(folder: Path, num_rows: int, options: argparse.Namespace) -> None:
    """Build and tune the index, and find the exact lists of the queries under every filter."""
    folder.mkdir(parents=True, exist_ok=True)
    make(folder, num_rows, options.queries)
    items = torch.from_numpy(np.load(folder / "items.npy", mmap_mode="c"))
    queries = torch.from_numpy(np.load(folder / "queries.npy"))
    begin = time.perf_counter()
    config = FaissIndexConfig(kind="ivf_sq8", effort=4, build_threads=options.threads)
    index = build_index(items, config)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    tune_effort(index, queries[: options.queries], items, target=TARGET)
    index.save(folder / "items.faiss")
    said = {"seconds": seconds, "threads": options.threads, "peak_mib": peak}
    (folder / "build.json").write_text(json.dumps(said))
    own = queries[options.queries :]
    for place, mask in enumerate(masks(folder).values()):
        np.save(folder / f"truth_{place}.npy", exact_top_k(own, items, K, mask).item_rows.numpy())
    print(num_rows, said, "effort", index.effort, flush=True)


def timed_lists(
    search: Callable[[Tensor], OneList], queries: Tensor
) -> tuple[NDArray[np.float64], list[OneList]]:
    """Milliseconds of each query, and its list."""
    times, lists = [], []
    for query in queries:
        begin = time.perf_counter()
        lists.append(search(query))
        times.append(1e3 * (time.perf_counter() - begin))
    return np.array(times), lists


def measure(folder: Path, num_rows: int, options: argparse.Namespace) -> list[Row]:
    """Load the index and search under every filter, by one thread and by two at a time."""
    torch.set_num_threads(1)
    process, name = psutil.Process(), f"{num_rows:,} items"
    queries = torch.from_numpy(np.load(folder / "queries.npy"))[options.queries :]
    chosen = masks(folder)
    before, begin = process.memory_info().rss, time.perf_counter()
    index = FaissIndex.load(folder / "items.faiss", num_threads=1)
    loaded = time.perf_counter() - begin
    held = (process.memory_info().rss - before) / 2**20
    said = json.loads((folder / "build.json").read_text())
    rows = [
        Row(name=f"{name}: built in", value=said["seconds"], unit="s"),
        Row(name=f"{name}: cores of the build", value=said["threads"]),
        Row(name=f"{name}: most memory of the build", value=said["peak_mib"], unit="MiB"),
        Row(name=f"{name}: memory of the index", value=held, unit="MiB"),
        Row(name=f"{name}: verified load", value=loaded, unit="s"),
        Row(name=f"{name}: lists", value=index.max_effort),
        Row(name=f"{name}: probed", value=index.effort),
    ]
    for place, (kind, mask) in enumerate(chosen.items()):
        truth = np.load(folder / f"truth_{place}.npy")
        case = f"{name}, {kind}"

        def search(query: Tensor, mask: ItemMask = mask) -> OneList:
            return index.search_one(query, K, mask)

        timed_lists(search, queries[:5])
        times, lists = timed_lists(search, queries)
        shared = [
            len(np.intersect1d(one.item_rows, best[best > 0])) / max(1, (best > 0).sum())
            for one, best in zip(lists, truth, strict=True)
        ]
        goal = {"at_least": LEAST} if place == 0 else {}
        rows.append(Row(name=f"{case}: recall@{K}", value=float(np.mean(shared)), **goal))
        for percent in (50, 99):
            most = (
                {"at_most": P99[num_rows]}
                if place == 0 and percent == 99 and num_rows in P99
                else {}
            )
            value = float(np.percentile(times, percent))
            rows.append(Row(name=f"{case}: p{percent}", value=value, unit="ms", **most))
        with ThreadPoolExecutor(2) as threads:
            begin = time.perf_counter()
            found = list(threads.map(lambda part: timed_lists(search, part), queries.chunk(2)))
            rate = len(queries) / (time.perf_counter() - begin)
        both = np.concatenate([times for times, _ in found])
        value = float(np.percentile(both, 99))
        rows.append(Row(name=f"{case}: p99, two cores", value=value, unit="ms"))
        rows.append(Row(name=f"{case}: two cores", value=rate, unit="queries/s"))
    return rows


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--kept", type=Path, required=True, help="folder of vectors and indexes")
    parser.add_argument("--part", choices=("build", "measure"), default="measure")
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1, help="of a build")
    return parser.parse_args()


def main() -> None:
    options, rows = parsed_arguments(), []
    for num_rows in options.rows:
        folder = options.kept / str(num_rows)
        if options.part == "build":
            build(folder, num_rows, options)
        else:
            rows += measure(folder, num_rows, options)
    if not rows:
        return
    notes = f"""
{DIM} wide, IVF-SQ8 re-scored by half-precision copies, as serving loads it; k {K}, one query at a
time, {options.queries} of them. The number of probed lists was doubled on as many others until
recall@{K} reached {TARGET}. A filter that leaves few items is answered by comparing them all. Two
cores: two threads that search at the same time. Memory: resident, of the process that loads or
builds.
"""
    write_results("index_size", rows, notes=notes)


if __name__ == "__main__":
    main()
