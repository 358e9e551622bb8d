from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.string_table import StringTable, write_string_table


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=12), max_size=9))
def test_strings_come_back_as_they_were(strings: list[str]) -> None:
    table = StringTable.from_strings(strings)
    assert list(table) == strings
    assert all(table.row_of(text) == strings.index(text) for text in strings)


def test_a_written_table_opens_again_and_finds_rows(tmp_path: Path) -> None:
    write_string_table(tmp_path, "item_ids", ["", "caffè", "日本", "B00\N{PILE OF POO}"])
    table = StringTable.open(tmp_path, "item_ids")
    assert table.row_of("日本") == 2
    assert table.row_of("absent") is None
    assert len(table) == 4


def test_a_lone_surrogate_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="string 1 of table 'titles'"):
        write_string_table(tmp_path, "titles", ["fine", "\ud800"])


def test_offsets_of_another_table_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit its 3 bytes"):
        StringTable(np.frombuffer(b"abc", np.uint8), np.array([0, 2, 9]))
