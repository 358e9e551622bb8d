import re
from pathlib import Path

import pytest
import torch

from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.trie import Trie

SIZES = (4, 3, 5)


def all_ids(num_items: int = 20, seed: int = 0) -> SemanticIds:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randperm(60, generator=generator)[:num_items]
    codes = torch.stack([keys // 15, keys // 5 % 3, keys % 5], dim=1)
    return SemanticIds.of_items(codes, level_sizes=SIZES, quantizer_digest="q")


def test_codes_and_item_rows_are_inverse() -> None:
    ids = all_ids()
    rows = torch.arange(1, 21)
    assert torch.equal(ids.find_item_rows(ids.codes[rows]), rows)
    assert torch.equal(ids.item_rows, rows)
    assert ids.num_levels == 3
    assert ids.num_item_rows == 21


def test_two_items_with_one_id_are_refused_by_row() -> None:
    codes = torch.tensor([[1, 2, 3], [0, 0, 0], [1, 2, 3]])
    with pytest.raises(ValueError, match="rows 1 and 3 share the semantic ID 1-2-3"):
        SemanticIds.of_items(codes, level_sizes=SIZES, quantizer_digest="q")


@pytest.mark.parametrize("codes", [[4, 0, 0], [0, 0, -1], [-1, 0, 0], [0, 3, 0]])
def test_codes_out_of_range_are_refused(codes: list[int]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"item row 1 has codes {codes}")):
        SemanticIds.of_items(torch.tensor([codes]), level_sizes=SIZES, quantizer_digest="q")


@pytest.mark.parametrize("rows", [[0, 1], [1, 1], [1]])
def test_item_rows_must_be_one_per_item_and_not_the_padding(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="row"):
        SemanticIds.of_items(
            torch.tensor([[0, 0, 0], [1, 0, 0]]),
            level_sizes=SIZES,
            quantizer_digest="q",
            item_rows=torch.tensor(rows),
        )


def test_version_depends_on_codes_quantizer_and_parent() -> None:
    ids = all_ids()
    others = [
        all_ids(seed=1),
        SemanticIds(codes=ids.codes, level_sizes=SIZES, quantizer_digest="r"),
        SemanticIds(codes=ids.codes, level_sizes=SIZES, quantizer_digest="q", parent="p"),
        SemanticIds(codes=ids.codes, level_sizes=(4, 3, 6), quantizer_digest="q"),
    ]
    assert len({ids.version, *(other.version for other in others)}) == 5
    assert all_ids().version == ids.version


def test_another_version_is_refused_with_both_named(tmp_path: Path) -> None:
    ids, other = all_ids(), all_ids(seed=1)
    ids.save(tmp_path)
    with pytest.raises(ValueError, match=f"{ids.version}, expected {other.version}"):
        SemanticIds.load(tmp_path, expected_version=other.version)


@pytest.mark.parametrize("part", ["semantic_ids.safetensors", "semantic_ids.json"])
def test_damaged_or_missing_files_are_refused(tmp_path: Path, part: str) -> None:
    all_ids().save(tmp_path)
    path = tmp_path / part
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"refused|version"):
        SemanticIds.load(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="missing"):
        SemanticIds.load(tmp_path)


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
            assert trie.item_rows(trie.walk(ids.codes[ids.item_rows])).equal(ids.item_rows)
    assert refused > 0.9 * len(bits)


def test_an_unknown_format_is_refused_with_both_formats(tmp_path: Path) -> None:
    all_ids().save(tmp_path)
    path = tmp_path / "semantic_ids.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(ValueError, match="format is 9, this version of the package reads 1"):
        SemanticIds.load(tmp_path)
