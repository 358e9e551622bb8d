"""Experts over two GPUs by NCCL: the same answers and gradients as the whole layer on one."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, multiprocessing

from recsys.layers.moe.layer import SparseMoe, SparseMoeConfig
from recsys.layers.moe.parallel import SpreadExperts

pytestmark = pytest.mark.gpu
NUM_DEVICES = 2
CONFIG = SparseMoeConfig(dim=64, hidden_dim=96, num_experts=8, bias_rate=0.0)


@pytest.fixture(autouse=True)
def devices(cuda):
    if torch.cuda.device_count() < NUM_DEVICES:
        pytest.skip(f"needs {NUM_DEVICES} CUDA devices, there is {torch.cuda.device_count()}")


def layer_on(device: torch.device) -> SparseMoe:
    torch.manual_seed(0)
    layer = SparseMoe(CONFIG).to(device)
    layer.experts.bfloat16()
    return layer


def rows_of(rank: int, device: torch.device) -> torch.Tensor:
    """Processes have different numbers of rows; the last one's all want the same experts."""
    rows = torch.randn(2000 + 500 * rank, CONFIG.dim, generator=torch.Generator().manual_seed(rank))
    rows = rows[:1].expand(2000, -1) if rank else rows
    return rows.bfloat16().to(device).requires_grad_()


def work(rank: int, folder: str) -> None:
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=NUM_DEVICES,
        device_id=device,
    )
    layer = layer_on(device)
    layer.experts = SpreadExperts(layer.experts)
    rows = rows_of(rank, device)
    output = layer(rows).output
    output.float().square().sum().backward()
    own = layer.experts.own
    found = {"output": output, "rows": rows.grad, "up": own.up.grad, "down": own.down.grad}
    found["router"] = layer.router.scores.weight.grad
    save_file(
        {name: one.detach().cpu() for name, one in found.items()}, f"{folder}/{rank}.safetensors"
    )
    distributed.destroy_process_group()


def test_spread_experts_say_and_learn_what_whole_ones_do(cuda, tmp_path):
    multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=NUM_DEVICES)
    layer = layer_on(cuda)
    rows = [rows_of(rank, cuda) for rank in range(NUM_DEVICES)]
    outputs = layer(torch.cat(rows)).output
    outputs.float().square().sum().backward()
    begin, own, routers = 0, CONFIG.num_experts // NUM_DEVICES, []
    for rank in range(NUM_DEVICES):
        found = load_file(tmp_path / f"{rank}.safetensors")
        routers.append(found["router"])
        expected = {
            "output": outputs[begin : begin + len(rows[rank])].detach(),
            "rows": rows[rank].grad,
            "up": layer.experts.up.grad[rank * own : (rank + 1) * own],
            "down": layer.experts.down.grad[rank * own : (rank + 1) * own],
        }
        begin += len(rows[rank])
        for name, true in expected.items():
            error = (found[name].float() - true.cpu().float()).abs().max()
            assert float(error / true.abs().max()) < 2e-2, name
    true = layer.router.scores.weight.grad.cpu()
    assert float((sum(routers) - true).abs().max() / true.abs().max()) < 2e-2
