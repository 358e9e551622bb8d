"""Time filters over a million items, and count what a search under them still finds.

A filter's first request scans the catalogue, all others look its mask up; both are timed as
`Exclusions.decide` makes the mask of a request. Clustered vectors stand for learnt embeddings:
items lie around 2,000 centres drawn with Zipf weights. Their index is tuned to recall 0.99 without
a mask; a filter keeps random items or whole clusters. Recall is of the best 100 against exact
search over 32-bit vectors. One thread.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from recsys.data.string_table import StringTable
from recsys.data.top_k import ItemMask
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import FaissIndex, build_index
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index_recall import tune_effort
from serving.arrangement.rules import RuleRows
from serving.bundle.catalogue import Catalogue
from serving.bundle.masks import PackedMasks
from serving.bundle.properties import NumberColumn, Properties, TextColumn
from serving.exclusions import Exclusions
from serving.live import LiveState
from serving.schemas import Request
from serving.surfaces import HOME
from tests.benchmarks.harness import Row, command_line, write_results

SHARES = (1.0, 0.1, 0.01, 0.001)
K = 100
FILTERS = {
    "price < 50": {"where": "price < 50"},
    "price, brand and category": {
        "where": "price < 50 and brand in ['b1', 'b2', 'b3'] and category not in ['c4', 'c5']"
    },
    "three categories": {"categories": ["c1", "c2", "c3"]},
    "256 tests": {"where": " or ".join(f"price={number}" for number in range(256))},
}


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


def made_up(num_rows: int) -> Any:
    """Items with a price, a brand and two categories each, as a bundle's parts."""
    rng = np.random.default_rng(0)
    num_items = num_rows - 1
    catalogue = Catalogue.from_lists(
        item_ids=[str(row) for row in range(1, num_rows)],
        display_texts=[""] * num_items,
        category_names=[f"c{number}" for number in range(1, 1_001)],
        category_values=rng.integers(1, 1_001, 2 * num_items),
        category_offsets=np.concatenate([[0], np.arange(0, 2 * num_items + 1, 2)]),
    )
    brands = StringTable.from_strings(["", *(f"b{number}" for number in range(1, 5_001))])
    codes = np.concatenate([[0], rng.integers(1, len(brands), num_items)])
    prices = np.concatenate([[np.nan], rng.gamma(2, 50, num_items)])
    columns = {
        "price": NumberColumn(kind="number", values=prices),
        "brand": TextColumn(texts=brands, codes=codes),
    }
    return SimpleNamespace(
        catalogue=catalogue,
        properties=Properties(columns),
        num_item_rows=num_rows,
        version="made up",
        masks=PackedMasks(num_rows),
    )


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def costs_of_masks(num_rows: int) -> list[Row]:
    """Time `Exclusions.decide` with each filter, and without one."""
    bundle = made_up(num_rows)
    seen = np.arange(1, 51)
    step = Exclusions(bundle=bundle, rule_rows=RuleRows(bundle), live=LiveState(bundle))

    def mask_of(filter_: dict[str, Any]) -> Callable[[], object]:
        request = Request.model_validate({"filter": filter_})
        query: Any = SimpleNamespace(request=request, item_row=0, seen=seen, surface=HOME)
        return lambda: step.decide(query).mask.count()

    bundle.catalogue.categories.with_any(["c1"])
    plain = milliseconds(mask_of({}), 50)
    rows = [Row(name="no filter: repeated", value=plain, unit="ms")]
    for name, filter_ in FILTERS.items():
        first = milliseconds(mask_of(filter_), 1)
        again = milliseconds(mask_of(filter_), 50)
        rows += [
            Row(name=f"{name}: first request", value=first, unit="ms"),
            Row(name=f"{name}: repeated", value=again, unit="ms"),
            Row(name=f"{name}: more than none", value=again - plain, unit="ms", at_most=0.5),
        ]
    return rows


def masks_of(vectors: Vectors, share: float) -> dict[str, ItemMask]:
    rng = np.random.default_rng(3)
    items = rng.random(len(vectors.items)) < share
    clusters = torch.from_numpy(rng.random(int(vectors.clusters.max()) + 1) < share)
    kept = {"random items": items, "whole clusters": clusters[vectors.clusters.long()].numpy()}
    return {name: ItemMask(allowed) for name, allowed in kept.items()}


def searches(vectors: Vectors, index: FaissIndex, num_queries: int) -> list[Row]:
    """Time one search and compare what it finds, for each share that a filter keeps."""
    rows = []
    for share in SHARES:
        for name, mask in masks_of(vectors, share).items():
            if mask.count() < K or (share == 1 and name != "random items"):
                continue
            queries = vectors.queries[:num_queries]
            truth = exact_top_k(queries, vectors.items, K, mask).item_rows.numpy()
            times, found = [], 0
            for query, best in zip(queries, truth, strict=True):
                begin = time.perf_counter()
                rows_found = index.search_one(query, K, mask).item_rows
                times.append(1e3 * (time.perf_counter() - begin))
                found += len(np.intersect1d(rows_found, best))
            recall = found / int((truth > 0).sum())
            case = f"{share:.1%} kept, {name}" if share < 1 else "all kept"
            rows += [
                Row(name=f"{case}: recall@{K}", value=recall, at_least=0.98),
                Row(name=f"{case}: search", value=statistics.median(times), unit="ms"),
            ]
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = costs_of_masks(options.rows)
    vectors = clustered(options.rows, options.dim, max(300, options.queries))
    index = build_index(vectors.items, FaissIndexConfig(kind="ivf_sq8"))
    tune_effort(index, vectors.tuning, vectors.items)
    index.num_threads = 1
    rows += searches(vectors, index, options.queries)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    note = (
        f"{options.rows:,} items x {options.dim}; {options.queries} queries; load average {load}."
    )
    write_results("filters", rows, notes=f"{__doc__}\n{note}\n")


if __name__ == "__main__":
    main()
