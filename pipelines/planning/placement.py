"""Placements of a table's rows, with their memory on each GPU and time in each step.

As TorchRec shards pooled lookups: ``replicated`` (every GPU has the whole table, gradients are
summed), ``row-wise`` (a GPU has every G-th row, adds up its part of every bag and sends it by
reduce-scatter, so traffic grows with G), ``column-wise`` (a GPU has some columns of every row, sent
by all-to-all; FBGEMM needs 4 columns a shard, so a table has at most D / 4 shards).

Axes: G GPUs, R different rows of a GPU's batch, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from pipelines.engine.memory import GIB
from pipelines.planning.machine import Hardware
from pipelines.planning.workload import FLOAT, Workload

Placement = Literal["replicated", "row-wise", "column-wise"]
ID = 8
"""Bytes of an id."""


class EmbeddingTable(NamedTuple):
    """A table and how many of its rows a GPU's batch reads."""

    name: str
    rows: int
    rows_of_a_step: float
    ids_of_a_step: float


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One table's placement and its cost to each GPU."""

    table: str
    rows: int
    placement: Placement
    weights_gib: float
    state_gib: float
    exchanged_mib: float
    """Sent by each GPU in a step: ids, rows, their gradients."""
    reduced_mib: float
    """Summed over GPUs in a step."""
    communication_ms: float


def list_tables(work: Workload, gpus: int) -> list[EmbeddingTable]:
    """List the tables of ids."""
    ids = work.values + work.candidates(gpus)
    items = EmbeddingTable("items", work.items, work.item_rows_of_a_step(gpus), ids)
    users = EmbeddingTable("users", work.users, work.user_rows_of_a_step, float(work.batch))
    return [items, users] if work.users else [items]


def exchange_ms(machine: Hardware, gpus: int, sent: float) -> float:
    """Time an exchange in which each GPU sends a number of bytes in all to the others, ms.

    Within a host by the curve of two GPUs, half of whose buffer leaves; between hosts by the
    network's rate.
    """
    if gpus == 1 or machine.all_to_all is None:
        return 0.0
    in_host = min(gpus, machine.gpus_a_host)
    near, far = (sent * peers / (gpus - 1) for peers in (in_host - 1, gpus - in_host))
    return max(machine.all_to_all.at(2 * near), far / (machine.network_gb_s * 1e6))


def reduce_ms(machine: Hardware, gpus: int, num_bytes: float) -> float:
    """Time an all-reduce (ring: each GPU sends 2 (G - 1) / G of the bytes; two GPUs send once)."""
    if gpus == 1 or machine.all_reduce is None:
        return 0.0
    sent = 2 * (gpus - 1) / gpus
    within = machine.all_reduce.at(num_bytes * sent)
    far = num_bytes * sent / (machine.network_gb_s * 1e6) if gpus > machine.gpus_a_host else 0.0
    return max(within, far)


def place(
    work: Workload, machine: Hardware, gpus: int, table: EmbeddingTable, placement: Placement
) -> Placed:
    """Place a table on every GPU, or a part of its rows or columns on each."""
    weights, state = work.table_bytes(table.rows)
    gradient, sent, others = 0.0, [0.0], (gpus - 1)
    pooled = table.rows_of_a_step * work.dim * FLOAT * others
    if placement == "replicated":
        # Gradients of all rows are summed.
        gradient = weights if gpus > 1 else 0.0
        weights += gradient
    elif placement == "row-wise":
        # A GPU's part of every bag goes to the GPU that has the bag.
        weights, state = weights / gpus, state / gpus
        sent = [table.rows_of_a_step * ID * others / gpus, pooled, pooled]
    else:
        shards = min(gpus, work.dim // 4)
        weights, state = weights / shards, state / shards
        if work.tables == "rowwise_adam":
            # Each shard has a word of its own for a row.
            state += FLOAT * table.rows * (1 - 1 / shards)
        pooled = table.rows_of_a_step * work.dim / shards * FLOAT * others
        sent = [table.rows_of_a_step * ID * others, pooled, pooled]
    # What is sent is written and read once at either end as well.
    passes = 2 * sum(sent[1:]) / (machine.copy_gb_s * 1e6)
    exchange = sum(exchange_ms(machine, gpus, one) for one in sent) + passes
    return Placed(
        table=table.name,
        rows=table.rows,
        placement=placement,
        weights_gib=weights / GIB,
        state_gib=state / GIB,
        exchanged_mib=sum(sent) / 2**20,
        reduced_mib=gradient / 2**20,
        communication_ms=reduce_ms(machine, gpus, gradient) if gradient else exchange,
    )


def placements(work: Workload, machine: Hardware, gpus: int, table: EmbeddingTable) -> list[Placed]:
    """List the placements of a table."""
    kinds = get_args(Placement) if gpus > 1 else ("replicated",)
    return [place(work, machine, gpus, table, kind) for kind in kinds]
