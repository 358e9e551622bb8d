"""The report of semantic IDs: known numbers, in the page and in the JSON."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelines.pages.document import Table
from pipelines.pages.file import write_page
from pipelines.pages.semantic_ids import semantic_ids_page
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.kmeans import Centres
from recsys.semantic_ids.lifecycle import retire
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from tests.pipelines.dashboard.documents import block_of, blocks_of
from tests.pipelines.pages.conftest import planted, planted_items

HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed",
    "W" * 300,
)


def page_of(made):
    return semantic_ids_page(made)


def swapped():
    """Make a version of which items 1 and 2 had the codes of each other, and others moved."""
    ids = planted()["ids"]
    codes = ids.codes.clone()
    codes[1], codes[2] = ids.codes[2], ids.codes[1]
    codes[5] = torch.tensor([1, 1, 0])
    codes[7] = ids.codes[5]
    codes[8] = -1
    return replace(ids, codes=codes)


def test_numbers_of_a_planted_version(planted_ids):
    report = planted_ids().report
    assert (report.level_sizes, report.num_content_levels) == ((2, 2, 2), 2)
    assert (report.num_items, report.num_with_id, report.num_waiting) == (8, 8, 0)
    assert (report.content.collisions_before, report.num_shared) == (4, 0)
    assert report.content.largest_group == 2
    assert report.content.groups_before == ((2, 4),)
    assert report.usage == [[4, 4], [4, 4]]
    assert [level.num_prefixes for level in report.levels] == [2, 4, 8]
    assert [level.perplexity for level in report.levels] == [2, 2, 2]
    # Of the items with a category, three of first code 0 are x; of first code 1 three of four y.
    assert report.num_with_category == 7
    assert report.levels[0].purity == pytest.approx(6 / 7)
    assert report.levels[0].purity_by_chance < 6 / 7


def test_drift_counts_kept_gained_and_moved_items(planted_ids):
    made = planted_ids(before=swapped())
    drift = made.drift
    assert (drift.num_added, drift.num_removed) == (1, 0)
    # Of seven items 3, 4 and 6 kept all, 1 and 2 all but the last code, 5 and 7 only the first.
    assert drift.kept.num_items == 7
    assert drift.kept.full == pytest.approx(3 / 7)
    assert drift.kept.per_prefix == pytest.approx([1, 5 / 7, 3 / 7])
    page = page_of(made)
    assert [row[2] for row in block_of(page, Table, "kept").rows] == pytest.approx(
        [1, 5 / 7, 3 / 7]
    )
    other = page_of(planted_ids(before=replace(planted()["ids"], level_sizes=(4, 2, 2))))
    assert "must be trained from scratch" in str(other)
    assert "kept" not in {one.key for one in blocks_of(other.blocks, Table)}


def test_items_without_an_id_and_ids_without_an_item_are_counted(planted_ids):
    parts = planted()
    vectors = parts["vectors"].clone()
    vectors[5] = 0
    # Item 5 has no content; item 3 has content and no ID; id row 8 is of no item any more.
    made = planted_ids(
        ids=retire(parts["ids"], torch.tensor([3])),
        id_rows=np.array([0, 1, 2, 3, 4, 0, 6, 7]),
        vectors=vectors[:8],
        items=planted_items("ABCDEFG", [9, 8, 7, 6, 5, 4, 3], "xxx" + "yyyy"),
        made=parts["made"] | {"num_without_content": 1},
    )
    report = made.report
    assert (report.num_items, report.num_with_id, report.num_waiting) == (7, 5, 1)
    assert (report.num_departed, report.content.num_items) == (2, 5)
    first, second = page_of(made).notices[:2]
    assert first.startswith("1 item has no content")
    assert "recsys ids append" in second


def test_tables_hold_the_measured_numbers(planted_ids):
    made = planted_ids(before=swapped())
    report, page = made.report, page_of(made)
    levels = block_of(page, Table, "levels").rows
    for place, level in enumerate(report.levels):
        assert list(levels[place][1:4]) == [level.size, level.num_used, level.utilisation]
    first = report.levels[0]
    kept = block_of(page, Table, "prefixes-kept").rows[0]
    names = ("neighbour_agreement", "agreement_by_chance", "purity", "purity_by_chance")
    assert list(kept[2:6]) == [getattr(first, name) for name in names]
    assert kept[6] == report.content.errors_by_level[0]
    assert ("version", report.version) in block_of(page, Table, "made").rows


def test_titles_and_categories_are_only_text(planted_ids, tmp_path):
    items = planted_items([*HOSTILE, *"EFGH"], range(8, 0, -1), [HOSTILE[1]] * 8)
    made = planted_ids(items=items, title=HOSTILE[1])
    write_page(page_of(made), tmp_path / "ids.html")
    text = (tmp_path / "ids.html").read_text(encoding="utf-8")
    assert "<" not in text.split('type="application/json">')[1].split("</script>")[0]
    assert text.lower().count("<script") == text.lower().count("</script>") == 4
    lines = [row[4] for row in block_of(page_of(made), Table, "first-codes").rows]
    assert all(any(title in line for line in lines) for title in HOSTILE[:3])
    assert max(map(len, lines)) <= 700


def test_another_quantizer_and_no_ids_are_refused(planted_ids):
    turned = planted()["quantizer"].relabelled([torch.tensor([1, 0]), torch.tensor([0, 1])])
    with pytest.raises(ValueError, match=turned.digest[:12]):
        planted_ids(quantizer=turned)
    with pytest.raises(ValueError, match="no item"):
        planted_ids(id_rows=np.zeros(9, np.int64))


def test_unused_and_crowded_codes_are_warned_of(planted_ids):
    codes = torch.cat([torch.zeros(30, 1), torch.arange(30)[:, None]], 1).int()
    codes = torch.cat([torch.full((1, 2), -1, dtype=torch.int32), codes])
    generator = torch.Generator().manual_seed(0)
    quantizer = ResidualKMeans(
        [Centres(torch.randn(40, 2, generator=generator), torch.zeros(40)) for _ in range(2)]
    )
    made = planted_ids(
        quantizer=quantizer,
        ids=SemanticIds(codes=codes, level_sizes=(40, 40), quantizer_digest=quantizer.digest),
        vectors=torch.randn(31, 2, generator=generator),
        id_rows=np.arange(31),
        items=planted_items([str(row) for row in range(30)], [0] * 30, [""] * 30),
    )
    warned = " ".join(page_of(made).notices)
    assert "Level 1 uses 1 of its 40 codes (2.5%)" in warned
    assert "The most used first code has 40 times the mean" in warned
