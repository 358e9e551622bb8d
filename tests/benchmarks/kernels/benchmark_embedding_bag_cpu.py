"""Time the CPU's ways to look up and to move embedding rows, beside FBGEMM's tables.

The five cases of the GPU's benchmark, smaller. FBGEMM's peer is its fused table called directly,
with ids that already lie as it wants them; ours are layers as a model calls them, with their check
of the ids. A step is a forward and a backward that moves the rows, from
one gradient of all features side by side, as a layer's joined results give it; what results by
feature would cost is measured apart. All get the same
weights, ids and gradients; nothing is timed where results disagree. Times are of the processor,
with one thread; a way and FBGEMM take turns, batch by batch, and in which is first.

Axes: T tables, B batch, L ids a bag, D width.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import Backend, EmbeddingBags, RowUpdateConfig, TableConfig
from recsys.layers.embedding.fbgemm_updates import fbgemm_tables
from tests.benchmarks.harness import Row, command_line, device_name, write_results
from tests.benchmarks.kernels.comparison import BagShape, beside_peer, geometric_mean_row, zipf_ids

INPUT_SETS = 4
ALPHAS = (0.0, 1.15)
BAR = 0.9
"""The layer that ``auto`` gives may take a tenth longer than FBGEMM."""
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}


def label_of(shape: BagShape) -> str:
    kind = str(shape.dtype).removeprefix("torch.")
    sizes = f"{shape.tables}x{shape.rows // 1000}kx{shape.dim}"
    return f"{shape.name} {sizes} {kind}, B {shape.batch}, L {shape.length}"


def configs_of(shape: BagShape) -> list[TableConfig]:
    return [
        TableConfig(
            name=f"t{place}", num_rows=shape.rows, embedding_dim=shape.dim, features=(f"f{place}",)
        )
        for place in range(shape.tables)
    ]


class Batch(NamedTuple):
    """The same ids as FBGEMM takes them and as a layer does, and a gradient [B, T * D]."""

    ids: Tensor
    offsets: Tensor
    features: JaggedBatch
    grad: Tensor


class Way(NamedTuple):
    """One way to do it: a forward, and a step, None where it cannot."""

    forward: Callable[[Batch], Tensor | list[Tensor]]
    step: Callable[[Batch], object] | None


def shapes_of(rows: int, batch: int) -> list[BagShape]:
    fp32, fp16 = torch.float32, torch.float16
    return [
        BagShape("one-hot", 26, rows, 128, batch, 1, fp32),
        BagShape("multi-hot", 32, rows, 128, batch, 20, fp32),
        BagShape("multi-hot", 32, rows, 128, batch, 20, fp16),
        BagShape("history", 1, 10 * rows, 64, batch, 200, fp32),
        BagShape("wide", 8, rows, 256, batch, 50, fp32),
    ]


def batches_of(shape: BagShape, alpha: float) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    own = torch.arange(shape.batch + 1) * shape.length
    made = []
    for _ in range(INPUT_SETS):
        parts = [
            zipf_ids(shape.rows, shape.batch * shape.length, alpha, generator)
            for _ in range(shape.tables)
        ]
        features = {f"f{place}": Jagged(ids, own) for place, ids in enumerate(parts)}
        offsets = torch.arange(shape.tables * shape.batch + 1) * shape.length
        grad = torch.randn(shape.batch, shape.tables * shape.dim, generator=generator)
        made.append(Batch(torch.cat(parts), offsets, JaggedBatch(features), grad))
    return made


class Unfilled(EmbeddingBags):
    """A layer that draws no weights, since they are copied."""

    def reset_parameters(self) -> None: ...


def layer_way(
    backend: Backend, shape: BagShape, weights: list[Tensor], rule: str, *, apart: bool = False
) -> Way:
    """Look up dense tables, and move rows, in a layer each as a model would.

    ``apart``: take results by feature, though side by side is what is wanted.
    """
    layer = Unfilled(configs_of(shape), backend)
    for place, own in enumerate(weights):
        layer.weight(f"t{place}").data.copy_(own)

    def forward(batch: Batch) -> list[Tensor]:
        with torch.no_grad():
            return list(layer(batch.features).values())

    def step(batch: Batch) -> None:
        if layer.updates is None:
            layer.update_rows(RowUpdateConfig(rule=rule))
        layer.begin_step(0.01)
        if apart:
            pooled = torch.cat(list(layer(batch.features).values()), dim=1)
        else:
            pooled = layer.joined(batch.features)
        layer.may_move(pooled.new_zeros(()))
        pooled.backward(batch.grad)  # type: ignore[no-untyped-call]

    return Way(forward, step)


def fbgemm_way(shape: BagShape, weights: list[Tensor], rule: str) -> Way:
    """FBGEMM's table, called directly; it has no Adam on a CPU."""
    config = RowUpdateConfig(rule=rule if rule != "adam" else "sgd")
    places = list(range(shape.tables))
    tbe = fbgemm_tables(configs_of(shape), places, config, torch.device("cpu"), shape.dtype)
    for view, own in zip(tbe.split_embedding_weights(), weights, strict=True):
        view.copy_(own)
    tbe.set_learning_rate(0.01)

    def forward(batch: Batch) -> Tensor:
        with torch.no_grad():
            return tbe(batch.ids, batch.offsets)

    def step(batch: Batch) -> None:
        tbe(batch.ids, batch.offsets).backward(batch.grad)

    return Way(forward, None if rule == "adam" else step)


def torch_half_way(shape: BagShape, weights: list[Tensor]) -> Way:
    """Plain torch over half tables, which layers do not have; forward alone."""

    def forward(batch: Batch) -> list[Tensor]:
        return [
            functional.embedding_bag(
                one.values, weights[place], one.offsets, mode="sum", include_last_offset=True
            )
            for place, one in enumerate(batch.features.features.values())
        ]

    return Way(forward, None)


def ways_of(shape: BagShape, rule: str) -> dict[str, Callable[[list[Tensor]], Way]]:
    """Name the ways, FBGEMM first; each is built when its turn comes."""
    ways: dict[str, Callable[[list[Tensor]], Way]] = {
        "FBGEMM": lambda weights: fbgemm_way(shape, weights, rule)
    }
    if shape.dtype == torch.float32:
        backends: tuple[Backend, ...] = ("auto", "torch", "torchrec")
        for backend in backends:
            if backend != "torchrec" or rule != "adam":
                ways[f"layer, {backend}"] = lambda weights, backend=backend: layer_way(
                    backend, shape, weights, rule
                )
        if rule != "adam":
            ways["layer, auto, apart"] = lambda weights: layer_way(
                "auto", shape, weights, rule, apart=True
            )
    else:
        ways["torch"] = lambda weights: torch_half_way(shape, weights)
    return ways


def joined(found: Tensor | list[Tensor]) -> Tensor:
    whole = found if isinstance(found, Tensor) else torch.cat(found, dim=1)
    return whole.float()


def results_of(way: Way, batch: Batch) -> list[Tensor]:
    """Look up before and after a step."""
    found = [joined(way.forward(batch)).clone()]
    if way.step is not None:
        way.step(batch)
        found.append(joined(way.forward(batch)).clone())
    return found


def agree(found: list[Tensor], truth: list[Tensor], limit: float) -> bool:
    return all(
        float((one - two).norm() / two.norm()) < limit
        for one, two in zip(found, truth, strict=False)
    )


def timed(
    call: Callable[[Batch], object], peer: Callable[[Batch], object] | None, batches: list[Batch]
) -> tuple[float, float | None]:
    """Take the median processor time of a call and of its peer, in ms, turn by turn.

    Others on the machine lengthen no such time but by the caches and memory that they share, and
    so for both.
    """
    calls = [call] if peer is None else [call, peer]
    took: list[list[float]] = [[] for _ in calls]
    for one in calls:
        one(batches[-1])
    while len(took[0]) < 3 or sum(map(sum, took)) < 0.25 * len(calls):
        done = len(took[0])
        batch = batches[done % INPUT_SETS]
        pairs = list(zip(calls, took, strict=True))
        # Whoever comes second finds the batch in the caches, so each does as often.
        for one, times in pairs if done // INPUT_SETS % 2 else reversed(pairs):
            begin = time.process_time()
            one(batch)
            times.append(time.process_time() - begin)
    own, *others = (statistics.median(times) * 1e3 for times in took)
    return own, others[0] if others else None


Times = dict[tuple[float, str, str], tuple[float, float | None]]


def times_of(shape: BagShape, rule: str) -> Times:
    """Time every way beside FBGEMM: (alpha, way, what) to the milliseconds of both."""
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.empty(shape.rows, shape.dim).uniform_(-0.05, 0.05, generator=generator)
        for _ in range(shape.tables)
    ]
    weights = [one.to(shape.dtype) for one in weights]
    batches = {alpha: batches_of(shape, alpha) for alpha in ALPHAS}
    found: Times = {}
    truth: list[Tensor] = []
    peer: Way | None = None
    for name, build in ways_of(shape, rule).items():
        way = build(weights)
        results = results_of(way, batches[0.0][0])
        truth = results if len(results) > len(truth) else truth
        if not agree(results, truth, TOLERANCE[shape.dtype]):
            print(f"{label_of(shape)}: {name} disagrees, not timed")
            continue
        if peer is None:
            peer = way
            continue
        for alpha in ALPHAS:
            if rule != "adam":
                found[alpha, name, "forward"] = timed(way.forward, peer.forward, batches[alpha])
            if way.step is not None:
                found[alpha, name, "forward + backward"] = timed(
                    way.step, peer.step, batches[alpha]
                )
        del way
        gc.collect()
    return found


def rows_of(shape: BagShape, rule: str, found: Times) -> list[Row]:
    rows = []
    for (alpha, name, what), (ms, peer) in found.items():
        rule_of = f", {rule}" if what != "forward" else ""
        label = f"{label_of(shape)}, alpha {alpha:g}: {what}{rule_of}, {name}"
        rows.append(beside_peer(label, ms, "FBGEMM", peer, BAR if name == "layer, auto" else None))
    return rows


def means(rows: list[Row]) -> list[Row]:
    """Geometric means against FBGEMM, for each way and direction."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.ratio is not None:
            found.setdefault(row.name.split(": ", 1)[1], []).append(row.ratio)
    made = []
    for what, ratios in found.items():
        bar = BAR if what.endswith("layer, auto") else None
        made.append(geometric_mean_row(what, ratios, bar))
    return made


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=25_000, help="of a table; the history's tenth")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dry", action="store_true", help="write no result")
    arguments = parser.parse_args()
    # More would count the time that threads wait for each other.
    torch.set_num_threads(1)
    rows: list[Row] = []
    for rule in ("rowwise_adagrad", "adam"):
        for shape in shapes_of(arguments.rows, arguments.batch):
            if rule == "adam" and (shape.dtype != torch.float32 or shape.name == "wide"):
                continue
            new = rows_of(shape, rule, times_of(shape, rule))
            for row in new:
                print(f"{row.name}: {row.value:.3f} {row.ratio or 0:.2f}x", flush=True)
            rows += new
            gc.collect()
    rows += means(rows)
    if not arguments.dry:
        device = f"{device_name()}, 1 thread"
        write_results("embedding_bag_cpu", rows, device=device, notes=__doc__ or "")


if __name__ == "__main__":
    main()
