"""What ``--over`` reads, and what it refuses."""

import pytest
from optuna.distributions import CategoricalDistribution as OneOf
from optuna.distributions import FloatDistribution as Real
from optuna.distributions import IntDistribution as Whole

from pipelines.tuning.space import find_row, parse_space


def test_ranges_and_lists_are_read() -> None:
    known = {
        "ease.max_events=100..900": Whole(100, 900),
        "item_knn.max_history=1..100": Whole(1, 100, log=True),
        "sequence.dropout=0.0..0.5": Real(0.0, 0.5),
        "two_tower_training.schedule.learning_rate=1e-4..1e-2": Real(1e-4, 1e-2, log=True),
        "sequence.dim=32, 64,32": OneOf((32, 64)),
        "blend.method=linear,fusion": OneOf(("linear", "fusion")),
        "two_tower.bias=true,false": OneOf((True, False)),
    }
    for text, expected in known.items():
        assert parse_space([text]) == {text.split("=")[0]: expected}


def test_what_is_no_space_is_refused() -> None:
    for texts, words in (
        ([], "name at least one setting"),
        (["ease.l2"], r"write section\.key=low\.\.high"),
        (["ease.l2="], r"write section\.key=low\.\.high"),
        (["ease.l2=1,,3"], "a value is missing"),
        (["ease.l2=3,3"], "leaves nothing to choose"),
        (["ease.l2=3..3"], "the smaller first"),
        (["ease.l2=a..b"], "needs two numbers"),
        (["data.events=a,b"], "what prepares the data is the same"),
        (["ease=1,2"], "trials vary keys of"),
        (["ease.l2=1..3", "ease.l2=4,5"], r"names ease\.l2 more than once"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_space(texts)


def test_settings_of_one_model_are_measured_on_it_and_others_on_the_blend():
    of_one = parse_space(["sequence.dropout=0.0..0.5", "sequence_training.num_steps=1..9"])
    assert find_row(of_one) == "sequence"
    assert find_row(parse_space(["sequence.dropout=0.0..0.5", "ease.a=1,2"])) == "blend_fast"
