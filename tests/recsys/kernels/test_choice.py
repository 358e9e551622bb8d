"""The switch of the kernels, and what it says of a device."""

from __future__ import annotations

import pytest
import torch

from recsys.kernels.choice import KERNELS, is_on, parsed_switch, runs, summary, uses, without
from recsys.kernels.hstu_attention.op import hstu_attention, reference_attention

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.kernels.choice.has_triton", lambda: True)


@pytest.mark.usefixtures("_triton")
def test_on_a_gpu_every_kernel_runs_but_those_that_are_off() -> None:
    assert [use.kernel for use in uses(GPU) if use.runs] == list(KERNELS)
    with without("hstu_attention", "topk_search"):
        off = {use.kernel: use.reason for use in uses(GPU) if not use.runs}
        assert off == {
            "hstu_attention": "RECSYS_KERNELS_OFF names it: padded attention in torch",
            "topk_search": "RECSYS_KERNELS_OFF names it: torch's product and topk",
        }
        with without("all"):
            assert summary(GPU).startswith("kernels on cuda: none; without embedding_bag,")
        assert not is_on("hstu_attention")
    assert is_on("hstu_attention")


def test_a_name_that_is_no_kernels_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="names hstu, which is no kernel; there are embedding_bag"):
        parsed_switch("topk_search, hstu")
    assert parsed_switch(" topk_search ,") == {"topk_search"}
    assert parsed_switch("") == set()


@pytest.mark.interpreted(only=True)
def test_a_kernel_that_is_off_gives_way_to_its_reference() -> None:
    torch.manual_seed(0)
    offsets = torch.tensor([0, 5, 5, 12])
    q, k, v = (torch.randn(12, 2, 16) for _ in range(3))
    assert runs("hstu_attention", q)
    found = hstu_attention(q, k, v, offsets, 8)
    with without("hstu_attention"):
        assert not runs("hstu_attention", q)
        expected = hstu_attention(q, k, v, offsets, 8)
    assert torch.equal(expected, reference_attention(q, k, v, offsets, 8))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
