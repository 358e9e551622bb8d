"""A deterministic simulator of a large ranker whose experts have GPUs of their own.

A request scores C candidates against a history of T events, whose keys and values are kept. Each
layer attends (candidates to history) and then routes every candidate to K of E experts. *Together*:
each of G GPUs attends for its own requests and holds E / G experts; tokens travel by all-to-all
there and back. *Apart* (MegaScale-Infer, arXiv:2504.02263): some GPUs attend and others hold
experts; a batch is cut into micro-batches that alternate between the two, so that transfers and the
other side's work hide behind one's own.

Times are those of kernels: attention and matrix products by measured rates, weights and kept
histories by the memory's rate, whichever takes longer.

Axes: T history, C candidates, D width, F inner width of an expert, E experts, K chosen, L layers,
G GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pipelines.planning.machine import Hardware
from pipelines.planning.placement import exchange_ms

BF16 = 2
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class RankerSize:
    """The ranker; by default 104 billion weights, of which 4 billion work on a candidate."""

    layers: int = 24
    dim: int = 4_096
    kept_dim: int = 1_024
    """Width of the keys, and of the values, that are kept for each event (grouped heads)."""
    expert_dim: int = 8_192
    experts: int = 64
    chosen: int = 2
    history: int = 10_000
    candidates: int = 500

    @property
    def expert_weights(self) -> float:
        """Weights of one expert of one layer: two matrices."""
        return 2.0 * self.dim * self.expert_dim

    @property
    def attention_weights(self) -> float:
        return 2.0 * self.dim * (self.dim + self.kept_dim)

    @property
    def weights(self) -> float:
        return self.layers * (self.experts * self.expert_weights + self.attention_weights)

    @property
    def expert_bytes(self) -> float:
        return self.layers * self.experts * self.expert_weights * BF16

    @property
    def kept_bytes(self) -> float:
        """Keys and values of one user's history, all layers."""
        return 2.0 * self.layers * self.history * self.kept_dim * BF16


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What kernels reach on one GPU, measured (``results/kernels``)."""

    matmul_tflops: float = 722.9
    expert_share: float = 0.59
    """Of the matmul rate, in a grouped product of experts (mean of two sizes, CUDA graph)."""
    attention_tflops: float = 324.0
    """Of HSTU attention, forward (mean of two sizes)."""
    memory_gb_s: float = 4_282.0
    launch_ms: float = 0.02
    """Of the kernels of one half of a layer, in a captured graph."""


class Outcome(NamedTuple):
    """What one way to use the GPUs gives."""

    attention_gpus: int
    expert_gpus: int
    requests: int
    """Scored at once."""
    micro_batches: int
    latency_ms: float
    requests_a_second: float
    """Of one GPU."""
    attention_busy: float
    expert_busy: float
    kept_users: float
    """Histories that lie in the memory of all GPUs that attend."""


def attention_ms(size: RankerSize, rates: Rates, requests: float) -> float:
    """Time one layer's attention of a GPU that has so many requests."""
    tokens = requests * size.candidates
    products = 2 * tokens * size.attention_weights / (rates.matmul_tflops * 0.9e9)
    scores = 4 * tokens * size.history * size.dim / (rates.attention_tflops * 1e9)
    read = size.attention_weights * BF16 + requests * size.kept_bytes / size.layers
    return max(products + scores, read / (rates.memory_gb_s * 1e6)) + rates.launch_ms


def experts_ms(size: RankerSize, rates: Rates, tokens: float, gpus: int) -> float:
    """Time one layer's experts on one of ``gpus`` that hold them, for so many tokens in all."""
    held = size.experts / gpus
    work = 2 * tokens * size.chosen * size.expert_weights / gpus
    used = min(held, tokens * size.chosen / gpus)
    read = max(1.0, used) * size.expert_weights * BF16
    busy = work / (rates.matmul_tflops * rates.expert_share * 1e9)
    return max(busy, read / (rates.memory_gb_s * 1e6)) + rates.launch_ms


def alternate(
    layers: int, micro_batches: int, attend: float, expert: float, travel: float, *, shared: bool
) -> float:
    """Simulate micro-batches through all layers, first come first served; the last one's end, ms.

    Args:
        attend: Work of a micro-batch's attention in a layer.
        expert: Of its experts.
        travel: Of its tokens, either way; beside work, not in its stead.
        shared: Whether attention and experts have the same GPUs.
    """
    ready = [0.0] * micro_batches
    free = [0.0, 0.0]
    experts = 0 if shared else 1
    for _ in range(layers):
        arrived = []
        for one in range(micro_batches):
            free[0] = max(free[0], ready[one]) + attend
            arrived.append(free[0] + travel)
        for one in range(micro_batches):
            free[experts] = max(free[experts], arrived[one]) + expert
            ready[one] = free[experts] + travel
    return max(ready)


def together(
    size: RankerSize,
    rates: Rates,
    machine: Hardware,
    gpus: int,
    requests: int,
    micro_batches: int = 1,
) -> Outcome:
    """Every GPU attends and holds experts; one micro-batch travels while others work."""
    own = requests / micro_batches / gpus
    sent = own * size.candidates * size.chosen * size.dim * BF16 * (gpus - 1) / gpus
    attend = attention_ms(size, rates, own)
    expert = experts_ms(size, rates, own * gpus * size.candidates, gpus)
    travel = exchange_ms(machine, gpus, sent)
    latency = alternate(size.layers, micro_batches, attend, expert, travel, shared=True)
    room = machine.memory_gib - machine.reserved_gib - size.expert_bytes / gpus / GIB
    room -= size.layers * size.attention_weights * BF16 / GIB
    work = size.layers * micro_batches / latency
    return Outcome(
        attention_gpus=gpus,
        expert_gpus=gpus,
        requests=requests,
        micro_batches=micro_batches,
        latency_ms=latency,
        requests_a_second=1e3 * requests / latency / gpus,
        attention_busy=work * attend,
        expert_busy=work * expert,
        kept_users=gpus * room * GIB / size.kept_bytes,
    )


def apart(
    size: RankerSize,
    rates: Rates,
    machine: Hardware,
    gpus: tuple[int, int],
    requests: int,
    micro_batches: int,
) -> Outcome:
    """Some GPUs attend, others hold experts; micro-batches alternate between them."""
    attending, holding = gpus
    part = requests / micro_batches
    attend = attention_ms(size, rates, part / attending)
    expert = experts_ms(size, rates, part * size.candidates, holding)
    moved = part * size.candidates * size.chosen * size.dim * BF16
    # The busier end decides: each sends to, or gets from, every GPU of the other side.
    travel = exchange_ms(machine, attending + holding, moved / min(attending, holding))
    latency = alternate(size.layers, micro_batches, attend, expert, travel, shared=False)
    room = machine.memory_gib - machine.reserved_gib
    room -= size.layers * size.attention_weights * BF16 / GIB
    work = size.layers * micro_batches / latency
    return Outcome(
        attention_gpus=attending,
        expert_gpus=holding,
        requests=requests,
        micro_batches=micro_batches,
        latency_ms=latency,
        requests_a_second=1e3 * requests / latency / (attending + holding),
        attention_busy=work * attend,
        expert_busy=work * expert,
        kept_users=attending * room * GIB / size.kept_bytes,
    )


def fits(size: RankerSize, machine: Hardware, outcome: Outcome) -> bool:
    """Say whether weights and the histories of the requests at hand lie in memory."""
    held = size.expert_bytes / outcome.expert_gpus / GIB
    return held <= machine.memory_gib - machine.reserved_gib and (
        outcome.kept_users >= outcome.requests
    )


def best(
    size: RankerSize, rates: Rates, machine: Hardware, gpus: int, deadline_ms: float, way: str
) -> Outcome | None:
    """Search batches, micro-batches and splits for the most requests within a deadline.

    Args:
        way: ``together``, ``overlapped`` (together, in micro-batches) or ``apart``.
    """
    sizes = sorted({round(2 ** (power / 4)) for power in range(57)})
    if way == "apart":
        outcomes = [
            apart(size, rates, machine, (gpus - held, held), requests, micro)
            for held in range(1, gpus)
            for requests in sizes
            for micro in (1, 2, 3, 4)
            if size.experts % held == 0 and requests >= micro
        ]
    else:
        outcomes = [
            together(size, rates, machine, gpus, requests, micro)
            for requests in sizes
            for micro in ((1,) if way == "together" else (1, 2, 3, 4))
            if requests >= micro
        ]
    kept = [one for one in outcomes if one.latency_ms <= deadline_ms and fits(size, machine, one)]
    return max(kept, key=lambda one: one.requests_a_second, default=None)
