import base64
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.exclusions import MAX_SHOWN, Cursor, CursorError, read_cursor

texts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.integers(0, (1 << 48) - 1), st.lists(texts, min_size=1, max_size=30))
def test_a_cursor_says_what_was_shown(now_ms, shown):
    text = Cursor(now_ms, ()).after(shown)
    assert read_cursor(text, now_ms + 5) == Cursor(now_ms, tuple(shown))


def test_pages_add_up_and_end():
    second = read_cursor(Cursor(1, ()).after(["a", "b"]), 9)
    assert read_cursor(second.after(["c"]), 9) == Cursor(1, ("a", "b", "c"))
    assert second.after([]) is None
    assert second.after([str(place) for place in range(MAX_SHOWN)]) is None


def packed(content):
    return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(content))).decode()


@pytest.mark.parametrize(
    "text",
    ["", "start!", "AAAA", "%%%%", "é", packed(1), packed([1]), packed([-1, []]), packed([1, [2]])],
)
def test_anything_else_is_refused(text):
    with pytest.raises(CursorError, match="neither 'start' nor"):
        read_cursor(text, 1)


def test_a_bomb_is_not_inflated():
    bomb = base64.urlsafe_b64encode(zlib.compress(b" " * (64 << 20))).decode()
    with pytest.raises(CursorError):
        read_cursor(bomb, 1)
