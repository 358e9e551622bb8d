"""Time a sparse mixture-of-experts layer on one GPU beside a loop over its experts, then over two.

The layer is whole: router, sort, both products, weighted sum. Its rate counts the operations of the
chosen experts' products alone; the device's rate is that of one large bf16 product, measured in the
same run. Nothing is timed where results disagree with float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.kernels.measure import median_ms
from recsys.layers.moe.experts import Experts, loop_over_experts
from recsys.layers.moe.layer import SparseMoe, SparseMoeConfig
from recsys.layers.moe.routing import expert_use
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.kernels.comparison import error_row, largest_error

NUM_ROWS, DIM, NUM_EXPERTS, TOP_K = 16_384, 512, 32, 2
TOLERANCE = 2e-2


@dataclass(frozen=True)
class Case:
    hidden_dim: int
    compute: str
    graph: bool = False

    @property
    def name(self) -> str:
        how = f"{self.compute}, one CUDA graph" if self.graph else self.compute
        return f"D {DIM}, F {self.hidden_dim}, {NUM_EXPERTS} experts, top {TOP_K}: {how}"


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
    config = SparseMoeConfig(
        dim=DIM,
        hidden_dim=case.hidden_dim,
        num_experts=NUM_EXPERTS,
        top_k=TOP_K,
        compute=case.compute,  # type: ignore[arg-type]
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
    grad = torch.randn(2048, DIM, device="cuda")

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
    grad = torch.randn(NUM_ROWS, DIM, device="cuda").bfloat16()

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


def rows_of(hidden_dim: int, inputs: list[Tensor], rate: float) -> list[Row]:
    loop = times_of(Case(hidden_dim, "loop"), inputs)
    work = 4 * NUM_ROWS * TOP_K * DIM * hidden_dim
    rows = []
    for place, what in enumerate(("forward", "forward + backward")):
        rows.append(
            Row(name=f"{Case(hidden_dim, 'loop').name}: {what}", value=loop[place], unit="ms")
        )
    for graph in (False, True):
        case = Case(hidden_dim, "grouped", graph)
        rows.append(error_row(case.name, worst_error(case, inputs[0]), TOLERANCE))
        if not rows[-1].met:
            continue
        ours = times_of(case, inputs)
        for place, (what, times) in enumerate((("forward", 1), ("forward + backward", 3))):
            ratio, share = loop[place] / ours[place], times * work / (ours[place] * 1e-3) / rate
            rows.append(
                Row(
                    name=f"{case.name}: {what}",
                    value=ours[place],
                    unit="ms",
                    peer="loop over experts",
                    ratio=ratio,
                    min_ratio=2,
                )
            )
            rows.append(
                Row(
                    name=f"{case.name}: {what}, share of the matmul rate", value=share, at_least=0.4
                )
            )
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 2048], help="F of experts")
    arguments = parser.parse_args()
    rate = matmul_rate()
    torch.manual_seed(1)
    inputs = [torch.randn(NUM_ROWS, DIM, device="cuda").bfloat16() for _ in range(3)]
    use = expert_use(layer_of(Case(64, "auto")).eval().router(inputs[0]).experts.cpu(), NUM_EXPERTS)
    rows = [
        Row(name="bf16 product of 8192 x 8192", value=rate / 1e12, unit="TFLOP/s"),
        Row(name="MaxVio of the routing that is timed", value=use.max_violation),
    ]
    for hidden_dim in arguments.hidden:
        rows += rows_of(hidden_dim, inputs, rate)
    notes = (
        "F is the inner width of an expert. The layer is timed whole, its rate counts the chosen "
        "experts' products alone, three times as many for forward and backward, in which the "
        "router's biases move too. ReLU, no biases in experts."
    )
    write_results("moe", rows, notes=notes, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
