"""Parts side by side are those one after the other, to the last bit."""

import threading
from collections.abc import Iterator

import pytest
import torch

from recsys.data import threads
from recsys.data.threads import side_by_side


@pytest.fixture(params=[1, 2])
def torch_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_are_in_order_and_have_no_gradients(torch_threads: int) -> None:
    weight = torch.ones(3, requires_grad=True)
    together = threading.Barrier(2, timeout=30)

    def make(part: int) -> torch.Tensor:
        if torch_threads == 1:
            # Two parts are on their way at a time.
            together.wait()
        assert torch.get_num_threads() == torch_threads
        return weight * part

    found = side_by_side(make, range(4))
    assert [one[0].item() for one in found] == [0, 1, 2, 3]
    assert not any(one.requires_grad for one in found)
    assert torch.get_num_threads() == torch_threads
    assert torch.is_grad_enabled()


def test_what_goes_wrong_in_a_part_is_raised(torch_threads: int) -> None:
    def make(part: int) -> int:
        if part == 2:
            raise ValueError("part 2")
        return part

    with pytest.raises(ValueError, match="part 2"):
        side_by_side(make, range(4))
