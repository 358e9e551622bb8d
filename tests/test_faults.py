"""Each fault of tests/FAULTS.md has its tests, and they exist."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROWS = [
    line
    for line in (FOLDER / "FAULTS.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d+ ", line)
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_the_tests_of_a_fault_exist(row: str) -> None:
    named = re.findall(r"\]\(([\w/.]+)\) `(\w+)`", row)
    assert named
    for path, test in named:
        assert f"def {test}(" in (FOLDER / path).read_text(encoding="utf-8"), (path, test)


def test_every_fault_of_a_scheduled_pipeline_has_a_row() -> None:
    numbers = {int(row.split()[1]) for row in ROWS}
    assert {1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 27, 31} <= numbers


def test_every_attack_on_a_server_has_a_row() -> None:
    numbers = {int(row.split()[1]) for row in ROWS}
    assert {*range(19, 27), 30, 32} <= numbers
