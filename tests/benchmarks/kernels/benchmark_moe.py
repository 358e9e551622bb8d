"""Time a sparse mixture-of-experts layer on one GPU against torch's grouped products.

The layer is whole: router, sort, both products, weighted sum. ``torch`` is the same layer with the
router in plain torch and ``torch.nn.functional.grouped_mm``; ``batched`` pads blocks of rows. The
rate counts the operations of the chosen experts' products alone; the device's rate is that of one
large bf16 product, measured in the same run. A result that disagrees with float64 gets no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

import recsys.layers.moe.router as moe_routing
from recsys.kernels.choice import without
from recsys.layers.moe import experts as moe_experts
from recsys.layers.moe.experts import Experts, SparseMoe, SparseMoeConfig
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.comparison import error_row, largest_error
from tests.benchmarks.kernels.measure import median_ms
from tests.recsys.testing.experts import loop_over_experts

NUM_ROWS, DIM, NUM_EXPERTS, TOP_K = 16_384, 512, 32, 2
TOLERANCE = 2e-2
PROVIDERS = ("triton", "torch", "batched")
Times = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Size:
    """Rows and experts of a layer, all of which visit ``TOP_K`` experts."""

    name: str
    num_rows: int
    dim: int
    hidden_dim: int
    num_experts: int


RANKER = Size("the default ranker's layer: D 160, F 48, 8 experts", 64 * 200, 160, 48, 8)
SIZES = (
    RANKER,
    Size("a served list of 1,000", 1_000, 160, 48, 8),
    Size("D 512, F 1024, 32 experts", NUM_ROWS, DIM, 1_024, NUM_EXPERTS),
    Size("D 512, F 2048, 32 experts", NUM_ROWS, DIM, 2_048, NUM_EXPERTS),
)


@dataclass(frozen=True)
class Case:
    size: Size
    provider: str
    """``triton``, ``torch`` or ``batched``."""
    graph: bool

    @property
    def name(self) -> str:
        return f"{self.size.name}{', one CUDA graph' if self.graph else ''}"


def torch_grouped_experts(
    rows: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor
) -> Tensor:
    """Compute what ``routed_experts`` does by torch's grouped products."""
    slots = moe_experts.grouped_slots(experts, len(up))
    own = moe_experts.dispatch(rows, slots)
    hidden = functional.grouped_mm(own, up.transpose(1, 2), offs=slots.ends)
    hidden = functional.relu_(hidden)
    outputs = functional.grouped_mm(hidden, down.transpose(1, 2), offs=slots.ends)
    return moe_experts.collect(outputs, slots, weights.to(outputs.dtype))


@contextmanager
def by_torch() -> Iterator[None]:
    """Replace the Triton kernels of experts and routers by torch's grouped products."""
    with (
        patch.object(moe_experts, "routed_experts", torch_grouped_experts),
        patch.object(moe_routing, "can_route", lambda *_: False),
    ):
        yield


def provided(provider: str) -> AbstractContextManager[None]:
    """Choose what computes the layer."""
    if provider == "torch":
        return by_torch()
    return nullcontext() if provider == "triton" else without("routed_experts")


def matmul_rate() -> float:
    """Measure bf16 operations per second of one product of 8192 x 8192 matrices."""
    pairs = [
        [torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2)] for _ in range(3)
    ]

    def call(pair: list[Tensor]) -> Callable[[], Tensor]:
        return lambda: pair[0] @ pair[1]

    return 2 * 8192**3 / (median_ms([call(pair) for pair in pairs], ms=300) * 1e-3)


def layer_of(case: Case) -> SparseMoe:
    torch.manual_seed(0)
    size = case.size
    config = SparseMoeConfig(
        dim=size.dim,
        hidden_dim=size.hidden_dim,
        num_experts=size.num_experts,
        top_k=TOP_K,
    )
    layer = SparseMoe(config).cuda()
    # Routers stay in float32, in which choices are made.
    layer.experts.bfloat16()
    return layer


def worst_error(case: Case, rows: Tensor) -> float:
    """Largest error of the output and three gradients, by the largest true value."""
    layer = layer_of(case)
    routing = layer.router(rows[:2048])
    experts, weights = routing.experts, routing.weights.detach()
    grad = torch.randn(experts.shape[0], case.size.dim, device="cuda")

    def results(net: Experts, x: Tensor, wide: bool) -> list[Tensor]:
        leaves = [x.detach().requires_grad_(), net.up, net.down]
        if wide:
            leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
            out = loop_over_experts(*leaves, experts, weights.double())
        else:
            out = net(leaves[0], experts, weights)
        return [out, *torch.autograd.grad(out, leaves, grad.to(out.dtype))]

    found = results(layer.experts, rows[:2048], wide=False)
    truth = results(layer.experts, rows[:2048], wide=True)
    return largest_error(found, truth)


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """Record a call as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def times_of(case: Case, inputs: list[Tensor]) -> tuple[float, float]:
    """Milliseconds of forward, and of forward and backward."""
    layer = layer_of(case)
    leaves = [*layer.parameters()]
    grad = torch.randn_like(inputs[0])

    def forward(rows: Tensor) -> Callable[[], object]:
        def call() -> object:
            with torch.no_grad():
                return layer(rows).output

        return call

    def both(rows: Tensor) -> Callable[[], object]:
        x = rows.detach().requires_grad_()
        return lambda: torch.autograd.grad(layer(x).output, [x, *leaves], grad)

    layer.eval()
    calls = [forward(rows) for rows in inputs]
    if case.graph:
        calls = [captured(call) for call in calls]
    ahead = median_ms(calls)
    layer.train()
    calls = [both(rows) for rows in inputs]
    if case.graph:
        calls = [captured(call) for call in calls]
    return ahead, median_ms(calls)


def times_by_provider(size: Size, inputs: list[Tensor], graph: bool) -> Times:
    """Milliseconds of forward, and of forward and backward, by provider whose results are right."""
    found: Times = {}
    for provider in PROVIDERS:
        case = Case(size, provider, graph)
        with provided(provider):
            if worst_error(case, inputs[0]) < TOLERANCE:
                found[provider] = times_of(case, inputs)
    return found


def rows_of(size: Size, inputs: list[Tensor], rate: float) -> Iterator[Row]:
    with provided("triton"):
        yield error_row(size.name, worst_error(Case(size, "triton", False), inputs[0]), TOLERANCE)
    work = 4 * size.num_rows * TOP_K * size.dim * size.hidden_dim
    for graph in (False, True):
        times = times_by_provider(size, inputs, graph)
        case = Case(size, "triton", graph)
        for place, (what, factor) in enumerate((("forward", 1), ("forward + backward", 3))):
            ours = times["triton"][place]
            for peer in PROVIDERS[1:]:
                if peer in times:
                    name = f"{case.name}: {what}, against {peer}"
                    value = times[peer][place]
                    yield Row(name=name, value=ours, unit="ms", peer=peer, peer_value=value)
            share = factor * work / (ours * 1e-3) / rate
            yield Row(name=f"{case.name}: {what}, share of the matmul rate", value=share)


def main() -> None:
    command_line(__doc__).parse_args()
    rate = matmul_rate()
    rows = [Row(name="bf16 product of 8192 x 8192", value=rate / 1e12, unit="TFLOP/s")]
    for size in SIZES:
        torch.manual_seed(1)
        shape = (size.num_rows, size.dim)
        inputs = [torch.randn(shape, device="cuda").bfloat16() for _ in range(3)]
        rows += rows_of(size, inputs, rate)
    notes = (
        "F is the inner width of an expert, two experts a row. The layer is timed whole, its rate "
        "counts the chosen experts' products alone, three times as many for forward and backward, "
        "in which the router's biases move too. ReLU, no biases in experts."
    )
    write_results("moe", rows, notes=notes, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
