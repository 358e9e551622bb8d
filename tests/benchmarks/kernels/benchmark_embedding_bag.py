"""Time the embedding bags beside FBGEMM's TBE on one GPU; FBGEMM is left out where missing.

Both get the same ids, int64, and float32 results, and fused exact row-wise Adagrad. Forward and
backward are timed together, the sort with them; the backward is the difference to the forward
alone. Nothing is timed in a case whose results disagree.
"""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.layout import OptimizerConfig, TableLayout
from recsys.kernels.embedding_bag.op import FusedEmbeddingBags
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.comparison import (
    BagShape,
    beside_peer,
    copy_rate,
    free_memory,
    geometric_mean_row,
    peak_bytes,
    zipf_ids,
)
from tests.benchmarks.kernels.measure import median_ms

INPUT_SETS = 4
OTHER_STEPS = {
    "thread": "forward + backward in one thread",
    "graph": "forward + backward as a CUDA graph",
}


class Case(NamedTuple):
    shape: BagShape
    alpha: float

    @property
    def label(self) -> str:
        return f"{self.shape.name}, alpha {self.alpha:g}"


class Batch(NamedTuple):
    ids: Tensor
    offsets: Tensor
    grad: Tensor


def anchor_cases() -> list[Case]:
    fp32, fp16 = torch.float32, torch.float16
    shapes = [
        ("one-hot 26x1Mx128 fp32", 26, 1_000_000, 128, 16384, 1, fp32),
        ("multi-hot 32x1Mx128 fp32", 32, 1_000_000, 128, 4096, 20, fp32),
        ("multi-hot 32x1Mx128 fp16", 32, 1_000_000, 128, 4096, 20, fp16),
        ("history 1x10Mx64 fp32", 1, 10_000_000, 64, 4096, 200, fp32),
        ("wide 8x1Mx256 fp32", 8, 1_000_000, 256, 2048, 50, fp32),
    ]
    return [Case(BagShape(*shape), alpha) for shape in shapes for alpha in (0.0, 1.15)]


def grid_cases() -> list[Case]:
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return [
        Case(BagShape(f"L{length} D{dim} {name}", 8, 1_000_000, dim, 8192, length, dtype), 0.0)
        for length in (1, 5, 20, 100)
        for dim in (32, 64, 128, 256)
        for name, dtype in types.items()
    ]


def make_batches(case: Case) -> list[Batch]:
    generator = torch.Generator("cuda").manual_seed(0)
    bags = case.shape.tables * case.shape.batch
    offsets = torch.arange(bags + 1, device="cuda") * case.shape.length
    return [
        Batch(
            torch.cat(
                [
                    zipf_ids(
                        case.shape.rows, case.shape.batch * case.shape.length, case.alpha, generator
                    )
                    for _ in range(case.shape.tables)
                ]
            ),
            offsets,
            torch.randn(
                case.shape.batch,
                case.shape.tables * case.shape.dim,
                generator=generator,
                device="cuda",
            ),
        )
        for _ in range(INPUT_SETS)
    ]


def make_ours(case: Case) -> FusedEmbeddingBags:
    layout = TableLayout(
        (case.shape.rows,) * case.shape.tables,
        (case.shape.dim,) * case.shape.tables,
        tuple(range(case.shape.tables)),
    )
    bags = FusedEmbeddingBags(
        layout,
        OptimizerConfig(epsilon=1e-8),
        learning_rate=0.01,
        dtype=case.shape.dtype,
        device="cuda",
    )
    bags.weights.uniform_(-0.05, 0.05)
    return bags


def make_fbgemm(case: Case, weights: Tensor, *, deterministic: bool = False) -> torch.nn.Module:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    names = {torch.float32: "FP32", torch.float16: "FP16", torch.bfloat16: "BF16"}
    place = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    tbe = SplitTableBatchedEmbeddingBagsCodegen(
        [(case.shape.rows, case.shape.dim, *place)] * case.shape.tables,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        weights_precision=SparseType[names[case.shape.dtype]],
        output_dtype=SparseType.FP32,
        learning_rate=0.01,
        eps=1e-8,
        stochastic_rounding=False,
        device=torch.device("cuda"),
    )
    for table, own in enumerate(tbe.split_embedding_weights()):
        size = own.numel()
        own.copy_(weights[table * size : (table + 1) * size].view_as(own))
    return tbe


def times_of(module: torch.nn.Module, batches: list[Batch]) -> tuple[float, float, int]:
    """Time forward, and forward with backward, in ms; and the most memory that a step adds.

    Of two medians the lesser: a host that others use too stalls launches for whole medians.
    """

    def forward(batch: Batch) -> None:
        with torch.no_grad():
            module(batch.ids, batch.offsets)

    def both(batch: Batch) -> None:
        module(batch.ids, batch.offsets).backward(batch.grad)

    forwards = [lambda batch=batch: forward(batch) for batch in batches]
    steps = [lambda batch=batch: both(batch) for batch in batches]
    fwd = min(median_ms(forwards) for _ in range(2))
    step = min(median_ms(steps) for _ in range(2))
    return fwd, step, peak_bytes(lambda: both(batches[0]))


def one_thread_ms(module: torch.nn.Module, batches: list[Batch]) -> float:
    """Time forward with backward where the backward runs in the calling thread, in ms.

    By default it runs in a thread of autograd's, whose waking can take longer than a small step.
    """

    def both(batch: Batch) -> None:
        with torch.autograd.set_multithreading_enabled(False):
            module(batch.ids, batch.offsets).backward(batch.grad)

    return median_ms([lambda batch=batch: both(batch) for batch in batches])


def graph_ms(module: torch.nn.Module, batches: list[Batch]) -> float | None:
    """Time forward with backward captured as CUDA graphs, in ms; None where that is refused."""
    graphs = []
    stream = torch.cuda.Stream()
    try:
        with torch.cuda.stream(stream):
            for _ in range(3):
                module(batches[0].ids, batches[0].offsets).backward(batches[0].grad)
        torch.cuda.synchronize()
        for batch in batches:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                module(batch.ids, batch.offsets).backward(batch.grad)
        return median_ms([graph.replay for graph in graphs])
    except RuntimeError as error:
        print(f"not captured: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
        return None


def floors(case: Case, batch: Batch, rate: float) -> tuple[float, float]:
    """Bytes that forward and backward must move, over the copy rate, in ms."""
    first = torch.arange(case.shape.tables, device="cuda") * case.shape.rows
    rows = (batch.ids.view(case.shape.tables, -1) + first[:, None]).unique().numel()
    row_bytes = rows * case.shape.dim * case.shape.dtype.itemsize
    ids, out = batch.ids.numel() * 8, batch.grad.numel() * 4
    return (row_bytes + ids + out) / rate * 1e3, (out + 2 * row_bytes + 8 * rows + ids) / rate * 1e3


def agree(ours: torch.nn.Module, peer: torch.nn.Module, batch: Batch, case: Case) -> bool:
    """Compare results before and after one update."""
    limit = 1e-5 if case.shape.dtype == torch.float32 else 2e-3
    for _ in range(2):
        one, two = ours(batch.ids, batch.offsets), peer(batch.ids, batch.offsets)
        if not float((one - two).norm() / two.norm()) < limit:
            return False
        one.backward(batch.grad)
        two.backward(batch.grad)
    return True


def run_case(
    case: Case,
    rate: float,
    *,
    fbgemm: bool,
    deterministic: bool,
    graphs: bool,
    one_thread: bool,
) -> dict[str, float]:
    batches = make_batches(case)
    ours = make_ours(case)
    found: dict[str, float] = {}
    # FBGEMM trains no bf16 tables on CUDA.
    if fbgemm and case.shape.dtype != torch.bfloat16:
        tbe = make_fbgemm(case, ours.weights)
        if not agree(ours, tbe, batches[0], case):
            print(f"{case.label}: results disagree with FBGEMM, nothing timed")
            return {}
        found["peer_fwd"], found["peer_step"], found["peer_peak"] = times_of(tbe, batches)
        if one_thread:
            found["peer_thread"] = one_thread_ms(tbe, batches)
        if graphs:
            found["peer_graph"] = graph_ms(tbe, batches) or 0.0
        del tbe
        gc.collect()
        if deterministic and case.alpha:
            strict = make_fbgemm(case, ours.weights, deterministic=True)
            found["strict_step"] = times_of(strict, batches)[1]
            torch.use_deterministic_algorithms(False)
            del strict
            gc.collect()
    found["fwd"], found["step"], found["peak"] = times_of(ours, batches)
    if one_thread:
        found["thread"] = one_thread_ms(ours, batches)
    if graphs:
        found["graph"] = graph_ms(ours, batches) or 0.0
    found["fwd_floor"], found["bwd_floor"] = floors(case, batches[0], rate)
    print(case.label, {key: round(value, 4) for key, value in found.items()}, flush=True)
    return found


def rows_of(case: Case, found: dict[str, float]) -> list[Row]:
    rows = []
    share = found["fwd_floor"] / found["fwd"]
    back = found["bwd_floor"] / (found["step"] - found["fwd"])
    for key, name in (("fwd", "forward"), ("step", "forward + backward")):
        goal = 1 if key == "step" else None
        label, peer = f"{case.label}: {name}", found.get(f"peer_{key}")
        rows.append(beside_peer(label, found[key], "FBGEMM", peer, goal))
    uniform = case.alpha == 0 and case.shape.dtype == torch.float32
    for name, value, bar in (("forward", share, 0.7), ("backward", back, 0.5)):
        rows.append(
            Row(
                name=f"{case.label}: share of the copy rate, {name}",
                value=value,
                at_least=bar if uniform else None,
            )
        )
    if "peer_peak" in found:
        ratio = found["peak"] / found["peer_peak"]
        rows.append(
            Row(
                name=f"{case.label}: peak memory of a step over FBGEMM's", value=ratio, at_most=1.25
            )
        )
    return rows + other_modes(case, found)


def other_modes(case: Case, found: dict[str, float]) -> list[Row]:
    """Rows of one thread, CUDA graphs and FBGEMM's deterministic mode."""
    rows = []
    for key, name in OTHER_STEPS.items():
        if found.get(key):
            label, peer = f"{case.label}: {name}", found.get(f"peer_{key}")
            rows.append(beside_peer(label, found[key], "FBGEMM", peer))
    if found.get("graph"):
        share = found["bwd_floor"] / (found["graph"] - found["fwd"])
        name = f"{case.label}: share of the copy rate, backward of the CUDA graph"
        rows.append(Row(name=name, value=share))
    if "strict_step" in found:
        name, strict = f"{case.label}: forward + backward", found["strict_step"]
        rows.append(beside_peer(name, found["step"], "FBGEMM deterministic", strict))
    return rows


def means(found: list[dict[str, float]]) -> list[Row]:
    """Geometric means of the cases against FBGEMM."""
    rows = []
    for key, name, bar in (
        ("fwd", "forward", 1.3),
        ("step", "forward + backward", 2.0),
        *((key, name, 2.0) for key, name in OTHER_STEPS.items()),
    ):
        both = [one for one in found if one.get(key) and one.get(f"peer_{key}")]
        if not both:
            continue
        ratios = [one[f"peer_{key}"] / one[key] for one in both]
        rows.append(geometric_mean_row(f"{name} against FBGEMM", ratios, bar))
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--grid", action="store_true", help="L x D x type instead, 48 cases")
    parser.add_argument("--deterministic", action="store_true", help="also FBGEMM's such mode")
    parser.add_argument("--graphs", action="store_true", help="also both as CUDA graphs")
    parser.add_argument(
        "--one-thread", action="store_true", help="also both with the backward in our thread"
    )
    parser.add_argument("--no-fbgemm", action="store_true", help="time ours alone")
    arguments = parser.parse_args()
    fbgemm = not arguments.no_fbgemm
    if fbgemm:
        import fbgemm_gpu  # noqa: F401
    rate = copy_rate()
    cases = grid_cases() if arguments.grid else anchor_cases()
    found: list[tuple[Case, dict[str, float]]] = []
    try:
        for case in cases:
            times = run_case(
                case,
                rate,
                fbgemm=fbgemm,
                deterministic=arguments.deterministic,
                graphs=arguments.graphs,
                one_thread=arguments.one_thread,
            )
            found.append((case, times))
            free_memory()
    except KeyboardInterrupt:
        print(f"interrupted: {len(found)} of {len(cases)} cases are written")
    rows = [Row(name="device copy", value=rate / 1e12, unit="TB/s")]
    for case, times in found:
        wrong = Row(name=f"{case.label}: disagrees", value=0, met=False)
        rows += rows_of(case, times) if times else [wrong]
    rows += means([times for _, times in found if times])
    name = "embedding_bag_grid" if arguments.grid else "embedding_bag"
    notes = "" if len(found) == len(cases) else f"Interrupted: {len(found)} of {len(cases)} cases."
    write_results(name, rows, notes=notes, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
