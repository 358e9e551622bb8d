"""Time residual k-means from vectors to unique IDs, beside faiss and vector-quantize-pytorch.

The vectors are made on the device: sums of codes of three random codebooks and noise. Error is
squared error over variance. Peers fit on the same rows; faiss with beam 1 (greedy, as ours) and
with its default beam on a share of the rows, extrapolated. Luck decides much of the error on such
vectors, so ours and ResidualVQ can be fitted from several seeds; times are then medians.
"""

from __future__ import annotations

import argparse
from statistics import mean, median
from typing import Literal

import torch
from torch import Tensor

from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.collisions import resolve_collisions
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.quality import reconstruction_error
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig
from tests.benchmarks.harness import Row, command_line, device_name, timed, write_results

Begin = Literal["auto", "k-means++", "sampled"]


def made_vectors(num_rows: int, dim: int, device: str) -> Tensor:
    """Make clustered vectors [N, D] in chunks."""
    generator = torch.Generator(device).manual_seed(0)
    books = [
        torch.randn(size, dim, device=device, generator=generator) * weight
        for size, weight in ((64, 1.0), (512, 0.7), (8192, 0.5))
    ]
    out = torch.empty(num_rows, dim, device=device)
    for rows in out.split(500_000):
        rows.normal_(generator=generator).mul_(0.4)
        for book in books:
            chosen = torch.randint(len(book), (len(rows),), device=device, generator=generator)
            rows += book[chosen]
    return out


def ours(
    vectors: Tensor, sizes: tuple[int, ...], device: str, *, goal: float | None, balanced: bool
) -> list[Row]:
    """Fit, encode and resolve; the goal is for the sum, in seconds."""
    config = ResidualKMeansConfig(level_sizes=sizes, kmeans=KMeansConfig(balanced=balanced))
    fit, quantizer = timed(lambda: ResidualKMeans.fit(vectors, config))
    encode, codes = timed(lambda: quantizer.encode(vectors))
    resolve, unique = timed(lambda: resolve_collisions(quantizer, vectors, codes))
    label = f"{len(vectors):,} x {vectors.shape[1]}, {len(sizes)} x {sizes[0]}"
    label += ", balanced" if balanced else ""
    ids = SemanticIds.of_items(unique.codes, level_sizes=sizes, quantizer_digest=quantizer.digest)
    total = fit + encode + resolve
    before = len(vectors) - len(torch.unique(codes, dim=0))
    used = min(len(codes[:, level].unique()) / size for level, size in enumerate(sizes))
    return [
        Row(name=f"{label}: fit", value=fit, unit="s"),
        Row(name=f"{label}: encode", value=encode, unit="s"),
        Row(name=f"{label}: make unique", value=resolve, unit="s"),
        Row(name=f"{label}: all three", value=total, unit="s", at_most=goal),
        Row(
            name=f"{label}: error",
            value=reconstruction_error(quantizer, vectors, codes),
            unit="of variance",
        ),
        Row(
            name=f"{label}: error of the unique codes",
            value=reconstruction_error(quantizer, vectors, unique.codes),
            unit="of variance",
        ),
        Row(name=f"{label}: collisions before", value=before, unit="items"),
        Row(
            name=f"{label}: collisions after",
            value=len(vectors) - len(ids.item_rows),
            unit="items",
            goal="0",
            met=len(ids.item_rows) == len(vectors),
        ),
        Row(
            name=f"{label}: codes used, least level",
            value=100 * used,
            unit="%",
            at_least=95,
        ),
    ]


def variance(vectors: Tensor) -> float:
    return float((vectors - vectors.mean(0)).square().sum(1).mean())


def faiss_rows(
    vectors: Tensor, sizes: tuple[int, ...], beams: list[int], total: float
) -> list[Row]:
    """Train and encode with faiss.ResidualQuantizer; ``total`` is our time without collisions."""
    import faiss

    array = vectors.numpy()
    train_rows = min(ResidualKMeansConfig().max_train_rows, len(vectors))
    rows = []
    for beam in beams:
        share = 1 if beam == 1 else 20
        peer = faiss.ResidualQuantizer(
            vectors.shape[1], len(sizes), int(torch.tensor(sizes[0]).log2())
        )
        peer.max_beam_size = beam
        some = array[: len(array) // share]
        trained = array[: train_rows // share]
        fit, _ = timed(lambda q=peer, x=trained: q.train(x))
        encode, packed = timed(lambda q=peer, x=some: q.compute_codes(x))
        rebuilt = torch.from_numpy(peer.decode(packed))
        error = float((vectors[: len(some)] - rebuilt).square().sum(1).mean()) / variance(vectors)
        seconds = share * (fit + encode)
        name = f"faiss ResidualQuantizer, beam {beam}" + (
            f", 1/{share} of rows" if share > 1 else ""
        )
        rows.append(Row(name=f"{name}: fit and encode", value=seconds, unit="s", ours=total))
        rows.append(Row(name=f"{name}: error", value=error, unit="of variance"))
    return rows


def over_seeds(
    vectors: Tensor, sizes: tuple[int, ...], device: str, num_seeds: int, begin: Begin
) -> list[Row]:
    """Fit ours from several seeds: median seconds of fit and encode, mean error, equal bits."""
    times, errors, digests = [], [], []
    for seed in [*range(num_seeds), 0]:
        kmeans = KMeansConfig(initialisation=begin)
        config = ResidualKMeansConfig(level_sizes=sizes, kmeans=kmeans, seed=seed)
        fit, quantizer = timed(lambda c=config: ResidualKMeans.fit(vectors, c))
        encode, codes = timed(lambda q=quantizer: q.encode(vectors))
        digests.append(quantizer.digest)
        times.append(fit + encode)
        errors.append(reconstruction_error(quantizer, vectors, codes))
    name = f"ours, {begin}, {num_seeds} seeds"
    same = float(digests[0] == digests[-1])
    return [
        Row(name=f"{name}: fit and encode, median", value=median(times), unit="s"),
        Row(name=f"{name}: error, mean", value=mean(errors[:-1]), unit="of variance"),
        Row(name=f"{name}: error, worst", value=max(errors), unit="of variance"),
        Row(
            name=f"ours, {begin}: seed 0 again has the same bits",
            value=same,
            goal="1",
            met=same == 1,
        ),
    ]


def vector_quantize_rows(
    vectors: Tensor,
    sizes: tuple[int, ...],
    device: str,
    ours: list[Row],
    options: argparse.Namespace,
) -> list[Row]:
    """Train vector-quantize-pytorch's ResidualVQ (k-means init, EMA, dead codes) and encode."""
    fits = [
        residual_vq(vectors, sizes, device, seed, options.peer_steps)
        for seed in range(options.num_seeds)
    ]
    seconds, error = median(fit[0] for fit in fits), mean(fit[1] for fit in fits)
    name = f"vector-quantize-pytorch ResidualVQ, {options.peer_steps} steps, {len(fits)} seeds"
    return [
        *(
            Row(
                name=f"{name}: {what}",
                value=value,
                unit=one.unit,
                ours=one.value,
                goal=goal,
                min_ratio=1,
            )
            for what, value, one, goal in (
                ("fit and encode, median", seconds, ours[0], "ours no slower"),
                ("error, mean", error, ours[1], "ours no larger"),
            )
        ),
        Row(
            name=f"{name}: codes used, least level",
            value=100 * min(fit[2] for fit in fits),
            unit="%",
        ),
    ]


def residual_vq(
    vectors: Tensor, sizes: tuple[int, ...], device: str, seed: int, num_steps: int
) -> tuple[float, float, float]:
    """Fit and encode once: seconds, error over variance, share of codes used."""
    from vector_quantize_pytorch import ResidualVQ

    torch.manual_seed(seed)
    peer = ResidualVQ(
        dim=vectors.shape[1],
        num_quantizers=len(sizes),
        codebook_size=sizes[0],
        kmeans_init=True,
        kmeans_iters=10,
        threshold_ema_dead_code=2,
    ).to(device)

    def train() -> None:
        peer.train()
        with torch.no_grad():
            for _ in range(num_steps):
                drawn = torch.randint(len(vectors), (16_384,), device=device)
                peer(vectors[drawn])

    def encode() -> tuple[Tensor, Tensor]:
        peer.eval()
        error, codes = torch.zeros((), dtype=torch.float64, device=device), []
        with torch.no_grad():
            for chunk in vectors.split(16_384):
                quantized, chosen, _ = peer(chunk)
                error += (quantized - chunk).square().sum(dtype=torch.float64)
                codes.append(chosen)
        return error / len(vectors), torch.cat(codes)

    fit, _ = timed(train)
    encoding, (error, codes) = timed(encode)
    used = min(len(codes[:, level].unique()) / size for level, size in enumerate(sizes))
    return fit + encoding, float(error) / variance(vectors), used


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--num-rows", type=int, default=1_000_000)
    parser.add_argument("--peer-steps", type=int, default=60, help="training steps of ResidualVQ")
    parser.add_argument(
        "--kinds", nargs="*", choices=["plain", "balanced"], default=["plain", "balanced"]
    )
    parser.add_argument("--num-seeds", type=int, default=1, help="of ours beside ResidualVQ")
    parser.add_argument(
        "--peers", nargs="*", choices=["faiss", "residual_vq"], default=["faiss", "residual_vq"]
    )
    parser.add_argument(
        "--initialisations",
        nargs="+",
        choices=["auto", "k-means++", "sampled"],
        default=[KMeansConfig().initialisation],
        help="of ours beside the peers, which are held against the first",
    )
    parser.add_argument("--faiss-beams", nargs="+", type=int, default=[1, 5])
    parser.add_argument(
        "--large", action="store_true", help="also 10 times the rows x 256, 4 x 1024"
    )
    parser.add_argument("--name", help="name of the results file")
    return parser.parse_args()


def main() -> None:
    options = parsed_arguments()
    device = options.device
    sizes = (256, 256, 256)
    if device == "cuda":
        warm_up = made_vectors(20_000, 64, device)
        ours(warm_up, (64, 64, 64), device, goal=None, balanced=True)
    vectors = made_vectors(options.num_rows, 384, device)
    goal = 180.0 if device == "cpu" else 10.0
    rows: list[Row] = []
    for kind in options.kinds:
        rows += ours(vectors, sizes, device, goal=goal, balanced=kind == "balanced")
    if options.peers:
        by_begin = [
            over_seeds(vectors, sizes, device, options.num_seeds, begin)
            for begin in options.initialisations
        ]
        rows += [row for of_begin in by_begin for row in of_begin]
        ours_seeds = by_begin[0]
    if "faiss" in options.peers and device == "cpu":
        rows += faiss_rows(vectors, sizes, options.faiss_beams, ours_seeds[0].value)
    if "residual_vq" in options.peers:
        rows += vector_quantize_rows(vectors, sizes, device, ours_seeds, options)
    if options.large:
        del vectors
        vectors = made_vectors(10 * options.num_rows, 256, device)
        large_goal = 60.0 if device == "cuda" else None
        for balanced in (False, True):
            rows += ours(vectors, (1024,) * 4, device, goal=large_goal, balanced=balanced)
        if device == "cuda":
            peak = torch.cuda.max_memory_allocated() / 2**30
            rows.append(Row(name="peak memory of the device", value=peak, unit="GiB"))
    where = torch.cuda.get_device_name() if device == "cuda" else device_name()
    write_results(options.name or f"kmeans_{device}", rows, device=where)


if __name__ == "__main__":
    main()
