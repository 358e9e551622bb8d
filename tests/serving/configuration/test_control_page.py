"""docs/control.md names every key, and its examples are read."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from serving.configuration.file import check_configuration, list_keys
from serving.configuration.rules import Arm, Audience, Experiment, Overrides, Rule, RuleKind
from serving.surfaces import KINDS, Calibration, Diversity, Exploration, Surface

PAGE = (Path(__file__).parents[3] / "docs" / "control.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_read(example):
    check_configuration(tomllib.loads(example))


def test_examples_hold_together():
    assert len(EXAMPLES) == 3
    check_configuration(tomllib.loads("\n".join(EXAMPLES)))


@pytest.mark.parametrize(
    "part",
    [Surface, Diversity, Calibration, Exploration, Rule, Audience, Experiment, Arm, Overrides],
)
def test_every_key_is_named(part):
    named = set(re.findall(r"[\w]+", " ".join(re.findall(r"`([^`\n]+)`", PAGE) + EXAMPLES)))
    assert set(list_keys(part)) - named == set()


def test_every_kind_has_its_row():
    rows = re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE)
    first = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*KINDS, *get_args(RuleKind)} <= first
