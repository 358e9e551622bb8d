"""What ``recsys kernels`` runs: for each kernel its inputs, its peers and its check.

Inputs come in several sets, so that no cache holds what the next call reads. Axes: M ids, B bags a
feature, D width, Q queries, N item rows, k list length, H heads, L events of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.kernels.gated_norm.op import gated_norm
from recsys.kernels.gated_norm.reference import dropout_mask, kept_scale
from recsys.kernels.hstu_attention.op import hstu_attention
from recsys.kernels.hstu_attention.reference import reference_attention
from recsys.kernels.lora.op import Corrections
from recsys.kernels.lora.reference import add_corrections
from recsys.kernels.routed_experts.op import routed_experts
from recsys.kernels.topk_search.op import fused_top_k, mask_words
from recsys.kernels.topk_search.reference import reference_top_k
from recsys.layers.fbgemm_updates import FbgemmRowUpdates
from recsys.layers.moe_experts import loop_over_experts
from recsys.layers.row_updates import KernelRowUpdates, RowUpdateConfig, TorchRowUpdates
from recsys.layers.tables import TableConfig

Call = Callable[[], object]
NUM_SETS = 4


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A workload on a device, ready to run."""

    ours: Sequence[Call]
    peers: Mapping[str, Sequence[Call]] = field(default_factory=dict)
    error: Callable[[], float]
    """Distance of our result from the truth; calls our kernel anew."""
    tolerance: float
    num_bytes: int = 0
    """What must move through memory at least; 0 where arithmetic is the limit."""
    num_flops: int = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One case of one kernel."""

    kernel: str
    name: str
    prepare: Callable[[torch.device], Prepared]


@dataclass(frozen=True)
class Bags:
    """Sizes of an embedding case: every table is one feature's."""

    tables: int
    rows: int
    dim: int
    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.tables} x {self.rows:,} x {self.dim}, batch {self.batch}, {self.length} ids"


def distance(found: Tensor, truth: Tensor) -> float:
    """Norm of the difference over the norm of the truth; not a number where either is not."""
    return float((found.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30))


def worst(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Greatest distance of several results; not a number where one is not."""
    distances = [distance(one, true) for one, true in zip(found, truth, strict=True)]
    return float(torch.tensor(distances).max())


def results(call: Callable[..., Tensor], *inputs: Tensor, backward: bool) -> list[Tensor]:
    """Call with all inputs but the last, the result's gradient; with gradients if asked."""
    if not backward:
        with torch.no_grad():
            return [call(*inputs[:-1])]
    leaves = [one.detach().requires_grad_() for one in inputs[:-1]]
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, inputs[-1])]


class BagCase:
    """Tables of one case in one backend, with equal weights in each."""

    def __init__(self, bags: Bags, kind: type, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        self.tables = [
            TableConfig(
                name=f"t{place}",
                num_rows=bags.rows,
                embedding_dim=bags.dim,
                features=(f"f{place}",),
            )
            for place in range(bags.tables)
        ]
        self.weights = {
            table.name: nn.Parameter(
                torch.empty(bags.rows, bags.dim, device=device).uniform_(
                    -0.05, 0.05, generator=generator
                )
            )
            for table in self.tables
        }
        rule = RowUpdateConfig(rule="rowwise_adagrad")
        self.updates = kind(self.tables, self.weights, rule)
        self.updates.begin(0.01)
        self.bags = bags

    def look_up(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Sum the rows of each bag, [B, sum of D]."""
        if isinstance(self.updates, KernelRowUpdates):
            found: Tensor = self.updates.bags(ids, offsets)
            return found
        if isinstance(self.updates, FbgemmRowUpdates):
            pooled: Tensor = self.updates.tbe(ids, offsets)
            return pooled
        ends = offsets[: self.bags.batch + 1]
        values = {
            f"f{place}": Jagged(part, ends)
            for place, part in enumerate(ids.view(self.bags.tables, -1))
        }
        return torch.cat(list(self.updates.pool(values, None).values()), dim=1)

    def lookups(self, batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Call]:
        def look(ids: Tensor, offsets: Tensor) -> Tensor:
            with torch.no_grad():
                return self.look_up(ids, offsets)

        return [partial(look, ids, offsets) for ids, offsets, _ in batches]

    def steps(self, batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Call]:
        def step(ids: Tensor, offsets: Tensor, grad: Tensor) -> None:
            self.look_up(ids, offsets).backward(grad)  # type: ignore[no-untyped-call]

        return [partial(step, *batch) for batch in batches]


def bag_batches(bags: Bags, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Draw ids, offsets and gradients of the results."""
    generator = torch.Generator(device).manual_seed(1)
    count = bags.tables * bags.batch
    offsets = torch.arange(count + 1, device=device) * bags.length
    return [
        (
            torch.randint(bags.rows, (count * bags.length,), generator=generator, device=device),
            offsets,
            torch.randn(bags.batch, bags.tables * bags.dim, generator=generator, device=device),
        )
        for _ in range(NUM_SETS)
    ]


def prepare_bags(bags: Bags, device: torch.device, *, backward: bool) -> Prepared:
    """Forward alone, or forward and the backward with row-wise Adagrad inside."""
    batches = bag_batches(bags, device)
    kinds: dict[str, type] = {"ours": KernelRowUpdates, "torch": TorchRowUpdates}
    if find_spec("fbgemm_gpu") and bags.dim % 4 == 0:
        kinds["FBGEMM"] = FbgemmRowUpdates
    cases = {name: BagCase(bags, kind, device) for name, kind in kinds.items()}
    calls = {
        name: case.steps(batches) if backward else case.lookups(batches)
        for name, case in cases.items()
    }

    def error() -> float:
        ours, truth = (
            BagCase(bags, KernelRowUpdates, device),
            BagCase(bags, TorchRowUpdates, device),
        )
        if backward:
            for case in (ours, truth):
                case.steps(batches)[0]()
        ids, offsets, _ = batches[0]
        with torch.no_grad():
            return distance(ours.look_up(ids, offsets), truth.look_up(ids, offsets))

    ids, _, grad = batches[0]
    first = torch.arange(bags.tables, device=device)[:, None] * bags.rows
    touched = len(torch.unique(ids.view(bags.tables, -1) + first))
    row_bytes, out = touched * bags.dim * 4, grad.numel() * 4
    moved = row_bytes + out + ids.numel() * 8
    if backward:
        moved += 2 * row_bytes + 8 * touched + out + ids.numel() * 8
    return Prepared(
        ours=calls.pop("ours"), peers=calls, error=error, tolerance=1e-5, num_bytes=moved
    )


def prepare_search(num_items: int, num_queries: int, dim: int, device: torch.device) -> Prepared:
    """Search the 100 best items of every query; bf16 on a GPU."""
    generator = torch.Generator(device).manual_seed(2)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    items = torch.randn(num_items, dim, generator=generator, device=device).to(dtype)
    asked = [
        torch.randn(num_queries, dim, generator=generator, device=device).to(dtype)
        for _ in range(NUM_SETS)
    ]
    words = mask_words(None, num_items, device)

    def by_torch(queries: Tensor) -> object:
        return (queries @ items.T).topk(100)

    def error() -> float:
        few = asked[0][:32]
        return distance(
            fused_top_k(few, items, 100, words).scores,
            reference_top_k(few, items, 100, words).scores,
        )

    return Prepared(
        ours=[partial(fused_top_k, one, items, 100, words) for one in asked],
        peers={"torch": [partial(by_torch, one) for one in asked]},
        error=error,
        tolerance=1e-5,
        num_bytes=items.numel() * items.element_size() + num_queries * (4 * dim + 12 * 100),
    )


def prepare_attention(
    sizes: tuple[int, int, int, int], device: torch.device, *, backward: bool
) -> Prepared:
    """Attend within sequences of one length, without biases; bf16 on a GPU.

    Args:
        sizes: Sequences, their length, heads, and the heads' width.
        backward: Whether gradients of queries, keys and values are taken too.
    """
    num_sequences, length, heads, dim = sizes
    generator = torch.Generator(device).manual_seed(3)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    offsets = torch.arange(num_sequences + 1, device=device) * length

    def part() -> Tensor:
        shape = (num_sequences * length, heads, dim)
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    sets = [[part() for _ in range(4)] for _ in range(2)]

    def ours(ends: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hstu_attention(q, k, v, ends, length)

    def by_torch(ends: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference_attention(q, k, v, ends, length, None, None, None)

    def error() -> float:
        few = [one[: 2 * length] for one in sets[0]]
        found = results(partial(ours, offsets[:3]), *few, backward=backward)
        truth = [one.float() for one in few]
        return worst(found, results(partial(by_torch, offsets[:3]), *truth, backward=backward))

    return Prepared(
        ours=[partial(results, partial(ours, offsets), *one, backward=backward) for one in sets],
        peers={
            "torch": [
                partial(results, partial(by_torch, offsets), *one, backward=backward)
                for one in sets
            ]
        },
        error=error,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
        # Two products over the lower half of L x L, five more backward.
        num_flops=(7 if backward else 2) * num_sequences * heads * length * length * dim,
    )


def prepare_gated_norm(
    num_rows: int, width: int, device: torch.device, *, backward: bool
) -> Prepared:
    """Norm, gate and drop a fifth; bf16 on a GPU. Torch draws other numbers to drop."""
    generator = torch.Generator(device).manual_seed(4)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    seed = torch.tensor([7], device=device)

    def part(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    rows = (num_rows, width)
    sets = [
        (part(*rows), part(*rows), part(width), part(width), part(*rows)) for _ in range(NUM_SETS)
    ]

    def ours(x: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return gated_norm(x, u, weight, bias, dropout=0.2, seed=seed)

    def by_torch(x: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        normed = functional.layer_norm(x, x.shape[1:], weight, bias, 1e-6)
        return functional.dropout(normed * u, 0.2)

    def exact(x: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        normed = functional.layer_norm(x, x.shape[1:], weight, bias, 1e-6)
        kept = dropout_mask(x.shape[0], x.shape[1], int(seed), 0.2, x.device)
        return normed * u * kept * kept_scale(0.2)

    def error() -> float:
        x, u, weight, bias, grad = sets[0]
        few = (x[:1024], u[:1024], weight, bias, grad[:1024])
        truth = results(exact, *(one.double() for one in few), backward=backward)
        return worst(results(ours, *few, backward=backward), truth)

    return Prepared(
        ours=[partial(results, ours, *one, backward=backward) for one in sets],
        peers={"torch": [partial(results, by_torch, *one, backward=backward) for one in sets]},
        error=error,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
        # Two tensors read and one written; backward three and two.
        num_bytes=(8 if backward else 3) * num_rows * width * dtype.itemsize,
    )


def prepare_routed_experts(
    sizes: tuple[int, int, int], device: torch.device, *, backward: bool
) -> Prepared:
    """Rows that visit two of 32 experts each, by their number, width and inner width."""
    generator = torch.Generator(device).manual_seed(5)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    num_rows, dim, hidden_dim = sizes
    top_k, shapes = 2, [(num_rows, dim), (32, hidden_dim, dim), (32, dim, hidden_dim)]

    def part(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device) / math.sqrt(shape[-1])

    sets = []
    for _ in range(2):
        experts = part(num_rows, 32).topk(top_k, dim=1).indices
        tensors = [part(*shape).to(dtype) for shape in [*shapes, shapes[0]]]
        sets.append((experts, [*tensors[:3], part(num_rows, top_k).sigmoid(), tensors[3]]))

    def run(mix: Callable[..., Tensor], experts: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        return results(
            lambda rows, up, down, weights: mix(rows, up, down, experts, weights),
            *tensors,
            backward=backward,
        )

    def error() -> float:
        experts, tensors = sets[0]
        truth = run(loop_over_experts, experts, [one.double() for one in tensors])
        return worst(run(routed_experts, experts, tensors), truth)

    return Prepared(
        ours=[partial(run, routed_experts, *one) for one in sets],
        peers={"torch, a loop": [partial(run, loop_over_experts, *one) for one in sets]},
        error=error,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
        # Two products of each visit, two more of each backward.
        num_flops=(3 if backward else 1) * 4 * num_rows * top_k * dim * hidden_dim,
    )


def prepare_lora(sizes: tuple[int, int, int], device: torch.device, *, whole: bool) -> Prepared:
    """Rows of three adapters of rank 8, by their number and the layer's widths."""
    generator = torch.Generator(device).manual_seed(6)
    num_rows, width_in, width_out = sizes

    def part(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device) / math.sqrt(shape[-1])

    numbers = torch.arange(num_rows, device=device) // 20 % 3 + 1
    a, b, bias = part(3, 8, width_in), part(3, 8, width_out), part(width_out)
    weight = part(width_out, width_in)
    sets = [(part(num_rows, width_in), part(num_rows, width_out)) for _ in range(NUM_SETS)]

    def ours(inputs: Tensor, out: Tensor) -> Tensor:
        # Made anew, so that it asks for its tiles anew.
        corrections = Corrections(a, b)
        if whole:
            return corrections.linear(inputs, numbers, weight, bias)
        corrections.add(out, inputs, numbers)
        return out

    def gathered(inputs: Tensor, out: Tensor) -> Tensor:
        base = functional.linear(inputs, weight, bias) if whole else out
        low = torch.bmm(inputs[:, None], a[numbers - 1].transpose(1, 2))
        return base + torch.bmm(low, b[numbers - 1])[:, 0]

    def error() -> float:
        inputs, out = sets[0]
        truth = out.double()
        if whole:
            truth = functional.linear(inputs.double(), weight.double(), bias.double())
        truth = truth.clone()
        add_corrections(truth, inputs, numbers, a, b)
        return distance(ours(inputs, out.clone()), truth)

    return Prepared(
        ours=[partial(ours, *one) for one in sets],
        peers={"torch": [partial(gathered, *one) for one in sets]},
        error=error,
        tolerance=1e-5,
        num_flops=2 * num_rows * (whole * width_in * width_out + 8 * (width_in + width_out)),
    )


def workloads(device: torch.device) -> list[Workload]:
    """List the cases: of real size on a GPU, small ones on a CPU."""
    cuda = device.type == "cuda"
    bags = (
        [
            Bags(26, 1_000_000, 128, 16_384, 1),
            Bags(32, 1_000_000, 128, 4_096, 20),
            Bags(1, 10_000_000, 64, 4_096, 200),
        ]
        if cuda
        else [Bags(2, 10_000, 64, 256, 5)]
    )
    searches = [(1_000_000, 512, 64)] if cuda else [(20_000, 32, 64)]
    attentions = [(64, 1_024, 4, 64), (32, 2_048, 4, 128)] if cuda else [(4, 64, 2, 32)]
    found = [
        Workload(
            kernel="embedding_bag",
            name=f"{case}: {'forward + fused backward' if backward else 'forward'}",
            prepare=partial(prepare_bags, case, backward=backward),
        )
        for case in bags
        for backward in (False, True)
    ]
    found += [
        Workload(
            kernel="topk_search",
            name=f"{queries} queries, {items:,} x {dim}, k 100",
            prepare=partial(prepare_search, items, queries, dim),
        )
        for items, queries, dim in searches
    ]
    found += [
        Workload(
            kernel="hstu_attention",
            name=f"{sizes[0]} x {sizes[1]}, {sizes[2]} heads of {sizes[3]}: {direction(backward)}",
            prepare=partial(prepare_attention, sizes, backward=backward),
        )
        for sizes in attentions
        for backward in (False, True)
    ]
    return found + layer_workloads(cuda=cuda)


def layer_workloads(*, cuda: bool) -> list[Workload]:
    """List the cases of layers other than attention."""
    norms = [(131_072, 512), (65_536, 1_024)] if cuda else [(512, 64)]
    layers = [(16_384, 512, 1_024), (16_384, 512, 2_048)] if cuda else [(64, 16, 32)]
    corrected = [(7_680, 128, 384), (7_680, 256, 128)] if cuda else [(60, 16, 24)]
    found = [
        Workload(
            kernel="gated_norm",
            name=f"{num_rows:,} x {width}: {direction(backward)}",
            prepare=partial(prepare_gated_norm, num_rows, width, backward=backward),
        )
        for num_rows, width in norms
        for backward in (False, True)
    ]
    found += [
        Workload(
            kernel="routed_experts",
            name=f"{sizes[0]:,} x {sizes[1]}, within {sizes[2]}: {direction(backward)}",
            prepare=partial(prepare_routed_experts, sizes, backward=backward),
        )
        for sizes in layers
        for backward in (False, True)
    ]
    found += [
        Workload(
            kernel="lora",
            name=f"{sizes[0]:,} x {sizes[1]} to {sizes[2]}, three adapters: "
            f"{'the layer and its corrections' if whole else 'its corrections'}",
            prepare=partial(prepare_lora, sizes, whole=whole),
        )
        for sizes in corrected
        for whole in (True, False)
    ]
    return found


def direction(backward: bool) -> str:
    """Name what a workload runs."""
    return "forward + backward" if backward else "forward"
