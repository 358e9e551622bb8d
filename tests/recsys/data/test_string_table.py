from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.string_table import StringTable, write_string_table


def test_a_written_table_opens_again_and_finds_rows(tmp_path: Path) -> None:
    write_string_table(tmp_path, "item_ids", ["", "caffè", "日本", "B00\N{PILE OF POO}"])
    table = StringTable.open(tmp_path, "item_ids")
    assert table.row_of("日本") == 2
    assert table.row_of("absent") is None
    assert len(table) == 4


def test_a_lone_surrogate_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="string 1 of table 'titles'"):
        write_string_table(tmp_path, "titles", ["fine", "\ud800"])


def test_a_text_that_ends_inside_a_character_is_refused() -> None:
    whole = "aé".encode()
    table = StringTable(np.frombuffer(whole, np.uint8), np.array([0, 2, 3]))
    with pytest.raises(ValueError, match="begins inside a character"):
        list(table)
    with pytest.raises(ValueError, match="utf-8"):
        list(StringTable(np.frombuffer(b"a\xff", np.uint8), np.array([0, 2])))


@given(
    st.lists(st.text(alphabet="ab\u00e9\u4e16", max_size=2), max_size=9),
    st.lists(st.text(alphabet="ab\u00e9\u4e16", max_size=2), max_size=9),
)
def test_an_extended_table_is_as_if_it_had_been_built_whole(old: list[str], new: list[str]) -> None:
    whole, grown = StringTable.from_strings(old + new), StringTable.from_strings(old).extended(new)
    assert list(grown) == list(whole) == old + new
    assert [grown.row_of(text) for text in [*old, *new, "absent"]] == [
        whole.row_of(text) for text in [*old, *new, "absent"]
    ]
    assert grown.first_repeated() == whole.first_repeated()
    repeated = [row for row, text in enumerate(old + new) if text in (old + new)[:row]]
    assert whole.first_repeated() == min(repeated, default=None)
