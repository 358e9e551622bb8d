"""The sort of keys with values against torch's, on CUDA."""

import pytest
import torch

from recsys.kernels.embedding_bag import radix_sort

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("num_keys", [1, 2, 300, 1 << 18, 10_000_001, 32_000_001, (1 << 31) - 1])
@pytest.mark.parametrize("count", [1, 2047, 2048, 70_001, 600_000, 3_000_003])
def test_sorts_stably_as_torch(cuda: torch.device, num_keys: int, count: int) -> None:
    generator = torch.Generator(cuda).manual_seed(count)
    draws = torch.rand(count, generator=generator, device=cuda, dtype=torch.float64)
    for power in (1, 8):
        keys = (draws.pow(power) * num_keys).to(torch.int32)
        values = torch.randint(1 << 30, (count,), generator=generator, device=cuda).int()
        own = radix_sort.sorter(cuda, count, num_keys)
        assert own is not None
        expected, order = torch.sort(keys, stable=True)
        for given, true in ((values, values[order]), (None, order)):
            work = torch.full((3 * count + 5,), -1, dtype=torch.int32, device=cuda)
            words = torch.full((5 + own.num_words(count),), -1, dtype=torch.int32, device=cuda)
            words[5:] = 0
            found = radix_sort.sort_pairs(own, keys, given, work, words)
            assert torch.equal(found, expected)
            assert torch.equal(work[:count], true.int())


def test_what_it_cannot_sort_is_left_to_torch(cuda: torch.device) -> None:
    assert radix_sort.sorter(cuda, 3, (1 << 31) + 1) is None
    assert radix_sort.sorter(cuda, 0, 5) is None
    assert radix_sort.sorter(torch.device("cpu"), 3, 5) is None
