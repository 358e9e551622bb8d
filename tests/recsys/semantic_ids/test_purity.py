import pytest
import torch

from recsys.semantic_ids.quality import purity, purity_by_chance


def test_purity_counts_the_commonest_category_of_each_prefix() -> None:
    keys = torch.tensor([5, 5, 5, 9, 9])
    assert purity(keys, torch.tensor([1, 1, 0, 2, 0])) == pytest.approx(3 / 5)


def test_chance_is_high_where_prefixes_are_small_and_low_where_they_are_large() -> None:
    generator = torch.Generator().manual_seed(1)
    categories = torch.randint(4, (4000,), generator=generator)
    alone, few = torch.arange(4000), torch.arange(4000) % 4
    assert purity_by_chance(alone, categories) == 1.0
    assert purity_by_chance(few, categories) == pytest.approx(0.26, abs=0.02)
    # Prefixes that are the categories are pure, and dealt out at random they are not.
    assert purity(categories, categories) == 1.0
    assert purity_by_chance(categories, categories) == pytest.approx(0.26, abs=0.02)
