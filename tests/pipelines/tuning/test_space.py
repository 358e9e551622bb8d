"""What ``--over`` reads, and what it refuses."""

import pytest

from pipelines.tuning.space import Setting, find_row, parse_space


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ease.max_events=100..900", Setting("ease.max_events", 100, 900, is_whole=True)),
        ("sequence.dropout=0.0..0.5", Setting("sequence.dropout", 0, 0.5)),
        ("sequence.dim=32, 64,32", Setting("sequence.dim", choices=(32, 64))),
        ("blend.method=linear,fusion", Setting("blend.method", choices=("linear", "fusion"))),
        ("two_tower.bias=true,false", Setting("two_tower.bias", choices=(True, False))),
    ],
)
def test_ranges_and_lists_are_read(text, expected):
    assert parse_space([text]) == (expected,)


def test_wide_ranges_are_log_uniform():
    wide, narrow, whole = parse_space(
        [
            "two_tower_training.schedule.learning_rate=1e-4..1e-2",
            "ease.a=1.0..9.0",
            "item_knn.max_history=1..100",
        ]
    )
    assert (wide.is_log, narrow.is_log, whole.is_log) == (True, False, True)
    assert str(whole) == "item_knn.max_history from 1 to 100 (whole numbers)"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
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
    ],
)
def test_what_is_no_space_is_refused(texts, words):
    with pytest.raises(ValueError, match=words):
        parse_space(texts)


def test_settings_of_one_model_are_measured_on_it_and_others_on_the_blend():
    of_one = parse_space(["sequence.dropout=0.0..0.5", "sequence_training.num_steps=1..9"])
    assert find_row(of_one) == "sequence"
    assert find_row(parse_space(["sequence.dropout=0.0..0.5", "ease.a=1,2"])) == "blend_fast"
