import pytest

from recsys.content.prompt import clean_text, item_text


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  a \t b\n\nc ", "a b c"),
        ("Tom &amp; Jerry", "Tom & Jerry"),
        ("Tom &amp;amp; Jerry &#39;s", "Tom & Jerry 's"),
        ("<p>big<br/>bold</p><!-- note -->", "big bold"),
        ("&lt;b&gt;bold&lt;/b&gt;", "bold"),
        ("under < 5 kg and > 2 kg", "under < 5 kg and > 2 kg"),
        ("a\x00b\x1fc\x7fd\u2028e", "a b c d e"),
        ("soft\u00adhyphen \ufeffmark \ud800surrogate", "softhyphen mark surrogate"),
        ("e\u0301", "\u00e9"),
        ("\u65e5\u672c", "\u65e5\u672c"),
        (None, ""),
        (" \n", ""),
    ],
)
def test_text_is_cleaned(raw, clean):
    assert clean_text(raw) == clean


def test_cleaning_twice_changes_nothing_more():
    once = clean_text("<b>Tom</b> &amp; \x00 e\u0301")
    assert clean_text(once) == once


def test_an_item_is_told_most_telling_part_first():
    text = item_text(
        "Rose Shampoo.",
        description="Mild &amp; soft.",
        brand="Acme",
        categories=["Beauty", "<i>Hair</i>", " "],
        further=["500 ml", ""],
    )
    assert text == "Rose Shampoo. Acme. Beauty, Hair. Mild & soft. 500 ml"


def test_long_text_is_cut_between_words():
    assert item_text("one two three", max_chars=9) == "one two"
    assert item_text("one two three", max_chars=7) == "one two"
    assert item_text("abcdefgh", max_chars=3) == "abc"
    with pytest.raises(ValueError, match="max_chars must be >= 1, got 0"):
        item_text("one", max_chars=0)
