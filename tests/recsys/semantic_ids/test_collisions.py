import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.semantic_ids import collisions
from recsys.semantic_ids.collisions import (
    resolve_collisions,
)
from recsys.semantic_ids.kmeans import Centres
from recsys.semantic_ids.rq_kmeans import ResidualKMeans


def random_quantizer(sizes: tuple[int, ...], dim: int = 4, seed: int = 0) -> ResidualKMeans:
    generator = torch.Generator().manual_seed(seed)
    return ResidualKMeans(
        [
            Centres(torch.randn(size, dim, generator=generator) / 2**level, torch.zeros(size))
            for level, size in enumerate(sizes)
        ]
    )


def num_distinct(codes: Tensor) -> int:
    return len(torch.unique(codes, dim=0))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    fill=st.floats(0, 1),
    kind=st.sampled_from(["equal", "random", "two points", "zero"]),
    published=st.floats(0, 1),
    cells=st.sampled_from([1, 7, 2**26]),
)
def test_ids_are_unique_up_to_the_last_free_one(
    sizes: tuple[int, ...], fill: float, kind: str, published: float, cells: int
) -> None:
    capacity = int(torch.tensor(sizes).prod())
    generator = torch.Generator().manual_seed(0)
    num_taken = int(published * capacity)
    everything = torch.cartesian_prod(*[torch.arange(size) for size in sizes]).view(capacity, -1)
    taken = everything[torch.randperm(capacity, generator=generator)[:num_taken]].int()
    count = round(fill * (capacity - num_taken))
    vectors = {
        "equal": torch.ones(count, 4),
        "zero": torch.zeros(count, 4),
        "random": torch.randn(count, 4, generator=generator),
        "two points": (torch.arange(count) % 2)[:, None].float().expand(-1, 4),
    }[kind]
    quantizer = random_quantizer(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collisions, "CHUNK_CELLS", cells)
        codes = quantizer.encode(vectors)
        unique = resolve_collisions(quantizer, vectors, codes, taken=taken)
    assert unique.level_sizes == sizes
    assert num_distinct(torch.cat([unique.codes, taken])) == count + num_taken
    assert bool(((unique.codes >= 0) & (unique.codes < torch.tensor(sizes))).all())


@pytest.mark.parametrize("equal", [True, False])
def test_exactly_as_many_items_as_ids_fit_and_one_more_is_refused(equal: bool) -> None:
    quantizer = random_quantizer((16, 16))
    generator = torch.Generator().manual_seed(0)
    vectors = torch.ones(257, 4) if equal else torch.randn(257, 4, generator=generator)
    codes = quantizer.encode(vectors)
    full = resolve_collisions(quantizer, vectors[:256], codes[:256])
    assert num_distinct(full.codes) == 256
    with pytest.raises(ValueError, match="257 items and 0 published IDs do not fit the 256 IDs"):
        resolve_collisions(quantizer, vectors, codes)


def test_the_nearest_item_keeps_its_code_and_the_next_gets_the_nearest_free() -> None:
    book = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    quantizer = ResidualKMeans([Centres(book, torch.zeros(4))])
    vectors = torch.tensor([[0.3], [0.1], [0.2]])
    codes = quantizer.encode(vectors)
    unique = resolve_collisions(quantizer, vectors, codes).codes
    # 0.1 keeps code 0; 0.3 is nearer to code 1 than 0.2 is; 0.2 goes on to code 2.
    assert unique[:, 0].tolist() == [1, 0, 2]
