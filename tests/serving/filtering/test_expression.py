import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.filters import (
    MAX_NESTING,
    MAX_TEXT,
    MAX_VALUES,
    AllOf,
    AnyOf,
    FilterError,
    Membership,
    Missing,
    Not,
    Relation,
    parse,
)


def refusal(text):
    with pytest.raises(FilterError) as error:
        parse(text)
    assert error.value.code == "invalid_filter"
    assert str(error.value).startswith(f"character {error.value.position}: ")
    return error.value


def test_and_binds_closer_than_or_and_not_closest():
    a, b, c = Relation("a", "=", 1.0, 1), Relation("b", "<", 2.5, 10), Missing("c", 22)
    assert parse("a = 1 or b < 2.5 and c is missing").root == AnyOf((a, AllOf((b, c))))
    assert parse("not a = 1 and b = 2").root == AllOf(
        (Not(Relation("a", "=", 1.0, 5)), Relation("b", "=", 2.0, 15))
    )
    assert parse("(a == 1)").root == Relation("a", "=", 1.0, 2)


def test_lists_and_the_names_that_are_read():
    found = parse("brand not in ['it''s', \"b\"] and `release year` is not missing AND x >= -1e3")
    listed, present, larger = found.root.parts
    assert listed == Not(Membership("brand", ("it's", "b"), 1))
    assert present == Not(Missing("release year", 33))
    assert larger == Relation("x", ">=", -1000.0, 67)
    assert found.names == {"brand", "release year", "x"}
    assert parse("new = TRUE").root.value is True


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 1, "expected the name of a property, 'not' or '(', found the end"),
        ("price < cheap", 9, "found 'cheap'"),
        ("price", 6, "expected =, !=, <, <=, >, >=, 'in', 'not in', 'is missing'"),
        ("a in []", 7, "expected a number"),
        ("a in [1 2]", 9, "expected ',' or ']'"),
        ("a not = 1", 7, "expected 'in', found '='"),
        ("a is 1", 6, "expected 'missing', found '1'"),
        ("(a = 1", 7, "expected ')', 'and' or 'or', found the end"),
        ("a = 1)", 6, "expected 'and', 'or' or the end, found ')'"),
        ("a = 'open", 5, "is not closed"),
        ("a = 1; drop", 6, "';' is not part of a filter"),
        ("a = 1e999", 5, "'1e999' is too large a number"),
    ],
)
def test_refusal_names_the_character_and_what_could_stand_there(text, position, says):
    error = refusal(text)
    assert (error.position, says in str(error)) == (position, True)


def test_long_deep_and_wide_texts_are_refused():
    assert f"at most {MAX_TEXT} characters, this one has 10240" in str(refusal("a" * 10_240))
    for deep in ("(" * 1_000, "not " * 1_000, "not (" * 500):
        assert f"nested deeper than {MAX_NESTING}" in str(refusal(deep))
    assert "more than 256 values" in str(refusal(f"a in [{','.join('1' * (MAX_VALUES + 1))}]"))
    assert "more than 256 values" in str(refusal(" or ".join(["a=1"] * (MAX_VALUES + 1))))


words = st.sampled_from(
    [
        *("a", "`b c`", "and", "or", "not", "in", "is", "missing", "true", "(", ")", "[", "]"),
        *(",", "=", "<=", "1", "-2.5", "'x'", '"y"', "'", "`", "\x00", "\n", "\u4e16"),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(words, max_size=60).map(" ".join) | st.text(max_size=200))
def test_any_text_is_parsed_or_refused_at_a_place_of_it(text):
    refused_at = 1
    try:
        parse(text)
    except FilterError as error:
        refused_at = error.position
    assert 1 <= refused_at <= len(text) + 1
