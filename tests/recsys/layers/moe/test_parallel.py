from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, multiprocessing

from recsys.layers.moe.experts import Experts
from recsys.layers.moe.layer import SparseMoe, SparseMoeConfig
from recsys.layers.moe.parallel import SpreadExperts, experts_of_each

NUM_PROCESSES = 2
CONFIG = SparseMoeConfig(dim=12, hidden_dim=8, num_experts=6, num_shared_experts=1)


def whole_layer() -> SparseMoe:
    torch.manual_seed(0)
    return SparseMoe(CONFIG)


def rows_of(rank: int) -> torch.Tensor:
    """Processes have different numbers of rows; the last one's all want the same experts."""
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(30 + 11 * rank, CONFIG.dim, generator=generator)
    return rows[:1].expand(30, -1).clone() if rank else rows


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=NUM_PROCESSES
    )
    layer = whole_layer()
    layer.experts = SpreadExperts(layer.experts)
    rows = rows_of(rank).requires_grad_()
    output = layer(rows).output
    output.square().sum().backward()
    own = layer.experts.own
    found = {"output": output, "rows": rows.grad, "up": own.up.grad, "down": own.down.grad}
    save_file({name: one.detach() for name, one in found.items()}, f"{folder}/{rank}.safetensors")
    message = ""
    try:
        SpreadExperts(Experts(5, 4, 4, 4))
    except ValueError as error:
        message = str(error)
    Path(folder, f"{rank}.txt").write_text(message)
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("spread")
    multiprocessing.spawn(work, args=(str(path),), nprocs=NUM_PROCESSES)
    return path


def test_spread_experts_say_and_learn_what_whole_ones_do(folder):
    layer = whole_layer()
    rows = [rows_of(rank).requires_grad_() for rank in range(NUM_PROCESSES)]
    outputs = layer(torch.cat(rows)).output
    outputs.square().sum().backward()
    begin, own = 0, CONFIG.num_experts // NUM_PROCESSES
    for rank in range(NUM_PROCESSES):
        found = load_file(folder / f"{rank}.safetensors")
        expected = {
            "output": outputs[begin : begin + len(rows[rank])].detach(),
            "rows": rows[rank].grad,
            "up": layer.experts.up.grad[rank * own : (rank + 1) * own],
            "down": layer.experts.down.grad[rank * own : (rank + 1) * own],
        }
        begin += len(rows[rank])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_experts_that_do_not_come_out_even_are_refused(folder):
    for rank in range(NUM_PROCESSES):
        message = (folder / f"{rank}.txt").read_text()
        assert "got 5 experts for 2 devices; use 4 or 6 experts" in message
    with pytest.raises(ValueError, match="got 3 experts for 8 devices; use 8 experts"):
        experts_of_each(3, 8)
    assert experts_of_each(32, 8) == 4
