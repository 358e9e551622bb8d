"""The rules of prose, on README and guides: short sentences, plain words, answers of one page.

Records of decisions are left out of the rule of sentences: their numbers come in lists.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

RECORDS = sorted((DOCS / "decisions").glob("*.md"))
GUIDES = [ROOT / "README.md", *(page for page in DOCS.rglob("*.md") if page not in RECORDS)]
TRANSLATED = (
    r"\b(anew|twofold|wherever|whoever|whatever|kin)\b",
    r"\bso (many|much|long) (as|that|of)\b",
    r"\b(stands|lies|goes on)\b",
    r"(?<![\w.])\.\d",
)
"""Archaic words, verbs that stand for "is", and numbers without a leading zero."""


def sentences(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^(\||#|!\[).*$", " ", text, flags=re.MULTILINE)
    found = re.split(r"(?<=[.!?:])\s+|\n\s*(?:\n|[-*] |\d+\. )", text)
    return [one for one in found if len(one.split()) > 2]


def test_few_sentences_are_long() -> None:
    every = [one for page in GUIDES for one in sentences(page)]
    assert sum(len(one.split()) > 30 for one in every) <= 0.04 * len(every)


@pytest.mark.parametrize("pattern", TRANSLATED)
def test_guides_are_in_plain_words(pattern: str) -> None:
    found = {str(page.relative_to(ROOT)): re.findall(pattern, prose(page)) for page in GUIDES}
    assert {page: words for page, words in found.items() if words} == {}


def prose(page: Path) -> str:
    text = re.sub(r"```.*?```", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", " ", text)


def test_guides_and_records_are_short() -> None:
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in GUIDES}
    assert {page: count for page, count in words.items() if count > 1500} == {}
    assert len(RECORDS) - 1 <= 30
    assert max(len(page.read_text(encoding="utf-8").split()) for page in RECORDS) <= 800


def test_a_release_in_the_changelog_is_short() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for release in text.split("\n## ")[1:]:
        assert set(re.findall(r"^### (\w+)", release, re.MULTILINE)) <= {
            *("Added", "Changed", "Fixed", "Removed")
        }
        assert len(release.split()) <= 1500
