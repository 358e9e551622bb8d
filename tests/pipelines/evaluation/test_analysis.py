import json
from pathlib import Path

import pytest

from pipelines.evaluation.analysis import Analysis, ModelAnalysis, SplitAnalysis
from recsys.evaluation.bootstrap import Interval
from recsys.evaluation.significance import MetricComparison
from recsys.evaluation.slices import SliceMetrics


def made() -> Analysis:
    model = ModelAnalysis(
        intervals={"ndcg@10": Interval(0.2, 0.1, 0.3, 7)},
        beyond_accuracy={"coverage@10": 0.5},
        slices=(
            SliceMetrics(
                group="item_popularity",
                name="head",
                num_users=7,
                num_targets=9,
                metrics={"ndcg@10": Interval(0.4, 0.2, 0.6, 7)},
            ),
            SliceMetrics(
                group="item_popularity", name="cold", num_users=0, num_targets=0, metrics={}
            ),
        ),
    )
    test = MetricComparison("ndcg@10", "a", "b", 7, 0.2, 0.3, 0.1, 0.0, 0.2, 0.01, 0.02, True)
    part = SplitAnalysis(num_users=7, num_targets=9, models={"a": model}, comparisons=(test,))
    return Analysis(
        orders={"given": {"test": part}}, data_digest="d", protocol="p", primary_metric="ndcg@10"
    )


def test_an_analysis_is_read_as_it_was_written(tmp_path: Path) -> None:
    made().save(tmp_path)
    assert Analysis.load(tmp_path) == made()
    json.loads((tmp_path / "analysis.json").read_text(), parse_constant=pytest.fail)
    (tmp_path / "analysis.json").unlink()
    with pytest.raises(ValueError, match="--force evaluate"):
        Analysis.load(tmp_path)
