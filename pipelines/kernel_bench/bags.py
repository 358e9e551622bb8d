"""The embedding bags as ``recsys kernels`` runs them.

Axes: B bags a feature, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipelines.kernel_bench.workload import NUM_SETS, Call, Prepared, distance
from recsys.data.batch import Jagged
from recsys.layers.embedding.row_updates import KernelRowUpdates, RowUpdateConfig, TorchRowUpdates
from recsys.layers.embedding.tables import TableConfig


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
