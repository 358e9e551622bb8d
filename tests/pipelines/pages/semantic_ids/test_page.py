"""The report of semantic IDs: numbers worked out by hand, and a page that shows exactly these."""

import json
from dataclasses import asdict, replace
from math import log2

import numpy as np
import polars as pl
import pytest
import torch

from pipelines.pages.encoding import encoded
from pipelines.pages.semantic_ids.data import Catalogue, ReportedIds, read_catalogue
from pipelines.pages.semantic_ids.numbers import group_shares, numbers_of
from pipelines.pages.semantic_ids.page import (
    marked_id,
    semantic_ids_page,
    write_semantic_id_report,
)
from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.collisions import assign_semantic_ids
from recsys.semantic_ids.kmeans import Centres
from recsys.semantic_ids.lifecycle import retire
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from tests.pipelines.pages.read import blocks_in, document_in
from tests.pipelines.pages.synthetic_evaluation import (
    SyntheticEvaluation,
    write_synthetic_evaluation,
)

HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "</script><script>window.broken=1</script>",
    "{{ 7 * 7 }} {% raw %}",
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed \U0001f600",
    "W" * 300,
    "",
)


def written(reported, folder):
    path = folder / "ids.html"
    numbers = write_semantic_id_report(reported, path)
    assert document_in(path)
    return path, json.loads(numbers.read_text(encoding="utf-8"))


def test_numbers_of_eight_items_worked_out_by_hand(planted_ids, tmp_path):
    reported = planted_ids()
    _, numbers = written(reported, tmp_path)
    assert numbers["version"] == reported.ids.version
    assert numbers["level_sizes"] == [2, 2, 2]
    assert numbers["num_content_levels"] == 2
    assert numbers["counts"] == {
        "num_items": 8,
        "num_with_id": 8,
        "num_without_content": 0,
        "num_without_id": 0,
        "num_departed": 0,
        "num_retired": 0,
    }
    quality = numbers["quality"]
    assert (quality["collisions_before"], quality["collisions_after"]) == (4, 0)
    assert quality["largest_group"] == 2
    assert numbers["groups_before"]["2 to 5"] == numbers["groups_after"]["alone"] == 1
    assert numbers["usage"] == [[4, 4], [4, 4]]
    first, second, third = numbers["depths"]
    assert [depth["median_items"] for depth in (first, second, third)] == [4, 2, 1]
    assert [depth["num_prefixes"] for depth in (first, second, third)] == [2, 4, 8]
    assert [level["perplexity"] for level in quality["published"]] == [2, 2, 2]
    # Of the items with a category, three of first code 0 are x; of first code 1 three of four y.
    assert numbers["num_with_category"] == 7
    assert quality["published"][0]["purity"] == pytest.approx(6 / 7)
    assert quality["published"][0]["purity_by_chance"] < 6 / 7
    assert first["shares"]["2 to 5"] == 1
    assert numbers["drift"] is None


def test_examples_are_popular_and_tail_items_beside_their_prefixes(planted_ids, tmp_path):
    _, numbers = written(planted_ids(), tmp_path)
    examples = numbers["examples"]
    # The most popular item of each first code, then the next ones; the tail from the other end.
    assert [one["title"] for one in examples] == ["A", "E", "B", "C", "H", "D", "G", "F"]
    assert [one["kind"] for one in examples] == ["popular"] * 4 + ["tail"] * 4
    a = examples[0]
    assert (a["semantic_id"], a["popularity"], a["categories"]) == ("0-0-0", 90, ["x"])
    deepest, first = a["groups"]
    assert (deepest["num_shared"], deepest["num_items"]) == (2, 1)
    assert [one["title"] for one in deepest["listed"]] == ["B"]
    assert (first["num_shared"], first["num_items"]) == (1, 3)
    assert {one["title"] for one in first["listed"]} == {"C", "D"}
    assert a["nearest"][0]["title"] == "B"
    assert a["nearest"][0]["num_shared"] == 2
    assert [one["num_shared"] for one in a["nearest"][3:]] == [0, 0, 0, 0]
    likeness = [one["similarity"] for one in a["nearest"]]
    assert likeness == sorted(likeness, reverse=True)


def test_without_events_examples_are_spread_over_the_catalogue(planted_ids, tmp_path):
    _, numbers = written(planted_ids(has_popularity=False), tmp_path)
    assert {one["kind"] for one in numbers["examples"]} == {"spread"}


def test_drift_tells_what_was_kept_gained_lost_and_moved(planted_ids, tmp_path):
    now = planted_ids()
    codes = now.ids.codes.clone()
    codes[1], codes[2] = now.ids.codes[2], now.ids.codes[1]
    codes[5] = torch.tensor([0, 0, 0]) + torch.tensor([1, 1, 0])
    codes[7] = now.ids.codes[5]
    codes[8] = -1
    previous = replace(now.ids, codes=codes)
    page, numbers = written(replace(now, previous=previous), tmp_path)
    drift = numbers["drift"]
    assert drift["previous_version"] == previous.version
    assert (drift["num_added"], drift["num_removed"]) == (1, 0)
    # Of seven items 3, 4 and 6 kept all, 1 and 2 all but the last code, 5 and 7 only the first.
    assert drift["kept"]["num_items"] == 7
    assert drift["kept"]["full"] == pytest.approx(3 / 7)
    assert drift["kept"]["per_prefix"] == pytest.approx([1, 5 / 7, 3 / 7])
    moved = {one["title"]: one for one in drift["moved"]}
    assert {title: one["num_kept"] for title, one in moved.items()} == {
        "E": 1,
        "G": 1,
        "A": 2,
        "B": 2,
    }
    assert (moved["A"]["before"], moved["A"]["after"]) == ("0-0-1", "0-0-0")
    assert (moved["E"]["before"], moved["E"]["after"]) == ("1-1-0", "1-0-0")
    assert moved["E"]["neighbours_after"] == ["F"]
    shown = {one["key"]: one for one in blocks_in(page)}
    assert shown["drift"]["rows"][-1][:2] == ["whole ID", "42.9%"]
    assert [row[:3] for row in shown["moved"]["rows"]][2] == ["A", "[0-0]-1", "[0-0]-0"]


def test_a_version_with_other_levels_is_not_compared_code_by_code(planted_ids, tmp_path):
    now = planted_ids()
    previous = replace(now.ids, level_sizes=(4, 2, 2))
    page, numbers = written(replace(now, previous=previous), tmp_path)
    assert numbers["drift"]["kept"] is None
    assert numbers["drift"]["previous_level_sizes"] == [4, 2, 2]
    assert not [one for one in blocks_in(page) if one["key"] == "drift" and one["kind"] == "chart"]


def test_item_rows_may_lie_otherwise_than_id_rows(planted_ids, tmp_path):
    straight = planted_ids()
    order = np.array([0, 3, 1, 8, 2, 7, 5, 4, 6])
    catalogue = straight.catalogue
    turned = replace(
        straight,
        id_rows=order,
        vectors=straight.vectors[order],
        catalogue=Catalogue(
            titles=[catalogue.titles[row] for row in order],
            categories=[catalogue.categories[row] for row in order],
            popularity=catalogue.popularity[order],
        ),
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert written(turned, tmp_path / "b")[1] == written(straight, tmp_path / "a")[1]


def test_who_has_no_id_and_whose_item_is_gone_is_counted_and_told(planted_ids, tmp_path):
    whole = planted_ids()
    ids = retire(whole.ids, torch.tensor([3]))
    vectors = whole.vectors.clone()
    vectors[5] = 0
    catalogue = whole.catalogue
    # Item 5 has no content; item 3 has content and no ID; id row 8 is of no item any more.
    part = replace(
        whole,
        ids=ids,
        id_rows=np.array([0, 1, 2, 3, 4, 0, 6, 7]),
        vectors=vectors[:8],
        catalogue=Catalogue(
            titles=catalogue.titles[:8],
            categories=catalogue.categories[:8],
            popularity=catalogue.popularity[:8],
        ),
        num_retired=1,
    )
    page, numbers = written(part, tmp_path)
    assert numbers["counts"] == {
        "num_items": 7,
        "num_with_id": 5,
        "num_without_content": 1,
        "num_without_id": 2,
        "num_departed": 2,
        "num_retired": 1,
    }
    assert numbers["quality"]["num_items"] == 5
    first, second = document_in(page)["notices"][:2]
    assert first.startswith("1 item has no content")
    assert "recsys ids append" in second


def test_every_number_of_the_page_is_in_the_json(planted_ids, tmp_path):
    now = planted_ids()
    codes = now.ids.codes.clone()
    codes[1], codes[2] = now.ids.codes[2], now.ids.codes[1]
    page, numbers = written(replace(now, previous=replace(now.ids, codes=codes)), tmp_path)
    shown = {one["key"]: one for one in blocks_in(page) if one["kind"] != "section"}
    quality = numbers["quality"]
    for place, level in enumerate(quality["published"]):
        row = shown["levels"]["rows"][place]
        assert row[1:4] == [level["size"], level["num_used"], level["utilisation"]]
        assert row[4:6] == [round(level["perplexity"], 1), round(level["entropy_bits"], 2)]
        assert level["entropy_bits"] == pytest.approx(log2(level["perplexity"]))
        if place < numbers["num_content_levels"]:
            assert row[9] == quality["errors_by_level"][place]
    first = quality["published"][0]
    assert shown["purity"]["rows"][0][1:] == [
        f"{first[name]:.1%}" for name in ("purity", "purity_by_chance")
    ]
    assert shown["neighbours"]["rows"][0][1] == f"{first['neighbour_agreement']:.1%}"
    assert shown["drift"]["rows"][-1][1] == f"{numbers['drift']['kept']['full']:.1%}"
    kept = shown["reconstruction"]["rows"][-1][1]
    assert kept == f"{1 - quality['published_error']:.1%}"
    titles = [one["title"] for one in blocks_in(page) if one["key"].startswith("example-")]
    for example, title in zip(numbers["examples"], titles, strict=True):
        assert example["semantic_id"] in title
    assert ["version", numbers["version"]] in shown["made"]["rows"]
    drawn = {key: one for key, one in shown.items() if one["kind"] == "chart"}
    assert set(drawn) == {
        "usage",
        "depth",
        "collisions",
        "reconstruction",
        "neighbours",
        "purity",
        "drift",
    }
    shares = {(row[0], row[1]): row[2] for row in drawn["depth"]["rows"]}
    for depth, label in zip(
        numbers["depths"], ("first code", "first 2 codes", "whole ID"), strict=True
    ):
        for name, share in depth["shares"].items():
            assert shares[label, name] == f"{share:.1%}"


def test_titles_and_categories_are_only_text(planted_ids, tmp_path):
    origin = {"encoder": HOSTILE[0], "settings": {"x": HOSTILE[1]}}
    reported = planted_ids(titles=HOSTILE, title=HOSTILE[1], origin=origin, how=HOSTILE[1])
    catalogue = replace(
        reported.catalogue, categories=[[], *([title] for title in "ab"), *[[HOSTILE[1]]] * 6]
    )
    page, numbers = written(replace(reported, catalogue=catalogue), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "<" not in text.split('type="application/json">')[1].split("</script>")[0]
    assert text.lower().count("<script") == text.lower().count("</script>") == 4
    assert set(HOSTILE[:3]) <= {
        entry["title"]
        for one in blocks_in(page)
        if one["kind"] == "lists"
        for listed in one["lists"]
        for entry in listed["entries"]
    }
    listed = {one["title"] for one in numbers["examples"]}
    assert HOSTILE[1] in listed
    assert max(len(title) for title in listed) <= 200


def test_equal_versions_give_equal_bytes(planted_ids, tmp_path):
    (tmp_path / "again").mkdir()
    (one, values), (other, same) = (
        written(planted_ids(), folder) for folder in (tmp_path, tmp_path / "again")
    )
    assert values == same
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id_rows": np.arange(8)}, "'id_rows': 8, 'vectors': 9"),
        ({"id_rows": np.array([0, 1, 2, 3, 4, 5, 6, 7, 9])}, r"run from 1 to 9.*\[0, 9\)"),
        ({"id_rows": np.array([0, 1, 2, 3, 4, 5, 6, 7, 7])}, "one id row for two item rows"),
        ({"id_rows": np.zeros(9, np.int64)}, "no item with an ID"),
    ],
)
def test_tables_that_do_not_fit_are_refused(planted_ids, tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        write_semantic_id_report(planted_ids(**changes), tmp_path / "ids.html")
    assert list(tmp_path.iterdir()) == []


def test_another_quantizer_and_another_ending_are_refused(planted_ids, tmp_path):
    reported = planted_ids()
    turned = reported.quantizer.relabelled([torch.tensor([1, 0]), torch.tensor([0, 1])])
    with pytest.raises(ValueError, match=turned.digest[:12]):
        write_semantic_id_report(replace(reported, quantizer=turned), tmp_path / "ids.html")
    with pytest.raises(ValueError, match=r"must end in \.html"):
        write_semantic_id_report(reported, tmp_path / "ids.json")


def test_one_level_and_one_item_have_a_page(planted_ids, tmp_path):
    quantizer = ResidualKMeans([Centres(torch.eye(2), torch.zeros(2))])
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    reported = planted_ids(
        quantizer=quantizer,
        ids=assign_semantic_ids(quantizer, vectors),
        vectors=vectors,
        id_rows=np.arange(2),
        catalogue=Catalogue(titles=["", "only"], categories=[[], []], popularity=np.array([0, 1])),
    )
    page, numbers = written(reported, tmp_path)
    assert numbers["counts"]["num_with_id"] == 1
    shown = {one["key"]: one for one in blocks_in(page)}
    assert "purity" not in shown
    assert shown["levels"]["rows"][0][1:3] == [2, 1]


def test_unused_and_crowded_codes_are_said_aloud(planted_ids, tmp_path):
    codes = torch.cat([torch.zeros(30, 1), torch.arange(30)[:, None]], 1).int()
    codes = torch.cat([torch.full((1, 2), -1, dtype=torch.int32), codes])
    generator = torch.Generator().manual_seed(0)
    quantizer = ResidualKMeans(
        [Centres(torch.randn(40, 2, generator=generator), torch.zeros(40)) for _ in range(2)]
    )
    reported = planted_ids(
        quantizer=quantizer,
        ids=SemanticIds(codes=codes, level_sizes=(40, 40), quantizer_digest=quantizer.digest),
        vectors=torch.randn(31, 2, generator=generator),
        id_rows=np.arange(31),
        catalogue=Catalogue(
            titles=[str(row) for row in range(31)],
            categories=[[]] * 31,
            popularity=np.zeros(31, np.int64),
        ),
    )
    page, _ = written(reported, tmp_path)
    told = " ".join(document_in(page)["notices"])
    assert "Level 1 uses 1 of its 40 codes (2.5%)" in told
    assert "The most used first code has 40 times the mean" in told


def test_items_are_sorted_by_how_many_stand_together():
    shares = group_shares([(1, 10), (2, 10), (5, 5), (6, 6), (100, 100), (101, 101)])
    assert {name: round(share * 232) for name, share in shares.items()} == {
        "alone": 10,
        "2 to 5": 15,
        "6 to 20": 6,
        "21 to 100": 100,
        "over 100": 101,
    }
    assert sum(group_shares([]).values()) == 0


def test_shared_codes_are_told_from_the_others():
    assert marked_id("12-250-3", 2) == "[12-250]-3"
    assert marked_id("12-250-3", 0) == "12-250-3"
    assert marked_id("12-250-3", 3) == "[12-250-3]"


def test_catalogue_of_a_run_is_read_by_item_row(tmp_path):
    made = SyntheticEvaluation(num_items=5, titles=("a", "b", "c", "d", "e"))
    features = write_synthetic_evaluation(tmp_path, made)["build_features"]
    catalogue = read_catalogue(features)
    items = pl.read_parquet(features / "items.parquet").sort("item_row")
    assert list(catalogue.titles) == ["", *items["display_text"]]
    assert len(catalogue.categories) == len(catalogue.popularity) == 6
    sequences = np.load(features / "sequences" / "given" / "item_rows.npy")
    assert catalogue.popularity.sum() == len(sequences)
    assert catalogue.popularity[0] == 0


def test_size_and_time_hold_for_a_catalogue_of_22_thousand(planted_ids):
    generator = torch.Generator().manual_seed(0)
    quantizer = ResidualKMeans(
        [
            Centres(torch.randn(256, 16, generator=generator) / 2**level, torch.zeros(256))
            for level in range(3)
        ]
    )
    vectors = torch.randn(22_001, 16, generator=generator)
    vectors[0] = 0
    reported: ReportedIds = planted_ids(
        quantizer=quantizer,
        ids=assign_semantic_ids(quantizer, vectors),
        vectors=vectors,
        id_rows=np.arange(22_001),
        catalogue=Catalogue(
            titles=[f"title of item {row} " * 10 for row in range(22_001)],
            categories=[[f"category {row % 37}"] for row in range(22_001)],
            popularity=np.arange(22_001),
        ),
    )
    report = numbers_of(reported)
    assert len(encoded(semantic_ids_page(report))) < 300_000
    assert len(json.dumps(asdict(report))) < 500_000
