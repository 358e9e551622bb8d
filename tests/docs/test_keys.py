"""Every configuration key that a page names exists, and every default that it states is the code's.

Records of decisions are left out: they tell of keys that are gone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest

from pipelines.config.removed import REMOVED_KEYS
from pipelines.config.run import RunConfig, SharedTraining
from pipelines.config.toml import dataclasses_in, is_mapping
from tests.docs.pages import DOCS, FENCE, ROOT

PAGES = [
    page
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if DOCS / "decisions" not in page.parents
]
CODE = re.compile(r"`([^`\n]+)`")
KEY = re.compile(r"^(?:\[([a-z_.]+)\] )?([a-z_]+(?:\.[a-z_]+)*)(?: = .+)?$")
FILES = {"csv", "html", "json", "jsonl", "md", "npz", "parquet", "py", "toml", "yaml", "yml"}
STATED = re.compile(
    r"`([a-z_.]+)` \((?:default |by default )?`?([\d.,]+|\"[^\"]*\"|true|false)`?[;,)]"
)
TABLE = re.compile(r"^\|[^|\n]*`\[([a-z_.]+)\]`[^|\n]*\| default \|.*\n((?:\|.*\n)+)", re.MULTILINE)
ROW = re.compile(r"^\| ((?:`[a-z_.]+`(?:, )?)+) \| ([^|]*) \|", re.MULTILINE)
SETTING = re.compile(
    r"^\[([a-z_.]+)\]\n(?:[a-z#].*\n)*?([a-z_]+) = .*# (\S+), the default", re.MULTILINE
)


class Named(NamedTuple):
    page: str
    key: str


def sections() -> dict[str, type]:
    return {
        name: found
        for name, hint in {**get_type_hints(RunConfig), **get_type_hints(SharedTraining)}.items()
        for found in dataclasses_in(hint)
    }


def holds(kind: type, parts: list[str]) -> bool:
    """Whether a dataclass has a key, or a mapping that may hold it."""
    hints = get_type_hints(kind)
    if kind is RunConfig:
        hints |= get_type_hints(SharedTraining)
    if parts[0] not in hints:
        return False
    hint = hints[parts[0]]
    if len(parts) == 1 or is_mapping(hint):
        return True
    return any(holds(inner, parts[1:]) for inner in dataclasses_in(hint))


def default(key: str) -> Any:
    """The value of a key in the dataclasses; None if it has none there."""
    value: Any = RunConfig(workspace=Path("runs/any"))
    for part in key.split("."):
        if not is_dataclass(value) or part not in {field.name for field in fields(value)}:
            return None
        value = getattr(value, part)
    return value


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def named_keys() -> Iterator[Named]:
    for page in PAGES:
        for code in CODE.findall(prose(page)):
            match = KEY.match(code)
            if match is None:
                continue
            parts = [*(match[1].split(".") if match[1] else []), *match[2].split(".")]
            if parts[0] in sections() and len(parts) > 1 and parts[-1] not in FILES:
                yield Named(str(page.relative_to(ROOT)), ".".join(parts))


def stated_defaults() -> Iterator[tuple[str, str, str]]:
    """Page, key and value: of ``key`` (value), and of tables with a column of defaults."""
    for page in PAGES:
        text, name = prose(page), str(page.relative_to(ROOT))
        for key, value in STATED.findall(text):
            if key.split(".")[0] in sections():
                yield name, key, value
        for section, table in TABLE.findall(text):
            for keys, values in ROW.findall(table):
                names = CODE.findall(keys)
                each = (
                    values.split(", ")
                    if values.count(", ") + 1 == len(names)
                    else [values] * len(names)
                )
                for key, value in zip(names, each, strict=True):
                    yield name, f"{section}.{key}", value.strip()
        for section, key, value in SETTING.findall(page.read_text(encoding="utf-8")):
            yield name, f"{section}.{key}", value


def as_value(text: str) -> Any:
    plain = re.sub(r"(?<=\d),(?=\d)", "", text.strip("`"))
    plain = re.sub(r"^\.", "0.", plain)
    try:
        return tomllib.loads(f"value = {plain}")["value"]
    except tomllib.TOMLDecodeError:
        return plain


@pytest.mark.parametrize(
    "named", sorted(set(named_keys())), ids=lambda one: f"{one.page}:{one.key}"
)
def test_a_named_key_exists(named: Named) -> None:
    assert holds(RunConfig, named.key.split("."))
    assert named.key not in REMOVED_KEYS


@pytest.mark.parametrize(
    ("page", "key", "value"),
    [pytest.param(*one, id=":".join(one[:2])) for one in stated_defaults()],
)
def test_a_stated_default_is_the_codes(page: str, key: str, value: str) -> None:
    assert holds(RunConfig, key.split(".")), f"{page} states a default of {key}, which is no key"
    found = default(key)
    if found is None:
        # A value in words, such as "what is free" or "none".
        assert not re.fullmatch(r"`?[\d.,]+`?", value)
    else:
        assert as_value(value) == (list(found) if isinstance(found, tuple) else found)


@pytest.mark.parametrize("folder", ["recsys", "features", "pipelines", "serving", "dags", "docs"])
def test_an_assignment_that_a_text_suggests_names_a_key(folder: str) -> None:
    for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
        if DOCS / "decisions" not in path.parents:
            for key in re.findall(r"--set ([a-z_]+\.[a-z_.]+)=", path.read_text(encoding="utf-8")):
                known = key == "table.key" or (
                    key.split(".")[0] in sections() and holds(RunConfig, key.split("."))
                )
                assert known, f"{path.relative_to(ROOT)} suggests --set {key}=..."
