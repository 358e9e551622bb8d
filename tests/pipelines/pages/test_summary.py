import re
from dataclasses import replace

import numpy as np
import pytest

from pipelines.pages.figures import model_colors
from pipelines.pages.file import CLIENT
from pipelines.pages.summary import (
    answer,
    comparisons,
    headline_model,
    notices,
    served_model,
    summarize_tests,
)
from pipelines.pages.wording import MODELS
from pipelines.publishing.comparison import served_row
from recsys.evaluation.paired import MetricComparison


def change(data, split, model, **values):
    """Change a model's primary metric in place; the fixture's data is copied before."""
    intervals = data.analysis.orders["given"][split].models[model].intervals
    assert isinstance(intervals, dict)
    intervals[data.primary] = intervals[data.primary]._replace(**values)


@pytest.mark.parametrize("is_ranked", [True, False, None])
def test_the_headline_is_of_what_is_served(reported, plain_report, is_ranked):
    """A ranker that validation does not prefer is measured and may be served."""
    data = reported(models=("popularity", "blend", "blend_fast", "ranked"))
    change(data, "validation", "blend", mean=0.9)
    change(data, "validation", "blend_fast", mean=0.8)
    if is_ranked is None:
        data = replace(data, ranker=None)
    else:
        data = replace(data, ranker={"served": is_ranked})
    model = headline_model(data)
    assert model == served_model(data) == ("ranked" if is_ranked else "blend_fast")
    released = {model: {} for model in data.models if model != "ranked" or is_ranked}
    assert model == served_row(released)


def test_every_model_of_a_report_has_a_colour_of_its_own(reported):
    """The palette has as many colours as there are models, and no two are alike."""
    colors = model_colors(replace(reported(), models=tuple(MODELS)[:14]))
    assert len(set(colors.values())) == len(colors) == 14
    sheet = (CLIENT / "palette.css").read_text()
    for theme in (0, 1):
        drawn = [re.findall(r"#\w{6}", _value(sheet, one))[theme] for one in colors.values()]
        channels = np.array([[int(one[at : at + 2], 16) for at in (1, 3, 5)] for one in drawn])
        apart = np.abs(channels[:, None] - channels[None]).sum(-1) + 765 * np.eye(14, dtype=int)
        assert apart.min() >= 40


def _value(sheet, variable):
    name = variable.removeprefix("var(").removesuffix(")")
    return next(line for line in sheet.splitlines() if line.strip().startswith(f"{name}:"))


def test_best_model_is_the_one_that_validation_chose(reported):
    """Without a blend, as in a report on single models, nothing is served."""
    data = reported(models=("popularity", "item_to_item", "two_tower"))
    change(data, "validation", "item_to_item", mean=0.9)
    change(data, "test", "two_tower", mean=0.8)
    assert (headline_model(data), served_model(data)) == ("item_to_item", None)
    rate = data.metrics["given"]["test"]["item_to_item"]["hit_rate@10"]
    assert f"among its first 10 for {100 * rate:.0f} of 100 users" in answer(data)
    (told,) = [notice for notice in notices(data) if "the best on validation" in notice]
    assert told.startswith("On test, two-tower is above item-to-item")


def test_verdict_tells_what_the_tests_show(reported):
    data = reported()
    change(data, "validation", "two_tower", mean=0.9)
    same = {"metric": data.primary, "num_users": 60, "adjusted_p_value": 0.01, "p_value": 0.01}
    same |= {"low": 0, "high": 0, "baseline_mean": 0, "candidate_mean": 0}
    tests = [
        ("popularity", "two_tower", 0.1, True),
        ("two_tower", "item_to_item", 0.1, True),
        ("two_tower", "blend", -0.1, False),
    ]
    told = tuple(
        MetricComparison(**same, baseline=a, candidate=b, difference=gain, significant=real)
        for a, b, gain, real in tests
    )
    splits = data.analysis.orders["given"]
    splits["test"] = replace(splits["test"], comparisons=told)
    assert summarize_tests(data, "two_tower") == (
        "It is significantly better than popularity. There is no significant difference from "
        "blend. On test, item-to-item did significantly better."
    )
    assert [(one.candidate, one.baseline) for one in comparisons(data)] == [
        ("two_tower", "popularity"),
        ("item_to_item", "two_tower"),
        ("two_tower", "blend"),
    ]
    assert all(one.difference == 0.1 for one in comparisons(data))
