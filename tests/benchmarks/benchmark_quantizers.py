"""Compare ways to make semantic IDs on the Amazon item texts, as encoded and after uniqueness.

Needs the vectors of ``benchmark_encoder.py --save-vectors`` for each set and RECSYS_DATA_MIRROR for
categories and co-occurrence: items next to each other in a person's history, the last two of each
history left out. The product variant cuts PCA-turned vectors into one part per level; the scalar
one rounds so many leading components of the PCA to quantiles (finite scalar quantisation,
arXiv:2309.15505, without training).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import torch
from results_file import Row, write_results
from torch import Tensor

from recsys.semantic_ids.codes import Quantizer
from recsys.semantic_ids.collisions import assign_semantic_ids
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.quality import content_neighbours, level_qualities, quality_report
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from recsys.semantic_ids.rq_vae import RqVae, RqVaeConfig

SIZES = (256, 256, 256)


def categories_of(folder: Path) -> Tensor:
    """Number the first attribute of each item (a category or a brand); row 0 is the padding."""
    lists = pl.read_parquet(folder / "items.parquet")["attributes"].to_list()
    names = [(found or ["none"])[0] for found in lists]
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return torch.tensor([0, *(numbers[name] for name in names)])


def pairs_of(folder: Path) -> Tensor:
    """Read neighbours in histories as rows of the item table, [P, 2]."""
    items = pl.read_parquet(folder / "items.parquet")["item"].to_list()
    row = {item: index for index, item in enumerate(items)}
    frame = pl.read_parquet(folder / "interactions.parquet")
    names = frame.columns
    found: list[tuple[int, int]] = []
    histories = frame.group_by(names[0], maintain_order=True).agg(names[1])[names[1]].to_list()
    for history in histories:
        rows = [row[item] for item in history[:-2] if item in row]
        found += pairwise(rows)
    return torch.tensor(found)


def product_codes(vectors: Tensor) -> tuple[Tensor, float]:
    """Product quantisation after PCA whose components are dealt to the parts in turn."""
    centred = vectors - vectors.mean(0)
    turned = centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)
    codes, error = [], 0.0
    for level in range(len(SIZES)):
        part = turned[:, level :: len(SIZES)].contiguous()
        quantizer = ResidualKMeans.fit(part, ResidualKMeansConfig(level_sizes=SIZES[:1]))
        code = quantizer.encode(part)
        error += float((part - quantizer.decode(code)).square().sum())
        codes.append(code[:, 0])
    return torch.stack(codes, dim=1).long(), error / float(centred.square().sum())


def scalar_codes(vectors: Tensor) -> tuple[Tensor, float]:
    """Round two components per level to 16 quantiles each."""
    centred = vectors - vectors.mean(0)
    turned = centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)
    codes, rebuilt = [], torch.zeros_like(turned)
    for component in range(2 * len(SIZES)):
        values = turned[:, component].contiguous()
        bins = (values.argsort().argsort() * 16) // len(values)
        sums = torch.zeros(16).index_add_(0, bins, values)
        rebuilt[:, component] = (sums / torch.bincount(bins, minlength=16))[bins]
        codes.append(bins)
    joined = torch.stack([16 * codes[2 * i] + codes[2 * i + 1] for i in range(len(SIZES))], dim=1)
    return joined, float((turned - rebuilt).square().sum() / centred.square().sum())


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--vectors", type=Path, required=True, help="folder of <set>_minilm.npy")
    parser.add_argument("--sets", nargs="+", default=["beauty", "sports", "toys"])
    parser.add_argument("--num-steps", type=int, default=300, help="training steps of RQ-VAE")
    parser.add_argument("--num-seeds", type=int, default=0, help="RQ-VAEs on the first set")
    parser.add_argument("--name", default="quantizers")
    return parser.parse_args()


def methods(items: Tensor, pairs: Tensor, num_steps: int) -> dict[str, Callable[[], Quantizer]]:
    def kmeans(balanced: bool) -> Quantizer:
        config = ResidualKMeansConfig(level_sizes=SIZES, kmeans=KMeansConfig(balanced=balanced))
        return ResidualKMeans.fit(items, config)

    def vae(gradient: str, used: Tensor | None) -> Quantizer:
        config = RqVaeConfig(level_sizes=SIZES, gradient=gradient, num_steps=num_steps)  # type: ignore[arg-type]
        return RqVae.fit(items, config, pairs=used)

    return {
        "residual k-means": lambda: kmeans(False),
        "residual k-means, balanced": lambda: kmeans(True),
        "RQ-VAE, straight through": lambda: vae("straight_through", None),
        "RQ-VAE, rotation": lambda: vae("rotation", None),
        "RQ-VAE, rotation, contrastive": lambda: vae("rotation", pairs),
    }


def behaviour(codes: Tensor, pairs: Tensor) -> float:
    """Share of co-occurring pairs with the same first code."""
    return float((codes[pairs[:, 0], 0] == codes[pairs[:, 1], 0]).double().mean())


def compared(name: str, options: argparse.Namespace, lines: list[str]) -> list[Row]:
    vectors = torch.from_numpy(np.load(options.vectors / f"{name}_minilm.npy")).float()
    folder = Path(os.environ["RECSYS_DATA_MIRROR"]) / f"amazon-{name}"
    categories, pairs = categories_of(folder), pairs_of(folder)
    items, rows = vectors[1:], []
    for label, fit in methods(items, pairs, options.num_steps).items():
        begin = time.perf_counter()
        quantizer = fit()
        seconds = time.perf_counter() - begin
        ids = assign_semantic_ids(quantizer, vectors)
        report = quality_report(quantizer, vectors, ids, categories=categories)
        used = min(level.utilisation for level in report.levels)
        first, second = report.levels[:2]
        lines.append(
            f"| {name} | {label} | {report.reconstruction_error:.3f} | {100 * used:.1f} | "
            f"{'/'.join(f'{level.perplexity:.0f}' for level in report.levels)} | "
            f"{report.collisions_before} | {report.largest_group} | {report.collisions_after} | "
            f"{first.purity:.3f} | {first.neighbour_agreement:.3f} | "
            f"{second.neighbour_agreement:.3f} | "
            f"{behaviour(quantizer.encode(items), pairs):.3f} | {seconds:.1f} |"
        )
        rows.append(
            Row(
                name=f"{name}, {label}: codes used, least level",
                value=100 * used,
                unit="%",
                goal=">= 95%",
                met=used >= 0.95,
            )
        )
    queries = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))[:2000]
    neighbours = content_neighbours(items, queries, 10)
    for label, make in (("product", product_codes), ("finite scalar", scalar_codes)):
        begin = time.perf_counter()
        codes, error = make(items)
        seconds = time.perf_counter() - begin
        levels = level_qualities(codes, SIZES, neighbours, queries, categories[1:])
        groups = torch.unique(codes, dim=0, return_counts=True)[1]
        lines.append(
            f"| {name} | {label} | {error:.3f} | "
            f"{100 * min(level.utilisation for level in levels):.1f} | "
            f"{'/'.join(f'{level.perplexity:.0f}' for level in levels)} | "
            f"{len(codes) - len(groups)} | {int(groups.max())} | | {levels[0].purity:.3f} | "
            f"{levels[0].neighbour_agreement:.3f} | {levels[1].neighbour_agreement:.3f} | "
            f"{behaviour(codes, pairs):.3f} | {seconds:.1f} |"
        )
    return rows


def seeds(options: argparse.Namespace) -> list[Row]:
    """Count the least used level over seeds of RQ-VAE."""
    name = options.sets[0]
    vectors = torch.from_numpy(np.load(options.vectors / f"{name}_minilm.npy")).float()[1:]
    worst = 1.0
    for seed in range(options.num_seeds):
        config = RqVaeConfig(level_sizes=SIZES, num_steps=options.num_steps, seed=seed)
        codes = RqVae.fit(vectors, config).encode(vectors)
        worst = min(worst, *(len(codes[:, level].unique()) / 256 for level in range(3)))
    return [
        Row(
            name=f"{name}, RQ-VAE: codes used, least level of {options.num_seeds} seeds",
            value=100 * worst,
            unit="%",
            goal=">= 95%",
            met=worst >= 0.95,
        )
    ]


def main() -> None:
    options = parsed_arguments()
    lines = [
        "| set | quantiser | error | used % | perplexity by level | collisions before | largest "
        "group | after | purity 1 | neighbours 1 | neighbours 1-2 | co-occurring 1 | fit s |",
        "| " + " | ".join(["---"] * 13) + " |",
    ]
    rows: list[Row] = seeds(options) if options.num_seeds else []
    for name in options.sets if not options.num_seeds else ():
        rows += compared(name, options, lines)
    notes = f"3 levels x 256, RQ-VAE {options.num_steps} steps of 1024.\n\n" + "\n".join(lines)
    write_results(options.name, rows, notes="" if options.num_seeds else notes)


if __name__ == "__main__":
    main()
