"""Time experts spread over GPUs by NCCL beside the whole layer on one; see `benchmark_moe.py`.

Every process has 16,384 rows of its own. Times are the host's, between two waits for all devices:
how many rows travel must be known there, so no CUDA graph can hold an exchange.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, distributed, multiprocessing

from recsys.layers.moe.layer import SparseMoe, SparseMoeConfig
from recsys.layers.moe.parallel import SpreadExperts
from tests.benchmarks.harness import Row, timed
from tests.benchmarks.kernels.comparison import error_row

NUM_ROWS, DIM, NUM_EXPERTS = 16_384, 512, 32
REPEATS = 40
TOLERANCE = 2e-2


def layer_of(hidden_dim: int) -> SparseMoe:
    torch.manual_seed(0)
    config = SparseMoeConfig(dim=DIM, hidden_dim=hidden_dim, num_experts=NUM_EXPERTS, bias_rate=0.0)
    layer = SparseMoe(config).cuda()
    layer.experts.bfloat16()
    return layer


def rows_of(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(NUM_ROWS, DIM, generator=generator).bfloat16().cuda()


def median_ms(call: Callable[[], object], wait: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATS + 5):
        wait()
        took.append(timed(call)[0])
    return statistics.median(took[5:]) * 1e3


def times_of(layer: SparseMoe, rows: Tensor, wait: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of forward, and of forward and backward."""
    leaves, grad = [*layer.parameters()], torch.ones_like(rows)

    def both() -> object:
        x = rows.detach().requires_grad_()
        return torch.autograd.grad(layer(x).output, [x, *leaves], grad)

    layer.eval()
    with torch.no_grad():
        ahead = median_ms(lambda: layer(rows), wait)
    layer.train()
    return ahead, median_ms(both, wait)


def work(rank: int, num_devices: int, hidden_dim: int, folder: str) -> None:
    # NVLink multicast: a fault in it can take all of a host's GPUs, which others may share.
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=num_devices,
        device_id=device,
    )
    whole = layer_of(hidden_dim)
    layer = layer_of(hidden_dim)
    layer.experts = SpreadExperts(whole.experts)  # type: ignore[assignment]
    rows = rows_of(rank)
    with torch.no_grad():
        truth, found = (one.eval()(rows).output.float() for one in (whole, layer))
    error = float((truth - found).abs().max() / truth.abs().max())
    ahead, both = times_of(layer, rows, distributed.barrier)
    slowest = torch.tensor([error, ahead, both], device=device)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    if rank == 0:
        Path(folder, "found.txt").write_text(" ".join(map(str, slowest.tolist())))
    distributed.destroy_process_group()


def rows_of_devices(hidden_dim: int, num_devices: int = 2) -> list[Row]:
    """Time both; the slowest process counts."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, args=(num_devices, hidden_dim, folder), nprocs=num_devices)
        error, *ours = map(float, Path(folder, "found.txt").read_text().split())
    all_rows = torch.cat([rows_of(rank) for rank in range(num_devices)])
    whole = times_of(layer_of(hidden_dim), all_rows, lambda: None)
    name = f"F {hidden_dim}, experts over {num_devices} GPUs by NCCL, {NUM_ROWS:,} rows each"
    found = [error_row(name, error, TOLERANCE, "one device")]
    for what, theirs, own in zip(("forward", "forward + backward"), whole, ours, strict=True):
        if found[0].met:
            peer = "all rows and experts on one,"
            one = Row(name=f"{name}: {what}", value=own, unit="ms", peer=peer, peer_value=theirs)
            found.append(one)
    return found
