"""Compare ways to make semantic IDs on the Amazon item texts, as encoded, over several seeds.

Needs the vectors of ``benchmark_encoder.py --save-vectors`` for each set. ``--prepare`` reads
RECSYS_DATA_MIRROR (with Polars) and puts categories and co-occurrence beside the vectors, after
which the comparison runs without either. Items co-occur where they are neighbours in a history
whose last two items are left out.

Peers: ResidualVQ of vector-quantize-pytorch and faiss's ResidualQuantizer, each where it is
installed. The product variant cuts PCA-turned vectors into one part per level; the scalar one
rounds as many leading components to quantiles (finite scalar quantisation, arXiv:2309.15505,
without training).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from torch import Tensor

from recsys.semantic_ids.collisions import resolve_collisions
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.quality import content_neighbours, level_qualities, reconstruction_error
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from tests.benchmarks.harness import Row, command_line, device_name, write_results

SIZES = (256, 256, 256)
Coded = tuple[Tensor, float, ResidualKMeans | None]
"""Codes [N, L], error over variance, and the quantiser where it is ours."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One fit; lists are joined to text after averaging."""

    error: float
    used_percent: float
    entropy_1: float
    entropy_2: float
    entropy_3: float
    colliding_percent: float
    largest_group: float
    colliding_after: float
    purity_1: float
    purity_2: float
    neighbours_1: float
    neighbours_2: float
    neighbours_3: float
    co_occurring_1: float
    seconds: float


def prepare(name: str, vectors: Path) -> None:
    """Number the first attribute of each item, and read neighbours in histories as rows."""
    import polars as pl

    folder = Path(os.environ["RECSYS_DATA_MIRROR"]) / f"amazon-{name}"
    frame = pl.read_parquet(folder / "items.parquet")
    names = [(found or ["none"])[0] for found in frame["attributes"].to_list()]
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    row = {item: index for index, item in enumerate(frame["item"].to_list())}
    events = pl.read_parquet(folder / "interactions.parquet")
    user, item = events.columns[:2]
    pairs: list[tuple[int, int]] = []
    for history in events.group_by(user, maintain_order=True).agg(item)[item].to_list():
        pairs += pairwise([row[item] for item in history[:-2] if item in row])
    categories = np.array([numbers[name] for name in names])
    np.savez_compressed(vectors / f"{name}_side.npz", categories=categories, pairs=np.array(pairs))


def kmeans(items: Tensor, seed: int, *, balanced: bool) -> Coded:
    config = ResidualKMeansConfig(
        level_sizes=SIZES, kmeans=KMeansConfig(balanced=balanced), seed=seed
    )
    return coded(ResidualKMeans.fit(items, config), items)


def coded(quantizer: ResidualKMeans, items: Tensor) -> Coded:
    codes = quantizer.encode(items)
    return codes.long(), reconstruction_error(quantizer, items, codes), quantizer


def turned(items: Tensor) -> Tensor:
    """Centre and turn onto the principal components."""
    centred = items - items.mean(0)
    return centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)


def product(items: Tensor, seed: int) -> Coded:
    """Quantise each part of the PCA, components dealt to the parts in turn."""
    components = turned(items)
    codes, error = [], 0.0
    for level in range(len(SIZES)):
        part = components[:, level :: len(SIZES)].contiguous()
        config = ResidualKMeansConfig(level_sizes=SIZES[:1], seed=seed)
        quantizer = ResidualKMeans.fit(part, config)
        code = quantizer.encode(part)
        error += float((part - quantizer.decode(code)).square().sum())
        codes.append(code[:, 0])
    return torch.stack(codes, dim=1).long(), error / float(components.square().sum()), None


def finite_scalar(items: Tensor, seed: int) -> Coded:
    """Round two components per level to 16 quantiles each."""
    components = turned(items)
    codes, rebuilt = [], torch.zeros_like(components)
    for component in range(2 * len(SIZES)):
        values = components[:, component].contiguous()
        bins = (values.argsort().argsort() * 16) // len(values)
        sums = torch.zeros(16, device=values.device).index_add_(0, bins, values)
        rebuilt[:, component] = (sums / torch.bincount(bins, minlength=16))[bins]
        codes.append(bins)
    joined = torch.stack([16 * codes[2 * i] + codes[2 * i + 1] for i in range(len(SIZES))], dim=1)
    error = (components - rebuilt).square().sum() / components.square().sum()
    return joined, float(error), None


def residual_vq(items: Tensor, seed: int, num_steps: int = 60) -> Coded:
    """Train vector-quantize-pytorch's ResidualVQ on all rows a step."""
    from vector_quantize_pytorch import ResidualVQ

    torch.manual_seed(seed)
    peer = ResidualVQ(
        dim=items.shape[1],
        num_quantizers=len(SIZES),
        codebook_size=SIZES[0],
        kmeans_init=True,
        threshold_ema_dead_code=2,
    ).to(items.device)
    with torch.no_grad():
        for _ in range(num_steps):
            peer.train()(items)
        rebuilt, codes, _ = peer.eval()(items)
    return codes.long(), error_of(items, rebuilt), None


def faiss_residual(items: Tensor, seed: int, beam: int) -> Coded:
    """Train faiss's ResidualQuantizer; its own seed is fixed, so the rows' order varies."""
    import faiss

    generator = torch.Generator().manual_seed(seed)
    peer = faiss.ResidualQuantizer(items.shape[1], len(SIZES), 8)
    peer.max_beam_size = beam
    array = items.cpu().numpy()
    peer.train(array[torch.randperm(len(items), generator=generator).numpy()])
    packed = peer.compute_codes(array)
    rebuilt = torch.from_numpy(peer.decode(packed))
    return torch.from_numpy(packed).long(), error_of(items.cpu(), rebuilt), None


def error_of(items: Tensor, rebuilt: Tensor) -> float:
    variance = (items - items.mean(0)).square().sum()
    return float((items - rebuilt).square().sum() / variance)


def methods(device: str) -> dict[str, Callable[[Tensor, int], Coded]]:
    found: dict[str, Callable[[Tensor, int], Coded]] = {
        "residual k-means": partial(kmeans, balanced=False),
        "residual k-means, balanced": partial(kmeans, balanced=True),
        "product": product,
        "finite scalar": finite_scalar,
    }
    if find_spec("vector_quantize_pytorch"):
        found["ResidualVQ, 60 steps (vector-quantize-pytorch)"] = residual_vq
    if find_spec("faiss") and device == "cpu":
        found["ResidualQuantizer, beam 1 (faiss)"] = partial(faiss_residual, beam=1)
        found["ResidualQuantizer, beam 5 (faiss)"] = partial(faiss_residual, beam=5)
    return found


def measured(
    items: Tensor, made: Coded, categories: Tensor, pairs: Tensor, seconds: float
) -> Measured:
    codes, error, quantizer = made
    queries = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))[:2000]
    queries = queries.to(codes.device)
    neighbours = content_neighbours(items.to(codes.device), queries, 10)
    levels = level_qualities(codes, SIZES, neighbours, queries, categories.to(codes.device))
    sizes = torch.unique(codes, dim=0, return_counts=True)[1]
    after = float("nan")
    if quantizer is not None:
        unique = resolve_collisions(quantizer, items, codes.int()).codes
        after = float(len(items) - len(torch.unique(unique, dim=0)))
    first = codes[:, 0].cpu()
    return Measured(
        error=error,
        used_percent=100 * min(level.utilisation for level in levels),
        entropy_1=levels[0].entropy_bits,
        entropy_2=levels[1].entropy_bits,
        entropy_3=levels[2].entropy_bits,
        colliding_percent=100 * (1 - len(sizes) / len(items)),
        largest_group=float(sizes.max()),
        colliding_after=after,
        purity_1=levels[0].purity or 0.0,
        purity_2=levels[1].purity or 0.0,
        neighbours_1=levels[0].neighbour_agreement,
        neighbours_2=levels[1].neighbour_agreement,
        neighbours_3=levels[2].neighbour_agreement,
        co_occurring_1=float((first[pairs[:, 0]] == first[pairs[:, 1]]).double().mean()),
        seconds=seconds,
    )


def compared(name: str, options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Average each method over the seeds: goals as rows, everything else as a table."""
    items, categories, pairs = loaded(name, options)
    rows, lines = [], []
    for label, make in methods(options.device).items():
        if options.methods and not any(wanted in label for wanted in options.methods):
            continue
        fits = []
        for seed in range(options.num_seeds):
            begin = time.perf_counter()
            made = make(items, seed)
            seconds = time.perf_counter() - begin
            fits.append(asdict(measured(items, made, categories, pairs, seconds)))
        average = {key: mean(fit[key] for fit in fits) for key in fits[0]}
        least = min(fit["used_percent"] for fit in fits)
        rows.append(
            Row(
                name=f"{name}, {label}: codes used, least level of {options.num_seeds} seeds",
                value=least,
                unit="%",
                at_least=95,
            )
        )
        rows.append(Row(name=f"{name}, {label}: error", value=average["error"], unit="of variance"))
        cells = [f"{value:.3g}" if value == value else "" for value in average.values()]
        lines.append("| " + " | ".join([name, label, *cells]) + " |")
    return rows, lines


def loaded(name: str, options: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    items = torch.from_numpy(np.load(options.vectors / f"{name}_minilm.npy")).float()[1:]
    side = np.load(options.vectors / f"{name}_side.npz")
    categories, pairs = (torch.from_numpy(side[part]) for part in ("categories", "pairs"))
    return items.to(options.device), categories, pairs


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--vectors", type=Path, required=True, help="folder of <set>_minilm.npy")
    parser.add_argument("--prepare", action="store_true", help="write <set>_side.npz and stop")
    parser.add_argument("--sets", nargs="+", default=["beauty", "sports", "toys"])
    parser.add_argument("--methods", nargs="+", help="parts of the names of methods to run")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--name", default="quantizers")
    return parser.parse_args()


def main() -> None:
    options = parsed_arguments()
    rows: list[Row] = []
    names = [name.replace("_", " ") for name in Measured.__dataclass_fields__]
    header = "| " + " | ".join(["set", "quantiser", *names]) + " |"
    lines = [header, "| " + " | ".join(["---"] * (len(names) + 2)) + " |"]
    for name in options.sets:
        if options.prepare:
            prepare(name, options.vectors)
        else:
            more_rows, more_lines = compared(name, options)
            rows, lines = rows + more_rows, lines + more_lines
    notes = (
        f"3 levels x 256; means of {options.num_seeds} seeds. "
        "Neighbours: share of the 10 nearest by cosine with the same prefix.\n\n"
    )
    where = torch.cuda.get_device_name() if options.device == "cuda" else device_name()
    if not options.prepare:
        write_results(options.name, rows, notes=notes + "\n".join(lines), device=where)


if __name__ == "__main__":
    main()
