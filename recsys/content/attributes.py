"""Item attributes by enrichment: the check of an answer, and attributes as words of a text.

A reply is held to the schema here, for every model: a text that talks a model into other
keys, other types, addresses or our own marks makes that one item fail and touches nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from recsys.content.config import NOTHING
from recsys.content.prompt import Schema, clean_text, type_of

Value = str | tuple[str, ...]
MAX_WORDS_CHARS = 200
"""Most characters of an attribute in free words."""
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?(e[+-]?\d{1,2})?")
_ADDRESS = re.compile(r"https?:|www\.|\S@\S+\.\S", re.IGNORECASE)


class AttributeSource(NamedTuple):
    """Origin of an attribute."""

    model: str
    prompt_version: str
    time: str
    """When the answer came, ISO 8601 in UTC."""


class Attribute(NamedTuple):
    """One thing known about an item."""

    value: Value
    provenance: AttributeSource


def parse_reply(reply: str, mark: str, schema: Schema) -> dict[str, Value]:
    """Check a reply against the schema and clean its words; text around its object is ignored."""
    begin, end = reply.find("{"), reply.rfind("}")
    inner = reply[begin : end + 1] if 0 <= begin < end else reply
    try:
        document = json.loads(reply if reply.lstrip().startswith("[") else inner)
    except (ValueError, RecursionError):
        raise ValueError(f"the reply is no JSON: {reply[:80]!r}") from None
    if mark in reply or "<<<item" in reply:
        raise ValueError("the reply repeats the marks around the text")
    if isinstance(document, dict) and document.keys() < schema["properties"].keys():
        raise ValueError(f"the reply lacks {sorted(schema['properties'].keys() - document.keys())}")
    return checked(document, schema)


def checked(document: object, schema: Schema) -> dict[str, Value]:
    """Hold a parsed reply, or one read from the cache, to the schema; null gives no value."""
    if not isinstance(document, dict):
        raise ValueError(f"the reply is no object but {type(document).__name__}")
    kinds = schema["properties"]
    if not document.keys() <= kinds.keys():
        raise ValueError(
            f"the reply has the keys {sorted(document)[:10]}, allowed are "
            f"{sorted(kinds)}, each once"
        )
    found = {name: checked_value(name, kinds[name], document.get(name)) for name in kinds}
    return {name: value for name, value in found.items() if value is not None}


def checked_value(name: str, kind: Schema, value: object) -> Value | None:
    """Hold one value to its property; numbers become text, true and false yes and no."""
    said = value.strip().casefold() if isinstance(value, str) else value
    if value is None or said in NOTHING or value in ([], ()):
        return None
    match type_of(kind):
        case "string":
            return (
                listed(name, kind["enum"], value) if "enum" in kind else checked_text(name, value)
            )
        case "boolean":
            return yes_or_no(name, said)
        case "number":
            return checked_number(name, said)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} is no list but {type(value).__name__}")
    entries = tuple(dict.fromkeys(listed(name, kind["items"]["enum"], one) for one in value))
    if len(entries) > kind["maxItems"]:
        raise ValueError(
            f"{name} has {len(entries)} distinct entries, allowed are up to {kind['maxItems']}"
        )
    return entries


def listed(name: str, allowed: Sequence[str | None], value: object) -> str:
    """Find a value in its list, in any case."""
    text = checked_text(name, value)
    known = {one.casefold(): one for one in allowed if one is not None}
    if text.casefold() not in known:
        raise ValueError(f"{name} is {text[:60]!r}, allowed are {', '.join(known.values())}")
    return known[text.casefold()]


def yes_or_no(name: str, value: object) -> str:
    """Write true and false as words."""
    for word, same in (("yes", True), ("no", False)):
        if value is same or value in (word, str(same).lower()):
            return word
    raise ValueError(f"{name} is {str(value)[:60]!r}, allowed are true and false")


def checked_number(name: str, value: object) -> str:
    """Write a finite number as text."""
    text = str(value).lower()
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{name} is {text[:60]!r}, which is no number")
    return f"{number:.12g}"


def checked_text(name: str, value: object) -> str:
    """Clean one string of a reply."""
    if not isinstance(value, str):
        raise ValueError(f"{name} holds no string but {type(value).__name__}")
    text = clean_text(value)
    if not text or len(text) > MAX_WORDS_CHARS:
        raise ValueError(f"{name} has {len(text)} characters, allowed are 1 to {MAX_WORDS_CHARS}")
    if _ADDRESS.search(text):
        raise ValueError(f"{name} holds a web or mail address")
    return text


def enriched_text(
    text: str, values: Mapping[str, Value] | None, schema: Schema, *, first_chars: int = 500
) -> str:
    """Add attributes to an item's text, for its embedding.

    They follow the first characters of the text, since encoders do not read to the end of a
    long one.
    """
    if not values:
        return text
    begin = text
    if len(text) > first_chars:
        cut = text[: first_chars + 1].rfind(" ")
        begin = text[: cut if cut > 0 else first_chars]
    kinds = schema["properties"]
    added = [words_of(name, kinds[name], values[name]) for name in kinds if name in values]
    parts = [begin, *added, text[len(begin) :].strip()]
    return ". ".join(part.rstrip(".") for part in parts if part)


def words_of(name: str, kind: Schema, value: Value) -> str:
    """Return a value in words: a bare number, yes or no needs the attribute's name with it."""
    if not isinstance(value, str):
        return ", ".join(value)
    readable = name.replace("_", " ")
    if type_of(kind) == "boolean":
        return readable if value == "yes" else f"not {readable}"
    return f"{readable} {value}" if type_of(kind) == "number" else value
