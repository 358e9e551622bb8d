import pytest
import torch

from recsys.layers.moe.layer import SparseMoe, SparseMoeConfig

pytestmark = pytest.mark.gpu
NUM_EXPERTS, TOP_K, DIM, HIDDEN_DIM = 16, 2, 64, 96


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
