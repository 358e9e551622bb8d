"""Four users whose analysis can be worked out by hand.

user   history  target  list by "good"
1      1 2      3       3 4
2      1 2      4       3 4
3      1 3      2       2 4
4      -        1       1 2

So users have items 1, 2, 3 in training 3, 2, 1 times, items 4 and 5 never. "poor" lists nothing.
"""

import json
from math import log2
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from pipelines.config.run import EvaluationConfig
from pipelines.evaluation.analyse import Background, analyse_split, best_single, item_domains
from pipelines.evaluation.analysis import Analysis, SplitAnalysis, models_in
from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import RankingResult
from recsys.fitting.queries import ModelInputs
from recsys.models.item_tower import FeatureSizes, ItemCatalogue

pytestmark = pytest.mark.numerics

CONFIG = EvaluationConfig(ks=(2,), primary_metric="ndcg@2", metrics=("recall@1",))
SECOND = 1 / log2(3)


def ranking(ranks: list[int], lists: list[list[int]]) -> RankingResult:
    rows = torch.tensor(lists)
    return RankingResult(
        metrics={},
        num_users=4,
        user_rows=torch.arange(1, 5),
        targets=Jagged.one_each(torch.tensor([3, 4, 2, 1])),
        ranks=Jagged.one_each(torch.tensor(ranks)),
        top_k=TopK(torch.zeros(rows.shape), rows),
    )


GOOD = ranking([1, 2, 1, 1], [[3, 4], [3, 4], [2, 4], [1, 2]])
POOR = ranking([0, 0, 0, 0], [[-1, -1]] * 4)
PERFECT = ranking([1, 1, 1, 1], [[3, 4], [4, 3], [2, 4], [1, 2]])


@pytest.fixture
def known(tmp_path: Path) -> Background:
    """The features artefact: items 1 and 5 are for the garden, 2, 3 and 4 for the kitchen."""
    (tmp_path / "vocabularies").mkdir()
    names = pl.DataFrame({"row": [1, 2], "id": ["garden", "kitchen"]})
    names.write_parquet(tmp_path / "vocabularies" / "categories.parquet")
    ends = np.array([0, 3, 6, 9, 10])
    sequences = Sequences(
        item_rows=np.array([1, 2, 3, 1, 2, 4, 1, 3, 2, 1]),
        offsets=np.array([0, *ends]),
        train_end=np.array([0, 2, 5, 8, 9]),
        validation_end=ends,
    )
    content = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 0], [0, 1], [1, 0]])
    categories = Jagged.from_lists([[], [1], [2], [2], [2], [1]])
    inputs = ModelInputs(
        sequences=sequences,
        catalogue=ItemCatalogue(content, categories),
        sizes=FeatureSizes(num_item_rows=6, content_dim=2, num_categories=3),
        user_features={},
    )
    return Background.of(inputs, tmp_path)


@pytest.fixture
def analysis(known: Background) -> SplitAnalysis:
    results = {"good": GOOD, "poor": POOR, "same": GOOD}
    return analyse_split(results, known, CONFIG, baseline="good")


def test_intervals_hold_the_means(analysis):
    assert (analysis.num_users, analysis.num_targets) == (4, 4)
    found = analysis.models["good"].intervals
    assert list(found) == ["ndcg@2", "recall@1"]
    assert found["ndcg@2"].mean == pytest.approx((3 + SECOND) / 4)
    assert found["recall@1"].mean == pytest.approx(0.75)
    assert found["recall@1"].low < 0.75 < found["recall@1"].high
    assert tuple(analysis.models["poor"].intervals["ndcg@2"]) == (0, 0, 0, 4)


def test_slices_hold_their_users_and_an_empty_one_has_no_value(analysis):
    slices = {(part.group, part.name): part for part in analysis.models["good"].slices}
    expected = {
        ("item_popularity", "head"): (1, 1.0),
        ("item_popularity", "torso"): (2, 1.0),
        ("item_popularity", "cold"): (1, SECOND),
        ("user_activity", "new"): (4, (3 + SECOND) / 4),
        ("category", "garden"): (1, 1.0),
        ("category", "kitchen"): (3, (2 + SECOND) / 3),
    }
    found = {name: part for name, part in slices.items() if part.num_targets}
    assert set(found) == set(expected)
    for name, (num_users, mean) in expected.items():
        assert found[name].num_users == num_users
        assert found[name].metrics["ndcg@2"].mean == pytest.approx(mean)
    tail = slices["item_popularity", "tail"]
    assert (tail.num_users, tail.num_targets, tail.metrics) == (0, 0, {})
    assert slices["user_activity", "heavy"].metrics == {}


def test_lists_are_measured_beyond_accuracy(analysis):
    assert analysis.models["good"].beyond_accuracy == pytest.approx(
        {
            "coverage@2": 4 / 5,
            # Items are shown 0, 1, 2, 2, 3 times.
            "gini@2": (-2 * 1 + 2 * 2 + 4 * 3) / (5 * 8),
            # A cold item is as novel as one that one user has.
            "novelty@2": (2 * log2(3) + (log2(1.5) + log2(3)) / 2 + log2(1.5) / 2) / 4,
            "intra_list_diversity@2": 3 / 4,
        }
    )
    # What empty lists leave undefined is absent.
    assert analysis.models["poor"].beyond_accuracy == pytest.approx({"coverage@2": 0, "gini@2": 0})


def test_paired_tests_are_corrected_together(analysis):
    tests = {(test.candidate, test.metric): test for test in analysis.comparisons}
    assert set(tests) == {(name, m) for name in ("poor", "same") for m in ("ndcg@2", "recall@10")}
    assert {test.baseline for test in tests.values()} == {"good"}
    worse = tests["poor", "recall@10"]
    assert worse.difference == -1
    # Four differences of -1: 2 of 16 ways to sign them are as far from 0, which count half.
    assert worse.p_value == 1 / 16
    assert worse.adjusted_p_value == pytest.approx(4 * worse.p_value)
    assert not worse.significant
    same = tests["same", "ndcg@2"]
    assert (same.difference, same.p_value, same.adjusted_p_value) == (0, 1, 1)


def test_an_analysis_is_read_as_it_was_written(analysis, tmp_path):
    made = Analysis(
        orders={"given": {"test": analysis}}, data_digest="d", protocol="p", primary_metric="ndcg@2"
    )
    made.save(tmp_path)
    assert Analysis.load(tmp_path) == made
    json.loads((tmp_path / "analysis.json").read_text(), parse_constant=pytest.fail)
    (tmp_path / "analysis.json").unlink()
    with pytest.raises(ValueError, match="--force evaluate"):
        Analysis.load(tmp_path)


def test_the_best_single_model_is_no_blend():
    results = {"popularity": POOR, "two_tower": GOOD, "blend": PERFECT}
    assert best_single(results, "ndcg@2", ("blend",)) == "two_tower"
    assert best_single({"blend": PERFECT}, "ndcg@2", ("blend",)) == "blend"


def test_items_are_cut_by_the_domain_of_the_catalogue(tmp_path):
    assert item_domains(tmp_path, 4) == (None, [])
    items = pl.DataFrame({"item_row": [1, 2, 3], "domain": ["toys", None, "books"]})
    items.write_parquet(tmp_path / "items.parquet")
    domains, names = item_domains(tmp_path, 4)
    assert domains is not None
    assert names == ["", "books", "toys"]
    assert domains.values.tolist() == [0, 2, 0, 1]
    items.drop("domain").write_parquet(tmp_path / "items.parquet")
    assert item_domains(tmp_path, 4) == (None, [])


def test_models_are_those_of_the_columns():
    assert models_in(["user_row", "item_row", "rank_b", "rank_a"]) == ("b", "a")
