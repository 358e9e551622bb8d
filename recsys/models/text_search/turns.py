"""Turns of a conversation: corrections that change a request, and the question that helps most.

A correction has topics (`wishes`) and tests of numbers, such as "price up to 50", "cheaper" or
"older", which compare with what was shown. A question names the value whose answer saves the most
turns; each of its answers is a correction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from recsys.models.text_search.tokens import fold, words_of
from recsys.models.text_search.wishes import LIKE, Topic, parse_wish, value_key

Operator = Literal["<", "<=", ">", ">="]
UNSAID, SHOWN = 0.2, 10
"""Chance that a value that an item has is not said, fitted on simulated users; items of a list."""
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


def best_split(
    columns: Mapping[str, Sequence[object]], ordered: Iterable[str], said: str
) -> Split | None:
    """Find the question after which the fewest further turns are needed; None if none splits.

    Earlier items are likelier, and so are those whose lists, such as categories, have been said.
    Ten items are shown a turn, and each further question halves the part that is left.

    Args:
        columns: Values of the items by property, in order: a text, list of texts, number or None.
        ordered: Names of the properties that are numbers or dates.
        said: What was said so far; no question is about a value in it.
    """
    known = set(map(value_key, words_of(said, len(said))))
    parts, numbers = list[tuple[Split, list[bool]]](), set(ordered)
    chances = np.arange(1, 1 + max(map(len, columns.values()), default=0)) ** -0.5  # [n]
    for name, values in columns.items():
        parts += _thresholds(name, values) if name in numbers else _parts(values, known)
        lists = [one if isinstance(one, list) else [] for one in values]
        unsaid = {one: value_key(one) not in known for one in chain.from_iterable(lists)}
        chances *= UNSAID ** np.array([sum(map(unsaid.__getitem__, one)) for one in lists])
    if not parts:
        return None
    inside = np.array([one for _, one in parts])  # [S, n]
    places = np.where(inside, inside.cumsum(1), (~inside).cumsum(1))
    shares = inside.mean(1)
    turns = np.where(shares % 1 == 0, np.inf, np.log2(np.maximum(places / SHOWN, 1)) @ chances)
    best = np.lexsort((np.abs(shares - 0.5), turns))[0]
    return parts[best][0] if np.isfinite(turns[best]) else None


def _parts(values: Sequence[object], known: set[str]) -> Iterator[tuple[Split, list[bool]]]:
    """Split by each text that a wish can name and none has yet."""
    texts = [set(one) if isinstance(one, list) else {one} - {None} for one in values]
    for text in dict.fromkeys(text for one in texts for text in sorted(map(str, one))):
        topics = parse_wish(f"no {text}")
        is_new = not known.issuperset(map(value_key, words_of(text)))
        if is_new and [value_key(one.words) for one in topics] == [value_key(text)]:
            answers = f"more {text}", f"no {text}"
            yield Split(f"{text}, or not?", answers), [text in one for one in texts]


def _thresholds(name: str, values: Sequence[Any]) -> Iterator[tuple[Split, list[bool]]]:
    """Split after each number or date."""
    known: list[Any] = sorted(one for one in values if one is not None)
    if len(known) >= LEAST_KNOWN * len(values):
        for value, after in pairwise(known):
            if value != after:
                number = str(value).partition("T")[0].removesuffix(".0")
                below, above = f"{_label(name)} up to {number}", f"{_label(name)} over {number}"
                within = [one is not None and one <= value for one in values]
                yield Split(f"{below}, or over?", (below, above)), within
