"""Semantic IDs: codes, collisions and quality."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.semantic_ids import collisions
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.collisions import assign_semantic_ids, resolve_collisions
from recsys.semantic_ids.quality import quality_report
from recsys.semantic_ids.rq_kmeans import Centres, ResidualKMeans
from recsys.semantic_ids.trie import Trie
from tests.recsys.semantic_ids.test_trie import walk
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics

SIZES = (4, 3, 5)


def all_ids(seed: int = 0) -> SemanticIds:
    keys = torch.randperm(60, generator=torch.Generator().manual_seed(seed))[:20]
    codes = torch.stack([keys // 15, keys // 5 % 3, keys % 5], dim=1)
    return SemanticIds.of_items(codes, level_sizes=SIZES, quantizer_digest="q")


def test_version_depends_on_codes_quantizer_and_parent() -> None:
    ids = all_ids()
    others = [
        all_ids(seed=1),
        *(
            replace(ids, **change)
            for change in ({"quantizer_digest": "r"}, {"parent": "p"}, {"level_sizes": (4, 3, 6)})
        ),
    ]
    assert len({ids.version, *(other.version for other in others)}) == 5
    assert all_ids().version == ids.version


@pytest.mark.parametrize("part", ["semantic_ids.safetensors", "semantic_ids.json"])
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, part: str) -> None:
    """A trie is built from the IDs, so what it lists is what was published (FAULTS 6)."""
    ids = all_ids()
    ids.save(tmp_path)
    path = tmp_path / part
    content, refused = path.read_bytes(), 0
    bits = range(0, 8 * len(content), 5)
    for bit in bits:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            trie = Trie.of_items(SemanticIds.load(tmp_path, ids.version))
        except ValueError:
            refused += 1
        else:
            # White space, or a number that is only described.
            assert part == "semantic_ids.json"
            assert trie.item_rows(walk(trie, ids.codes[ids.item_rows])).equal(ids.item_rows)
    assert refused > 0.9 * len(bits)
    path.unlink()
    with pytest.raises(ValueError, match="missing"):
        SemanticIds.load(tmp_path)


def random_quantizer(sizes: tuple[int, ...]) -> ResidualKMeans:
    generator = torch.Generator().manual_seed(0)
    levels = enumerate(sizes)
    return ResidualKMeans(
        [
            Centres(torch.randn(n, 4, generator=generator) / 2**at, torch.zeros(n))
            for at, n in levels
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


def test_the_nearest_item_keeps_its_code_and_the_next_gets_the_nearest_free() -> None:
    book = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    quantizer = ResidualKMeans([Centres(book, torch.zeros(4))])
    vectors = torch.tensor([[0.3], [0.1], [0.2]])
    unique = resolve_collisions(quantizer, vectors, quantizer.encode(vectors)).codes
    # 0.1 keeps code 0; 0.3 is nearer to code 1 than 0.2 is; 0.2 goes on to code 2.
    assert unique[:, 0].tolist() == [1, 0, 2]
    many = torch.ones(5, 1)
    assert_refused(
        {
            "5 items and 0 published IDs do not fit the 4 IDs": lambda: resolve_collisions(
                quantizer, many, quantizer.encode(many)
            )
        }
    )


def square_world() -> tuple[ResidualKMeans, torch.Tensor]:
    """Return 2 x 2 codes and items: two in each of three cells, row 0 padding."""
    quantizer = ResidualKMeans(
        [
            Centres(torch.tensor([[10.0, 0.0], [0.0, 10.0]]), torch.zeros(2)),
            Centres(torch.tensor([[0.0, 1.0], [0.0, -1.0]]), torch.zeros(2)),
        ]
    )
    items = quantizer.decode(torch.tensor([[0, 0], [0, 0], [0, 1], [1, 0]]))
    return quantizer, torch.cat([torch.zeros(1, 2), items])


def test_the_report_of_four_items_worked_out_by_hand() -> None:
    quantizer, vectors = square_world()
    ids = assign_semantic_ids(quantizer, vectors)
    report = quality_report(quantizer, vectors, ids)
    first, second = report.levels
    assert (report.num_items, report.collisions_before, report.largest_group) == (4, 1, 2)
    assert report.collisions_after == 0
    # One of the two items of the full ID gave way.
    assert report.moved == (0.25, 0.25)
    assert report.reconstruction_error == pytest.approx(0, abs=1e-9)
    assert (first.num_used, first.utilisation) == (2, 1)
    assert first.perplexity == pytest.approx(2**0.811278, abs=1e-4)
    assert (first.num_prefixes, second.num_prefixes) == (2, 3)
    # Three of six pairs share the first code, one of six both.
    assert first.agreement_by_chance == pytest.approx(0.5)
    assert second.agreement_by_chance == pytest.approx(1 / 6)
    # All others are neighbours here: of each of three items two of three share the first code.
    assert first.neighbour_agreement == pytest.approx(0.5)
    json.dumps(asdict(report))
    same = torch.tensor([[1, 2, 3], [0, 0, 0], [1, 2, 3]])
    assert_refused(
        {
            "rows 1 and 3 share the semantic ID 1-2-3": lambda: SemanticIds.of_items(
                same, level_sizes=SIZES, quantizer_digest="q"
            )
        }
    )
