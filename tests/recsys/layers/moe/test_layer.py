import pytest
import torch

from recsys.layers.moe.experts import Experts, blocked_slots, grouped_slots
from recsys.layers.moe.layer import SparseMoe, SparseMoeConfig
from tests.recsys.testing.experts import loop_over_experts

CASES = {
    "uneven": (513, 16, 3),
    "one row": (1, 3, 1),
    "all rows to two experts": (100, 8, 2),
    "no rows": (0, 4, 2),
}


def choices(num_rows: int, num_experts: int, top_k: int, *, same: bool) -> torch.Tensor:
    if same:
        return torch.arange(top_k).expand(num_rows, -1).contiguous()
    return torch.rand(num_rows, num_experts).topk(top_k, dim=1).indices


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("training", [True, False])
def test_experts_agree_with_the_loop_forward_and_backward(case, training):
    torch.manual_seed(1)
    num_rows, num_experts, top_k = CASES[case]
    rows = torch.randn(num_rows, 24, requires_grad=True)
    weights = torch.rand(num_rows, top_k, requires_grad=True)
    experts = choices(num_rows, num_experts, top_k, same=case.startswith("all"))
    layer = Experts(num_experts, 24, 32, 16).train(training)
    leaves = [rows, weights, layer.up, layer.down]
    true = loop_over_experts(rows, layer.up, layer.down, experts, weights)
    found = [
        [out, *torch.autograd.grad(out.square().sum(), leaves)]
        for out in (layer(rows, experts, weights), true)
    ]
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-5, atol=1e-5)


def test_slots_hold_every_visit_once_whatever_the_load():
    torch.manual_seed(2)
    for same in (True, False):
        experts = choices(50, 6, 2, same=same)
        blocks = blocked_slots(experts, 6, 8)
        owner = blocks.ends[blocks.slot_of // 8]
        assert torch.equal(owner, experts.flatten())
        assert len(blocks.slot_of.unique()) == 100
        # Less than a block of padding for each expert.
        assert len(blocks.row_of_slot) < 100 + 6 * 8
        ends = grouped_slots(experts, 6).ends
        assert torch.equal(ends.diff(prepend=ends.new_zeros(1)), torch.bincount(
            experts.flatten(), minlength=6
        ).int())  # fmt: skip


def test_a_rows_bits_do_not_depend_on_the_other_rows():
    torch.manual_seed(3)
    layer = SparseMoe(SparseMoeConfig(dim=64, hidden_dim=48, num_experts=8)).eval()
    rows = torch.randn(128, 64)
    with torch.no_grad():
        together = layer(rows).output
        shuffled = torch.randperm(128)
        assert torch.equal(layer(rows[shuffled]).output, together[shuffled])
        others = torch.randn(128, 64)
        others[77] = rows[5]
        assert torch.equal(layer(others).output[77], together[5])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SparseMoeConfig(dim=8, hidden_dim=8, num_experts=4, top_k=5), "top_k must be in"),
        (
            lambda: SparseMoe(SparseMoeConfig(dim=8, hidden_dim=8, num_experts=4, router="x")),
            "scores is",
        ),
        (lambda: Experts(0, 8, 8, 8), "positive sizes"),
    ],
)
def test_impossible_layers_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10)], ids=["bf16", "fp16"]
)
@pytest.mark.parametrize("training", [True, False])
def test_low_precision_is_near_full_precision(dtype, tolerance, training):
    torch.manual_seed(6)
    layer = SparseMoe(SparseMoeConfig(dim=24, hidden_dim=8, num_experts=8)).eval()
    rows = torch.randn(50, 24)
    full = layer(rows).output.detach()
    with torch.set_grad_enabled(training), torch.autocast("cpu", dtype=dtype):
        found = layer(rows).output
    assert found.dtype == dtype
    # Beside the largest number, whose rounding step the tolerance is.
    error = (found.detach().float() - full).abs().max() / full.abs().max()
    assert float(error) < 2 * tolerance
