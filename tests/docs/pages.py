"""The pages of the documentation as they are written, and the code blocks in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page; plain fences have no language."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            language = match[1]
            if not language and re.match(r"\[+\w[\w.]*\]+\n", match[2]):
                language = "toml"
            yield Block(str(page.relative_to(ROOT)), line, language, match[2])


def commands(block: Block) -> Iterator[list[str]]:
    """Split a shell block into its commands; one goes on where a line or a quote is open."""
    waiting = ""
    for line in block.text.splitlines():
        waiting += line.rstrip()
        if waiting.endswith("\\"):
            waiting = waiting[:-1]
            continue
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:
            waiting += "\n"
            continue
        waiting = ""
        if words:
            yield words
    assert not waiting, f"{block}: a quote is not closed"
