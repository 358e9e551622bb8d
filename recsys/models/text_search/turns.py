"""Turns of a conversation: corrections that change a request, and the question that helps most.

A correction has topics (`wishes`) and tests of numbers, such as "price up to 50", "cheaper" or
"older", which compare with what was shown. A question names the value that the next items are split
by most evenly; each of its answers is a correction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from recsys.models.text_search.tokens import fold, words_of
from recsys.models.text_search.wishes import LIKE, Topic, parse_wish, value_key

Operator = Literal["<", "<=", ">", ">="]
LEAST_SHARE = 0.2
"""Share of the items from which a value may be a question."""
LEAST_KNOWN = 0.9
"""Share of the items that must have a number, for a question about it."""
MAX_QUERY, MAX_STEER_BYTES = 200, 1_024
_OPENING = re.compile(
    r"^\s*(?:(?:no|nope|not that|sorry|actually|well|ok|hm+)\s*[,.:;!]\s*"
    r"|(?:actually|sorry|no)\s+(?=i mean))+"
)
_INSTEAD = re.compile(r"\b(?:instead of|rather than)\b")
_RESTART = re.compile(r"\b(?:i meant?|instead|start over)\b")
_OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys(("over", "above", "after"), ">"),
    **dict.fromkeys(("under", "below", "before"), "<"),
    **dict.fromkeys(("at least", "from"), ">="),
    **dict.fromkeys(("at most", "up to", "until"), "<="),
}
_RELATIVE: tuple[tuple[str, Operator, frozenset[str]], ...] = (
    ("older|earlier", "<", frozenset(("year", "date"))),
    ("newer|later|more recent", ">", frozenset(("year", "date"))),
    ("cheaper|less expensive", "<", frozenset(("price", "cost"))),
    ("dearer|more expensive", ">", frozenset(("price", "cost"))),
)
"""Words, and the words of a property's name that they are about."""
_NUMBER = r"\d{4}-\d{2}-\d{2}|\d{1,15}(?:\.\d{1,9})?"


class NumberTest(NamedTuple):
    """A property compared with a number or a date, or with what was shown."""

    name: str
    operator: Operator
    value: str | None
    """None compares with the median of the items that were shown."""


class Turn(NamedTuple):
    """One thing that is said in a conversation."""

    topics: Sequence[Topic]
    tests: Sequence[NumberTest]
    restarts: bool
    """True if what was wanted before is wanted no more."""


class Split(NamedTuple):
    """A question that splits items into two parts."""

    question: str
    answers: tuple[str, str]
    """Answers that choose each part."""
    share: float
    """Share of the items in the first part."""


def read_turn(said: str, numbers: Iterable[str]) -> Turn:
    """Read a wish or a correction.

    Args:
        numbers: Names of the properties that are numbers or dates.
    """
    names, tests = {_label(name): name for name in numbers}, list[NumberTest]()
    text = _INSTEAD.sub(", no ", _OPENING.sub("", fold(said)))
    text, restarts = _RESTART.subn(" ", text)
    labels = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))

    def compared(found: re.Match[str]) -> str:
        tests.append(NumberTest(names[found[1]], _OPERATORS[found[2]], found[3]))
        return ","

    if names:
        ways = "|".join(_OPERATORS)
        text = re.sub(rf"\b({labels}) ({ways}) ({_NUMBER})(?![\w.]*\d)", compared, text)
    for pattern, operator, about in _RELATIVE:
        name = next((name for label, name in names.items() if about & set(words_of(label))), None)
        if name is not None:
            text, number = re.subn(rf"\b(?:{pattern})\b", ",", text)
            tests += [NumberTest(name, operator, None)] * bool(number)
    return Turn(parse_wish(text), tests, bool(restarts))


def _label(name: str) -> str:
    return " ".join(words_of(name.replace("_", " ")))


def change_texts(query: str, steer: str, turn: Turn, *, searches: bool) -> tuple[str, str]:
    """Change the query and the wish of a request as a turn says.

    Args:
        searches: Whether what is wanted is searched for, and not wished for.
    """
    words = [] if turn.restarts else words_of(query)
    wishes = {value_key(one.words): one for one in parse_wish(steer)}
    if turn.restarts:
        wishes = {key: one for key, one in wishes.items() if one.direction != "more"}
    # "No horror, no space" says what "no space horror" meant.
    said_words = sorted(value_key(word) for topic in turn.topics for word in topic.words.split())
    wishes = {
        key: one
        for key, one in wishes.items()
        if sorted(map(value_key, one.words.split())) != said_words
    }
    for topic in turn.topics:
        bare = topic.words.removeprefix(LIKE)
        for words_before in (bare, LIKE + bare):
            wishes.pop(value_key(words_before), None)
        said = bare.split()
        if searches and topic.direction == "more" and bare == topic.words:
            words += [word for word in words_of(" ".join(said)) if word not in words]
        else:
            unwanted = {value_key(word) for word in said}
            words = [word for word in words if value_key(word) not in unwanted]
            wishes[value_key(topic.words)] = topic
    return (
        " ".join(_latest(words, " ", MAX_QUERY)),
        ", ".join(_latest(list(map(_wish, wishes.values())), ", ", MAX_STEER_BYTES)),
    )


def _wish(topic: Topic) -> str:
    direction = "no" if topic.direction == "never" else topic.direction
    bare = topic.words.removeprefix(LIKE)
    words = bare if bare == topic.words else f'{LIKE}"{bare}"'
    return f"{direction}{' a bit' if topic.strength < 1 else ''} {words}"


def _latest(parts: list[str], between: str, most: int) -> list[str]:
    """Leave out the oldest parts until the text of all has at most ``most`` bytes."""
    while len(between.join(parts).encode()) > most:
        parts = parts[1:]
    return parts


def most_even_split(
    columns: Mapping[str, Sequence[object]], ordered: Iterable[str], said: str
) -> Split | None:
    """Find what splits items most evenly; None if nothing splits them.

    Args:
        columns: Values of the items by property: a text, a list of texts, a number or None.
        ordered: Names of the properties that are numbers or dates.
        said: What was said so far; no question is about a value in it.
    """
    known = set(map(value_key, words_of(said, len(said))))
    splits, numbers = list[Split](), set(ordered)
    for name, values in columns.items():
        splits += _thresholds(name, values) if name in numbers else _shares(values, known)
    even = [one for one in splits if LEAST_SHARE <= one.share <= 1 - LEAST_SHARE]
    return min(even, key=lambda split: abs(split.share - 0.5), default=None)


def _shares(values: Sequence[object], known: set[str]) -> Iterator[Split]:
    """Split by each text that a wish can name and none has yet."""
    texts = [set(one) if isinstance(one, list) else {one} for one in values if one is not None]
    for text, number in Counter(text for one in texts for text in one).items():
        topics = parse_wish(f"no {text}")
        is_new = not known.issuperset(map(value_key, words_of(str(text))))
        if is_new and [value_key(one.words) for one in topics] == [value_key(str(text))]:
            yield Split(f"{text}, or not?", (f"more {text}", f"no {text}"), number / len(values))


def _thresholds(name: str, values: Sequence[object]) -> Iterator[Split]:
    """Split after each number or date."""
    known: list[Any] = sorted(one for one in values if one is not None)
    if len(known) >= LEAST_KNOWN * len(values):
        for place, (value, after) in enumerate(pairwise(known), start=1):
            if value != after:
                number = str(value).partition("T")[0].removesuffix(".0")
                below, above = f"{_label(name)} up to {number}", f"{_label(name)} over {number}"
                yield Split(f"{below}, or over?", (below, above), place / len(values))
