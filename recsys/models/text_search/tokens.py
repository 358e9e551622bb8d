"""Texts as words and parts of words."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

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


PART = 3
"""Characters of a part of a word."""
MAX_WORD = 32
"""Characters of a word that are read."""


def parts_of(word: str) -> list[str]:
    """Cut a word, its ends marked, into each three characters that follow each other."""
    framed = f"<{word[:MAX_WORD]}>"
    return [framed[place : place + PART] for place in range(len(framed) - PART + 1)]


MAX_WORDS = 64
"""Words of a text that are read."""
MAX_TEXT = 1_000
"""Characters of an item's text that are read."""


_DECADE = re.compile(r"(1[89]|20)?([0-9])0(s|ern?)?")
_DECADES = {
    "twenties": 1920,
    "thirties": 1930,
    "forties": 1940,
    "fifties": 1950,
    "sixties": 1960,
    "seventies": 1970,
    "eighties": 1980,
    "nineties": 1990,
}
_YEARS = ("annees", "anos", "anni")
"""Words that a decade follows in French, Spanish and Italian, such as "annees 80"."""


def split(text: str) -> list[str]:
    """Split an item's text or a query into at most ``MAX_WORDS`` words.

    Decades in figures or words, such as "80s", become one word: ``1980s``.
    """
    words: list[str] = []
    for word in words_of(text, MAX_TEXT)[:MAX_WORDS]:
        decade = _DECADES.get(word)
        if decade is None and (named := _DECADE.fullmatch(word)) is not None:
            follows = bool(words) and words[-1] in _YEARS
            if named[3] or follows:
                decade = 10 * int((named[1] or ("19" if named[2] >= "3" else "20")) + named[2])
                words = words[:-1] if follows else words
        words.append(word if decade is None else f"{decade}s")
    return words


@dataclass(frozen=True, kw_only=True)
class ItemText:
    """Texts and attributes of an item."""

    item_row: int
    title: str
    text: str
    """All that is searched: title, brand, categories, description."""
    attributes: tuple[str, ...] = ()
    """Categories, brand: what a query may name without meaning this item alone."""
