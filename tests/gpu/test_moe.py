import pytest
import torch

from recsys.kernels.choice import without
from recsys.layers.moe.experts import Experts, blocked_slots, grouped_slots
from recsys.layers.moe.layer import SparseMoe, SparseMoeConfig
from tests.recsys.testing.experts import loop_over_experts

pytestmark = pytest.mark.gpu
NUM_EXPERTS, TOP_K, DIM, HIDDEN_DIM = 16, 2, 64, 96


def choices(num_rows: int, *, empty: bool) -> torch.Tensor:
    """Two experts for each row; with ``empty``, a third of the experts get no row at all."""
    scores = torch.rand(num_rows, NUM_EXPERTS, generator=torch.Generator().manual_seed(1))
    if empty:
        scores[:, ::3] = -1
    return scores.topk(TOP_K, dim=1).indices


@pytest.mark.parametrize("off", [(), ("routed_experts",)], ids=["kernels", "batched"])
@pytest.mark.parametrize("empty", [False, True], ids=["all used", "empty experts"])
@pytest.mark.parametrize("num_rows", [1, 77, 4096])
def test_experts_agree_with_the_loop_in_float64(cuda, off, empty, num_rows):
    torch.manual_seed(0)
    layer = Experts(NUM_EXPERTS, DIM, HIDDEN_DIM, DIM).to(cuda).bfloat16()
    rows = torch.randn(num_rows, DIM, device=cuda).bfloat16()
    weights = torch.rand(num_rows, TOP_K, device=cuda)
    experts = choices(num_rows, empty=empty).to(cuda)
    grad = torch.randn(num_rows, DIM, device=cuda).bfloat16()
    leaves = [rows.requires_grad_(), weights.requires_grad_()]
    with without(*off):
        out = layer(*leaves[:1], experts, weights)
    found = [out, *torch.autograd.grad(out, [*leaves, layer.up, layer.down], grad)]
    wide = [one.detach().double().requires_grad_() for one in (*leaves, layer.up, layer.down)]
    true = loop_over_experts(wide[0], wide[2], wide[3], experts, wide[1])
    truth = [true, *torch.autograd.grad(true, wide, grad.double())]
    for ours, exact in zip(found, truth, strict=True):
        exact = exact.detach()
        error = (ours.detach().double() - exact).abs().max() / exact.abs().max()
        assert float(error) < 2e-2
    without_rows = torch.bincount(experts.flatten(), minlength=NUM_EXPERTS) == 0
    for gradient in found[3:]:
        assert not gradient[without_rows].any()


def test_slots_are_laid_out_as_on_a_cpu(cuda):
    for empty in (False, True):
        experts = choices(500, empty=empty)
        ours, plain = grouped_slots(experts.to(cuda), NUM_EXPERTS), grouped_slots(
            experts, NUM_EXPERTS
        )  # fmt: skip
        for found, expected in zip(ours, plain, strict=True):
            assert torch.equal(found.cpu(), expected)
        blocks, expected = (
            blocked_slots(experts.to(cuda), NUM_EXPERTS, 32),
            blocked_slots(experts, NUM_EXPERTS, 32),
        )
        assert torch.equal(blocks.slot_of.cpu(), expected.slot_of)
        count = len(expected.ends)
        assert torch.equal(blocks.ends[:count].cpu(), expected.ends)
        rows = blocks.row_of_slot.view(-1, 32)
        assert torch.equal(rows[:count].flatten().cpu(), expected.row_of_slot)


@pytest.mark.parametrize("router", ["sigmoid", "softmax"])
def test_a_layer_says_in_bfloat16_what_it_says_on_a_cpu(cuda, router):
    torch.manual_seed(2)
    config = SparseMoeConfig(
        dim=DIM, hidden_dim=HIDDEN_DIM, num_experts=NUM_EXPERTS, top_k=TOP_K, router=router
    )
    layer = SparseMoe(config).eval()
    rows = torch.randn(3000, DIM)
    expected = layer(rows)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = layer.to(cuda)(rows.to(cuda))
    same = (found.routing.experts.cpu() == expected.routing.experts).all(1)
    # Two scores so near that sums of another order swap them.
    assert float(same.float().mean()) > 0.99
    true = expected.output.detach()
    error = (found.output.detach().float().cpu() - true).abs()[same].max()
    assert float(error / true.abs().max()) < 2e-2


def test_a_step_of_training_is_captured_in_a_graph(cuda):
    torch.manual_seed(3)
    config = SparseMoeConfig(dim=DIM, hidden_dim=HIDDEN_DIM, num_experts=NUM_EXPERTS, top_k=TOP_K)
    layer = SparseMoe(config).to(cuda)
    # Biases that moved would send rows elsewhere in each replay.
    layer.router.moves_by_batch = False
    layer.experts.bfloat16()
    rows = torch.randn(2048, DIM, device=cuda).bfloat16()

    def step() -> torch.Tensor:
        output = layer(rows).output
        torch.autograd.grad(output.float().square().sum(), [*layer.parameters()])
        return output

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    replayed = found.clone()
    layer.eval()
    torch.testing.assert_close(replayed, layer(rows).output, rtol=2e-2, atol=2e-2)
