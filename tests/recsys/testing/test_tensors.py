import torch

from recsys.testing.tensors import nan_filled_empty


def forgets_the_last_row(rows: int) -> torch.Tensor:
    out = torch.empty(rows, 2)
    out[:-1] = 1.0
    return out


def test_unwritten_memory_is_nan_inside_and_left_alone_after():
    with nan_filled_empty():
        out = forgets_the_last_row(3)
        like = torch.empty_like(out, requires_grad=True)
        whole = torch.empty(2, dtype=torch.int64)
    assert out[:-1].eq(1).all()
    assert out[-1].isnan().all()
    assert like.requires_grad
    assert like.isnan().all()
    assert whole.eq(torch.iinfo(torch.int64).max).all()
    assert torch.empty.__module__ != "recsys.testing.tensors"
    torch.testing.assert_close(torch.empty(1).fill_(2.0), torch.tensor([2.0]))
