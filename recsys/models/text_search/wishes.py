"""Wishes in plain words, such as "less horror this week, nothing with football", as topics.

A wish is split at commas, full stops and conjunctions. Each part has a direction, words, a strength
and a time after which it ends; a part without a direction has that of the part before it. A title
in quotes is not split. The words are only ever looked up: nothing in a wish, or in a title, is an
instruction.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Literal, NamedTuple

from recsys.models.text_search.tokens import APOSTROPHES, fold, words_of

Direction = Literal["more", "less", "never"]
DAY = 86_400
WEAK = 0.5
"""Strength of "a bit more"; of other wishes 1."""
MAX_TOPICS = 20
"""Topics of one wish; later ones are left out."""
_QUOTED = re.compile(r'["\u201c\u201e\u00ab]([^"\u201c\u201d\u00bb]+)["\u201c\u201d\u00bb]')
_PARTS = re.compile(r"[,;.!?\n]+|\b(?:and|but|or|also|then)\b")
_NEVER = (
    "no more|do not (?:want|show|recommend)|dont (?:want|show|recommend)|not interested in"
    "|not(?! (?:so|that|too|as|only)\\b)|nothing|never|none|without|stop|hide|no"
)
_LESS = (
    "not (?:so|that|too|as)(?: (?:much|many))?|too (?:much|many)|tired of|less|fewer|dislike|hate"
)
_MORE = "interested in|more|want|love|like|show|recommend|prefer|give|only"
_DIRECTIONS: tuple[tuple[Direction, re.Pattern[str]], ...] = (
    ("never", re.compile(rf"\b(?:{_NEVER})\b")),
    ("less", re.compile(rf"\b(?:{_LESS})\b")),
    ("more", re.compile(rf"\b(?:{_MORE})\b")),
)
LIKE = "like "
"""Begins the words of a topic that is about what is similar to an item."""
_LIKE = re.compile(
    r"\b(more|less|no|not|nothing)(?: \w+)? like\b|\b(?:some|any)thing like\b|\bsimilar to\b"
)
_OF_THIS = re.compile(r"\b(?:of|like) (?:this|these|that)\b")
THIS = f"{LIKE}this"
"""Words of a topic that is about an item that the wish does not name."""
_WEAK = re.compile(r"\b(?:a bit|a little|slightly|somewhat)\b")
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_UNITS = {"hour": DAY // 24, "day": DAY, "week": 7 * DAY, "month": 30 * DAY, "year": 365 * DAY}
_SOON = re.compile(r"\b(?:today|tonight|for now)\b|\bthis (?:evening|morning|weekend)\b")
_THIS = re.compile(r"\b(?:this|the next) (hour|day|week|month|year)\b")
_FOR = re.compile(
    rf"\b(?:for|in|within) (?:the next )?(\d{{1,4}}|{'|'.join(_NUMBERS)}) "
    rf"({'|'.join(_UNITS)})s?\b"
)
_FILLERS = frozenset(
    words_of(
        "a about all am an any anything are at be by can could do for from give i id im in is it"
        " its just kind kinds lately like lot lots me much my now of on one ones please really"
        " recently show so some something spoiler spoilers stuff such than that the them these"
        " they thing things this those to too up us very want we with would you",
        most=1_000,
    )
)


class Topic(NamedTuple):
    """One thing that a person wants more or less of."""

    words: str
    """Folded; what no item has is looked up in vain."""
    direction: Direction
    strength: float
    seconds: int | None
    """How long it holds; None for good."""


def parse_wish(wish: str) -> list[Topic]:
    """Read a wish; of several topics with the same words the last one counts."""
    found: dict[str, Topic] = {}
    direction: Direction = "more"
    waiting: list[str] = []
    text = APOSTROPHES.sub("", fold(wish)).replace("_", " ")
    text = _QUOTED.sub(lambda quoted: "_".join(words_of(quoted[1])), text)
    for part in _PARTS.split(text):
        part, seconds = _duration(part)
        part, weak = _WEAK.subn(" ", part)
        of_this = _OF_THIS.search(part)
        part, like = _LIKE.subn(r"\1 ", part)
        rest, direction = _direction(part, direction)
        words = LIKE * bool(like) + " ".join(_words(rest)).replace("_", " ")
        if of_this and rest != part and not words.removeprefix(LIKE):
            words = THIS
        if words.removeprefix(LIKE):
            found.pop(words, None)
            strength = WEAK if weak else 1.0
            found[words] = Topic(words, direction, strength, seconds)
            waiting = [*waiting, words] if seconds is None else []
        elif seconds is not None:
            # "..., for a week" is of all parts before it that have no time of their own.
            found |= {one: found[one]._replace(seconds=seconds) for one in waiting if one in found}
            waiting = []
    return list(found.values())[:MAX_TOPICS]


def _direction(part: str, before: Direction) -> tuple[str, Direction]:
    """Find the direction of a part, and take its words out."""
    for direction, pattern in _DIRECTIONS:
        rest, number = pattern.subn(" ", part)
        if number:
            return rest, direction
    return part, before


def _duration(part: str) -> tuple[str, int | None]:
    """Find how many seconds a part holds, and take these words out."""
    if (named := _FOR.search(part)) is not None:
        number = _NUMBERS.get(named[1]) or int(named[1])
        return _FOR.sub(" ", part), max(1, number) * _UNITS[named[2]]
    if (this := _THIS.search(part)) is not None:
        return _THIS.sub(" ", part), _UNITS[this[1]]
    rest, number = _SOON.subn(" ", part)
    return rest, DAY if number else None


def _words(part: str) -> Iterator[str]:
    return (word for word in re.findall(r"\w+(?:-\w+)*", part) if word not in _FILLERS)


def value_key(text: str) -> str:
    """Fold a word, or the value of a property, so that ``Comedies`` and ``comedy`` are one."""
    return "".join(map(_stem, words_of(text)))


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def find_values(words: str, known: Container[str]) -> tuple[list[str], list[str]]:
    """List the keys of values that words name, the longest first at each place, and other words.

    Args:
        known: Keys of values, as `value_key` makes them.
    """
    left, found, others = words.split(), list[str](), list[str]()
    while left:
        keys = [value_key(" ".join(left[:length])) for length in range(len(left), 0, -1)]
        place = next((place for place, key in enumerate(keys) if key in known), None)
        if place is None:
            others.append(left.pop(0))
        else:
            found.append(keys[place])
            left = left[len(keys) - place :]
    return found, others
