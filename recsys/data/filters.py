"""Parse a filter such as ``price < 50 and category in ['a', 'b']`` into a tree.

    expression  = conjunction ("or" conjunction)*
    conjunction = term ("and" term)*
    term        = "not" term | "(" expression ")" | test
    test        = name ("=" | "==" | "!=" | "<" | "<=" | ">" | ">=") value
                | name ["not"] "in" "[" value ("," value)* "]"
                | name "is" ["not"] "missing"
    name        = letters, digits and _ | anything between backticks
    value       = number | "text" | 'text' | true | false

A quote inside a text is written twice. What a name means, and whether a value fits it, is known to
`serving.filtering.compile` alone. Length, nesting and number of values are bounded, so that no text
costs more than a few milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, NoReturn, get_args

MAX_TEXT = 4_096
"""Characters of an expression."""
MAX_NESTING = 32
"""Parentheses and ``not`` inside each other."""
MAX_VALUES = 256
"""Values of all tests together; a test without a value counts as one."""
KEYWORDS = frozenset(["and", "or", "not", "in", "is", "missing", "true", "false"])
"""In any case; a property of such a name is written between backticks."""
SHOWN = 40

Value = float | str | bool
Operator = Literal["=", "!=", "<", "<=", ">", ">="]
FilterCode = Literal["invalid_filter", "unknown_property"]


class FilterError(ValueError):
    """A filter that cannot be applied; the message has the place and the remedy."""

    def __init__(self, code: FilterCode, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.code: FilterCode = code
        self.position = position
        """Character at fault, from 1."""


@dataclass(frozen=True, slots=True)
class Relation:
    """``name operator value``."""

    name: str
    operator: Operator
    value: Value
    position: int


@dataclass(frozen=True, slots=True)
class Membership:
    """``name in [values]``; of a list: whether any of its values is there."""

    name: str
    values: tuple[Value, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Missing:
    """``name is missing``."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    part: Node


@dataclass(frozen=True, slots=True)
class AllOf:
    """``and``."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """``or``."""

    parts: tuple[Node, ...]


Test = Relation | Membership | Missing
Node = Test | Not | AllOf | AnyOf


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed filter."""

    text: str
    root: Node
    names: frozenset[str]
    """Properties that it reads."""


class _Token(NamedTuple):
    kind: str
    """``name``, ``number``, ``text``, ``symbol``, ``end``, or a keyword itself."""
    text: str
    """Its value: a text without its quotes."""
    position: int


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<word>[^\W\d]\w*)
    | `(?P<name>[^`]*)`
    | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    | '(?P<single>[^']*(?:''[^']*)*)'
    | "(?P<double>[^"]*(?:""[^"]*)*)"
    | (?P<symbol>==|!=|<=|>=|[=<>()\[\],])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)


def shown(text: str) -> str:
    """Cut what a client sent to something short that any terminal and any log can show."""
    return ascii(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while True:
        found = _TOKEN.match(text, place)
        if found is None:
            place += len(text[place:]) - len(text[place:].lstrip())
            why = "is not closed" if text[place] in "'\"`" else "is not part of a filter"
            raise _invalid(f"{shown(text[place])} {why}", place + 1)
        kind = found.lastgroup
        assert kind is not None
        token = found[kind]
        place, position = found.end(), found.end() - len(found[0].lstrip()) + 1
        if kind == "word":
            yield _Token(token.lower() if token.lower() in KEYWORDS else "name", token, position)
        elif kind in ("single", "double"):
            quote = "'" if kind == "single" else '"'
            yield _Token("text", token.replace(2 * quote, quote), position)
        else:
            yield _Token(kind, token, position)
        if kind == "end":
            return


def _invalid(message: str, position: int) -> FilterError:
    return FilterError("invalid_filter", f"character {position}: {message}", position)


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._depth = 0
        self._num_values = 0
        self.names: set[str] = set()

    def whole(self) -> Node:
        """Parse to the end of the text."""
        found = self._parse_any()
        if self._next.kind != "end":
            self._refuse("'and', 'or' or the end")
        return found

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _takes(self, *wanted: str) -> bool:
        """Take the next token if it is one of these keywords or symbols."""
        token = self._next
        found = (token.text if token.kind == "symbol" else token.kind) in wanted
        if found:
            self._take()
        return found

    def _refuse(self, expected: str) -> NoReturn:
        token = self._next
        found = "the end" if token.kind == "end" else shown(token.text)
        raise _invalid(f"expected {expected}, found {found}", token.position)

    def _parse_any(self) -> Node:
        parts = [self._parse_all()]
        while self._takes("or"):
            parts.append(self._parse_all())
        return AnyOf(tuple(parts)) if len(parts) > 1 else parts[0]

    def _parse_all(self) -> Node:
        parts = [self._term()]
        while self._takes("and"):
            parts.append(self._term())
        return AllOf(tuple(parts)) if len(parts) > 1 else parts[0]

    def _term(self) -> Node:
        position = self._next.position
        opened = self._takes("(")
        if not opened and not self._takes("not"):
            return self._test()
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise _invalid(f"nested deeper than {MAX_NESTING}; write it flatter", position)
        if opened:
            found = self._parse_any()
            if not self._takes(")"):
                self._refuse("')', 'and' or 'or'")
        else:
            found = Not(self._term())
        self._depth -= 1
        return found

    def _test(self) -> Node:
        if self._next.kind != "name":
            self._refuse("the name of a property, 'not' or '('")
        _, name, position = self._take()
        self.names.add(name)
        if self._takes("is"):
            negated = self._takes("not")
            if not self._takes("missing"):
                self._refuse("'missing'")
            self._count(position)
            return _unless(negated, Missing(name, position))
        negated = self._takes("not")
        if self._takes("in"):
            return _unless(negated, Membership(name, self._values(), position))
        if negated:
            self._refuse("'in'")
        return self._comparison(name, position)

    def _comparison(self, name: str, position: int) -> Relation:
        for operator in get_args(Operator):
            if self._takes(operator, "==" if operator == "=" else operator):
                return Relation(name, operator, self._value(), position)
        self._refuse("=, !=, <, <=, >, >=, 'in', 'not in', 'is missing' or 'is not missing'")

    def _values(self) -> tuple[Value, ...]:
        if not self._takes("["):
            self._refuse("'['")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        if not self._takes("]"):
            self._refuse("',' or ']'")
        return tuple(values)

    def _value(self) -> Value:
        kind, text, position = self._next
        if kind not in ("text", "number", "true", "false"):
            self._refuse("a number, a text between quotes, true or false")
        self._take()
        self._count(position)
        if kind == "text":
            return text
        if kind != "number":
            return kind == "true"
        number = float(text)
        if not math.isfinite(number):
            raise _invalid(f"{shown(text)} is too large a number", position)
        return number

    def _count(self, position: int) -> None:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise _invalid(f"more than {MAX_VALUES} values; ask for fewer", position)


def _unless(negated: bool, test: Test) -> Node:
    return Not(test) if negated else test


@lru_cache(maxsize=512)
def _parsed(text: str) -> Expression:
    parser = _Parser(text)
    root = parser.whole()
    return Expression(text, root, frozenset(parser.names))


def parse(text: str) -> Expression:
    """Parse a filter.

    Raises:
        FilterError: Names the character at fault and the remedy.
    """
    if len(text) > MAX_TEXT:
        message = f"a filter has at most {MAX_TEXT} characters, this one has {len(text)}"
        raise _invalid(message, MAX_TEXT + 1)
    return _parsed(text)
