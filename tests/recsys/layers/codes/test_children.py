import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.layers.codes.tokens import CodeChildren

SIZES = (3, 4, 2)
ONE_ID = st.tuples(*(st.integers(0, size - 1) for size in SIZES))


@settings(max_examples=60, deadline=None)
@given(st.lists(ONE_ID, unique=True, max_size=15), st.lists(ONE_ID, max_size=5), st.integers(0, 2))
def test_names_the_codes_that_some_item_has_behind_each_prefix(ids, asked, level) -> None:
    codes = torch.tensor([(-1, -1, -1), *ids]).view(-1, 3)
    children = CodeChildren(codes, SIZES)
    prefixes = torch.zeros(len(asked), dtype=torch.int64)
    for place in range(level):
        prefixes = prefixes * SIZES[place] + torch.tensor([one[place] for one in asked]).long()
    found = children(prefixes, level)
    assert found.shape == (len(asked), SIZES[level])
    for row, prefix in zip(found, asked, strict=True):
        behind = {one[level] for one in ids if one[:level] == prefix[:level]}
        assert set(row.nonzero()[:, 0].tolist()) == behind
