"""Names and texts use the terms of docs/glossary.md; retired words do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_code_limits import parsed

ROOT = Path(__file__).parents[1]
PACKAGES = ("recsys", "features", "pipelines", "serving", "dags")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its head."""
    table = GLOSSARY.split(heading)[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


RETIRED = {word: where for word, _, where in rows("## Retired words")}
IN_TEXTS = [word for word, where in RETIRED.items() if where == "text"]


def names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that a module gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield (node.id if isinstance(node, ast.Name) else node.attr), node.lineno


@cache
def words(name: str) -> str:
    """``HistoryNumbers`` and ``history_numbers`` as ``_history_numbers_``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return f"_{parted.lower().strip('_')}_"


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def texts(path: Path) -> Iterator[tuple[str, int]]:
    """Docstrings, messages and comments of a module, or the lines of a page."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        yield line, number


def test_retired_words_are_in_no_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sources()
        for name, line in names(parsed(path))
        if any(f"_{word}_" in words(name) for word in RETIRED)
    ]
    assert found == []


def test_retired_words_are_in_no_text() -> None:
    retired = re.compile(rf"\b({'|'.join(IN_TEXTS)})\b", re.IGNORECASE)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [page for page in (ROOT / "docs").rglob("*.md") if page.name != "glossary.md"]
    templates = [
        path
        for package in ("pipelines", "serving")
        for suffix in ("*.jinja", "*.js", "*.html", "*.toml")
        for path in (ROOT / package).rglob(suffix)
        if not {"node_modules", "dist"} & set(path.parts)
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in [*sources(), *pages, *templates]
        for line, number in texts(path)
        if retired.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("column", [0, 1])
def test_each_term_stands_once(column: int) -> None:
    cells = [row[column] for row in rows("# Glossary")]
    assert len(cells) == len(set(cells)) > 20
