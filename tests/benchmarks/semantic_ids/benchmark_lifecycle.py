"""Measure appending to 1M semantic IDs, and what aligning a refit keeps of the old ones.

``--vectors`` takes content vectors as .npy, [N, D], a first row of zeros for the padding (the
committed numbers: MiniLM embeddings of Amazon Beauty's 12,101 items); without it that part is made
of clusters. The refit sees 90% of the items; shares are over those.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.collisions import assign_semantic_ids, rows_with_content
from recsys.semantic_ids.delta import diff
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.lifecycle import KeptShares, align, append
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from recsys.semantic_ids.version_store import VersionStore
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.semantic_ids.apply_delta import apply

NUM_NEW = 10_000
REFIT_SHARE = 0.9
LEVELS = (256, 256, 256)
DIM = 64


def clusters(num_items: int, dim: int) -> Tensor:
    """Draw items around 2,000 centres, [num_items + 1, D], row 0 zero."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(2_000, dim, generator=generator)
    items = centres[torch.randint(2_000, (num_items,), generator=generator)]
    items += 0.5 * torch.randn(num_items, dim, generator=generator)
    return torch.cat([torch.zeros(1, dim), items])


def fit(
    vectors: Tensor,
    start: ResidualKMeans | None = None,
    *,
    seed: int = 0,
    start_weight: float = 1.0,
    num_steps: int = 30,
) -> ResidualKMeans:
    kmeans = KMeansConfig(start_weight=start_weight, num_steps=num_steps)
    config = ResidualKMeansConfig(level_sizes=LEVELS, seed=seed, kmeans=kmeans)
    return ResidualKMeans.fit(vectors[rows_with_content(vectors)], config, start=start)


def timed(rows: list[Row], name: str, begin: float, goal: float | None = None) -> None:
    value = time.perf_counter() - begin
    bar = None if goal is None else f"<= {goal:g} s"
    met = None if goal is None else value <= goal
    rows.append(Row(name=name, value=value, unit="s", goal=bar, met=met))


def append_rows(num_items: int) -> list[Row]:
    vectors = clusters(num_items + NUM_NEW, DIM)
    quantizer = fit(vectors[: num_items + 1][:200_000], num_steps=8)
    ids = assign_semantic_ids(quantizer, vectors[: num_items + 1])
    rows: list[Row] = []
    begin = time.perf_counter()
    grown = append(ids, quantizer, vectors[num_items + 1 :])
    timed(rows, f"append {NUM_NEW:,} items to {num_items:,} IDs", begin, 5)
    moved = int((grown.codes[: num_items + 1] != ids.codes).any(1).sum())
    rows.append(
        Row(
            name="published IDs moved by it",
            value=moved,
            unit="IDs",
            goal="0",
            met=moved == 0 and len(grown.item_rows) == num_items + NUM_NEW,
        )
    )
    begin = time.perf_counter()
    delta = diff(ids, grown)
    timed(rows, "diff of the two versions", begin)
    begin = time.perf_counter()
    apply(ids, delta)
    timed(rows, "apply that delta, digests checked", begin)
    with tempfile.TemporaryDirectory() as directory:
        store = VersionStore(Path(directory))
        store.publish(ids, quantizer)
        begin = time.perf_counter()
        store.publish(grown, quantizer)
        timed(rows, "publish the new version with its delta", begin)
        delta.save(Path(directory))
        size = (Path(directory) / "semantic_ids_delta.safetensors").stat().st_size
        rows.append(Row(name="delta on disk", value=size / 1024, unit="KiB"))
        begin = time.perf_counter()
        store.rollback()
        timed(rows, "roll back, version verified", begin)
    return rows


def share_rows(label: str, kept: KeptShares, goal: float | None) -> list[Row]:
    rows = [
        Row(
            name=f"{label}: full IDs kept",
            value=kept.full,
            goal=None if goal is None else f">= {goal:g}",
            met=None if goal is None else kept.full >= goal,
        )
    ]
    for level, (alone, prefix) in enumerate(zip(kept.per_level, kept.per_prefix, strict=True)):
        rows.append(Row(name=f"{label}: codes of level {level} kept", value=alone))
        if 0 < level < len(kept.per_level) - 1:
            rows.append(Row(name=f"{label}: prefixes to level {level} kept", value=prefix))
    return rows


def align_rows(vectors: Tensor) -> list[Row]:
    generator = torch.Generator().manual_seed(1)
    order = 1 + torch.randperm(len(vectors) - 1, generator=generator)
    fewer = vectors.clone()
    fewer[order[int(REFIT_SHARE * len(order)) :]] = 0
    quantizer = fit(vectors)
    rows: list[Row] = []
    for method in ("nearest_free", "extra_level"):
        old = ids_of(quantizer, vectors, method)
        for name, weight, goal in [
            ("cold seed", None, None),
            ("warm", 1.0, 0.8),
            ("warm, weight 10", 10.0, 0.8),
        ]:
            if weight is None:
                refit = fit(fewer, seed=7)
            else:
                refit = fit(fewer, quantizer, start_weight=weight)
            new = ids_of(refit, fewer, method)
            begin = time.perf_counter()
            found = align(new, refit, old)
            seconds = time.perf_counter() - begin
            label = f"{method}, {name}"
            rows += share_rows(label, found.kept, goal)
            rows.append(Row(name=f"{label}: full IDs kept without align", value=found.before.full))
            rows.append(Row(name=f"{label}: align", value=seconds, unit="s"))
    return rows


def ids_of(quantizer: ResidualKMeans, vectors: Tensor, method: str) -> SemanticIds:
    if method == "extra_level":
        return assign_semantic_ids(quantizer, vectors, method="extra_level", extra_size=64)
    return assign_semantic_ids(quantizer, vectors)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--vectors", type=Path, help=".npy of content vectors")
    parser.add_argument("--num-items", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if arguments.vectors is None:
        content, source = clusters(12_000, 384), "12,000 items around 2,000 centres"
    else:
        content = torch.from_numpy(np.load(arguments.vectors)).float()
        source = f"{len(content) - 1:,} real items ({arguments.vectors.stem})"
    rows = append_rows(arguments.num_items) + align_rows(content)
    write_results(
        "lifecycle",
        rows,
        notes=(
            f"Levels {LEVELS}. Append: {DIM}-wide vectors around 2,000 centres. Align: {source}, "
            f"refit on {REFIT_SHARE:.0%} of the items the old version has. Warm refits start from "
            "the old codebooks (`start_weight` 1 and 10), cold ones from another seed."
        ),
    )


if __name__ == "__main__":
    main()
