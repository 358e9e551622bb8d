"""Texts without case and diacritics, split into words."""

from __future__ import annotations

import re
import unicodedata

MAX_CHARACTERS = 200
"""Characters of a text that are split into words by default."""
APOSTROPHES = re.compile("['\u2019]")

_LETTERS = str.maketrans(
    {
        "\u00f8": "o",
        "\u0142": "l",
        "\u0111": "d",
        "\u0131": "i",
        "\u00e6": "ae",
        "\u0153": "oe",
        "\u00fe": "th",
        "\u00f0": "d",
    }
)
# Scripts written without spaces, and pictures: each character is a word.
_SINGLE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u2600-\u27bf\U0001f000-\U0001faff"
_WORD = re.compile(f"[{_SINGLE}]|[^\\W_{_SINGLE}]+")


def fold(text: str) -> str:
    """Drop case and diacritics, so that ``Amélie`` and ``AMELIE`` are one."""
    if text.isascii():
        return text.casefold()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(one for one in decomposed if not unicodedata.combining(one))
    return bare.casefold().translate(_LETTERS)


def words_of(text: str, most: int = MAX_CHARACTERS) -> list[str]:
    """Split a text into folded words; an apostrophe splits none (``d'Amélie`` is ``damelie``)."""
    return _WORD.findall(APOSTROPHES.sub("", fold(text[:most])))


def indexed_texts(title: str) -> tuple[str, str]:
    """Fold a title to its words, and to those plus the ones on either side of an apostrophe."""
    words = words_of(title)
    more = words_of(APOSTROPHES.sub(" ", title)) if APOSTROPHES.search(title) else []
    return " ".join(words), " ".join([*words, *more])
