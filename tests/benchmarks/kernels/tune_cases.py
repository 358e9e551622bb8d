"""Cases of real size that `tune` and `profile` run: inputs, and a check against plain torch.

Inputs come in several sets, so that no cache holds what the next call reads.

Axes: B bags a feature, M rows, D width, H heads, L events of a sequence, Q queries, N item rows,
k list length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged
from recsys.kernels.hstu_attention.op import hstu_attention, reference_attention
from recsys.kernels.routed_experts.op import routed_experts
from recsys.kernels.topk_search.op import fused_top_k, mask_words
from recsys.layers.embedding.row_updates import KernelRowUpdates, RowUpdateConfig, TorchRowUpdates
from recsys.layers.embedding.tables import TableConfig
from tests.recsys.kernels.topk_reference import reference_top_k
from tests.recsys.testing.experts import loop_over_experts

Call = Callable[[], object]
NUM_SETS = 4


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A workload on a device, ready to run."""

    ours: Sequence[Call]
    error: Callable[[], float]
    """Distance of our result from the truth; calls our kernel anew."""
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One case of one kernel."""

    kernel: str
    name: str
    prepare: Callable[[torch.device], Prepared]


def distance(found: Tensor, truth: Tensor) -> float:
    """Norm of the difference over the norm of the truth; not a number where either is not."""
    return float((found.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30))


def worst(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Greatest distance of several results; not a number where one is not."""
    distances = [distance(one, true) for one, true in zip(found, truth, strict=True)]
    return float(torch.tensor(distances).max())


def results(call: Callable[..., Tensor], *inputs: Tensor, backward: bool) -> list[Tensor]:
    """Call with all inputs but the last, the gradient of the result; optionally backward."""
    if not backward:
        with torch.no_grad():
            return [call(*inputs[:-1])]
    leaves = [one.detach().requires_grad_() for one in inputs[:-1]]
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, inputs[-1])]


class Bags(NamedTuple):
    """Sizes of an embedding case: every table is one feature's."""

    tables: int
    rows: int
    dim: int
    batch: int
    length: int


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
        ends = offsets[: self.bags.batch + 1]
        values = {
            f"f{place}": Jagged(part, ends)
            for place, part in enumerate(ids.view(self.bags.tables, -1))
        }
        return torch.cat(list(self.updates.pool(values, None).values()), dim=1)

    def calls(
        self, batches: Sequence[tuple[Tensor, Tensor, Tensor]], *, backward: bool
    ) -> list[Call]:
        """List a call of each batch: the look-up alone, or with its backward and update."""

        def call(ids: Tensor, offsets: Tensor, grad: Tensor) -> None:
            with torch.set_grad_enabled(backward):
                found = self.look_up(ids, offsets)
            if backward:
                found.backward(grad)  # type: ignore[no-untyped-call]

        return [partial(call, *batch) for batch in batches]


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


def prepare_bags(sizes: tuple[int, ...], device: torch.device, *, backward: bool) -> Prepared:
    """Forward alone, or forward and the backward with row-wise Adagrad inside; sizes of `Bags`."""
    bags = Bags(*sizes)
    batches = bag_batches(bags, device)

    def error() -> float:
        ours, truth = (BagCase(bags, kind, device) for kind in (KernelRowUpdates, TorchRowUpdates))
        if backward:
            for case in (ours, truth):
                case.calls(batches, backward=True)[0]()
        ids, offsets, _ = batches[0]
        with torch.no_grad():
            return distance(ours.look_up(ids, offsets), truth.look_up(ids, offsets))

    ours = BagCase(bags, KernelRowUpdates, device).calls(batches, backward=backward)
    return Prepared(ours=ours, error=error, tolerance=1e-5)


def scaled_normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw normal values over the square root of the last width, where the generator is."""
    values = torch.randn(shape, generator=generator, device=generator.device)
    return values / math.sqrt(shape[-1])


def prepare_attention(sizes: tuple[int, ...], device: torch.device, *, backward: bool) -> Prepared:
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
        return reference_attention(q, k, v, ends, length)

    def error() -> float:
        few = [one[: 2 * length] for one in sets[0]]
        found = results(partial(ours, offsets[:3]), *few, backward=backward)
        truth = [one.float() for one in few]
        return worst(found, results(partial(by_torch, offsets[:3]), *truth, backward=backward))

    return Prepared(
        ours=[partial(results, partial(ours, offsets), *one, backward=backward) for one in sets],
        error=error,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
    )


def prepare_routed_experts(
    sizes: tuple[int, ...], device: torch.device, *, backward: bool
) -> Prepared:
    """Rows that visit two of 32 experts each, by their number, width and inner width."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    num_rows, dim, hidden_dim = sizes
    top_k, shapes = 2, [(num_rows, dim), (32, hidden_dim, dim), (32, dim, hidden_dim)]

    part = partial(scaled_normal, torch.Generator(device).manual_seed(5))
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
        error=error,
        tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5,
    )


Sizes = tuple[int, ...]


def prepare_search(sizes: Sizes, device: torch.device) -> Prepared:
    """Search the 100 best items of every query, sizes N, Q, D; bf16 on a GPU."""
    num_items, num_queries, dim = sizes
    generator = torch.Generator(device).manual_seed(2)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    items = torch.randn(num_items, dim, generator=generator, device=device).to(dtype)
    query_sets = [
        torch.randn(num_queries, dim, generator=generator, device=device).to(dtype)
        for _ in range(NUM_SETS)
    ]
    words = mask_words(None, num_items, device)

    def error() -> float:
        few = query_sets[0][:32]
        return distance(
            fused_top_k(few, items, 100, words).scores,
            reference_top_k(few, items, 100, words).scores,
        )

    return Prepared(
        ours=[partial(fused_top_k, one, items, 100, words) for one in query_sets],
        error=error,
        tolerance=1e-5,
    )


class Family(NamedTuple):
    """The cases of one kernel: each of the sizes with each of the variants."""

    prepare: Callable[..., Prepared]
    name: str
    """Format of the sizes."""
    variants: Mapping[str, Mapping[str, bool]]
    sizes: list[Sizes]


DIRECTIONS = {": forward": {"backward": False}, ": forward + backward": {"backward": True}}
FAMILIES = {
    "embedding_bag": Family(
        prepare_bags,
        "{} x {:,} x {}, batch {}, {} ids",
        DIRECTIONS,
        [(26, 1_000_000, 128, 16_384, 1), (32, 1_000_000, 128, 4_096, 20),
         (1, 10_000_000, 64, 4_096, 200)],
    ),
    "topk_search": Family(
        prepare_search,
        "{1} queries, {0:,} x {2}, k 100",
        {"": {}},
        [(1_000_000, 512, 64)],
    ),
    "hstu_attention": Family(
        prepare_attention,
        "{} x {}, {} heads of {}",
        DIRECTIONS,
        [(64, 1_024, 4, 64), (32, 2_048, 4, 128)],
    ),
    "routed_experts": Family(
        prepare_routed_experts,
        "{:,} x {}, within {}",
        DIRECTIONS,
        [(16_384, 512, 1_024), (16_384, 512, 2_048)],
    ),
}  # fmt: skip


def workloads() -> list[Workload]:
    """List the cases."""
    return [
        Workload(
            kernel=kernel,
            name=family.name.format(*sizes) + variant,
            prepare=partial(family.prepare, sizes, **settings),
        )
        for kernel, family in FAMILIES.items()
        for sizes in family.sizes
        for variant, settings in family.variants.items()
    ]
