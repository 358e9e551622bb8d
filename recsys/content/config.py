"""Settings of endpoints, and of attributes that a language model reads off texts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from recsys.data.bounds import check_bounds

MAX_ATTRIBUTES = 20
MAX_VALUES = 100
MAX_VALUE_CHARS = 60
MAX_DESCRIPTION_CHARS = 300
NOTHING = ("", "null", "none", "unknown", "n/a")
"""How models write that a text does not say something."""


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """An OpenAI-compatible server: the address ends before ``/chat/completions``."""

    base_url: str
    """Such as "http://127.0.0.1:8080/v1"."""
    model: str
    """Model name at the endpoint."""
    api_key_variable: str = ""
    """Environment variable that holds the key; empty if none is needed. The key
    itself is in no configuration, log or artefact."""
    timeout_seconds: float = 60.0
    """How long one request may take."""
    max_retries: int = 4
    """More attempts after a timeout, a lost connection, status 408, 409, 429 or 5xx, or a reply
    that is no JSON."""
    first_wait_seconds: float = 1.0
    """Before the first retry; doubles each time, unless the server says how long (at most 60 s)."""
    concurrency: int = 4
    """Requests in flight at once."""
    requests_per_second: float | None = None
    """Most requests that begin in a second, retries included; None sets no limit."""
    temperature: float | None = None
    """None leaves it to the server; some models take no other."""
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the server calls the longest answer."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError('base_url must look like "http://127.0.0.1:8080/v1"')
        if parts.username or parts.password:
            raise ValueError("base_url holds a password; name a variable in api_key_variable")
        if not self.model:
            raise ValueError("model is empty; name the model as the server does")
        # Never echoed: a key pasted here by mistake would end in a log.
        if self.api_key_variable and not re.fullmatch(r"[A-Za-z_]\w{0,63}", self.api_key_variable):
            raise ValueError(
                "api_key_variable must be the name of an environment variable, not the key itself"
            )
        check_bounds(self, timeout_seconds="> 0", concurrency="> 0", requests_per_second="> 0")
        check_bounds(self, max_retries=">= 0", first_wait_seconds=">= 0")


@dataclass(frozen=True, kw_only=True)
class EmbeddingEndpointConfig(EndpointConfig):
    """An endpoint that gives embeddings."""

    dim: int
    """Width of its vectors; a reply of another width is an error, not a surprise."""
    send_dimensions: bool = False
    """True asks for this width as ``dimensions``, for models that can give several."""
    concurrency: int = 8
    """Requests in flight at once."""
    batch_size: int = 64
    """Texts a request, which are what a killed run pays for again, times ``concurrency``."""
    max_text_chars: int = 8_000
    """Characters of a text that are sent, since servers refuse texts that are too long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, dim=">= 1", batch_size=">= 1", max_text_chars=">= 1")


@dataclass(frozen=True, kw_only=True)
class AttributeConfig:
    """One attribute that a language model reads off the text of an item."""

    name: str
    """Small letters, digits and underscores, such as "material"."""
    type: Literal["choice", "choices", "words", "number", "yes_no"]
    """One of ``values``, several of them, free words, a number, or yes or no."""
    description: str
    """Description in a sentence for the model."""
    values: tuple[str, ...] = ()
    """Values of a choice; an answer that is not among them is refused."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", self.name):
            raise ValueError(
                f"name {self.name!r} must be 1 to 40 small letters, digits and underscores, a "
                'letter first, such as "material"'
            )
        if not _is_plain(self.description):
            raise ValueError(f"description of {self.name!r} must be one line of plain text")
        if len(self.description) > MAX_DESCRIPTION_CHARS:
            raise ValueError(
                f"description of {self.name!r} has {len(self.description)} characters, allowed "
                f"are {MAX_DESCRIPTION_CHARS}"
            )
        self._check_values()

    def _check_values(self) -> None:
        if not self.type.startswith("choice"):
            if self.values:
                raise ValueError(
                    f"attribute {self.name!r} of type {self.type!r} has values; leave them out, or "
                    'take type = "choice" or "choices"'
                )
            return
        if not 2 <= len(self.values) <= MAX_VALUES:
            raise ValueError(
                f"attribute {self.name!r} has {len(self.values)} values, allowed are 2 to "
                f"{MAX_VALUES}"
            )
        if len({value.casefold() for value in self.values}) < len(self.values):
            raise ValueError(f"attribute {self.name!r} has a value twice: {self.values}")
        for value in self.values:
            unclean = not _is_plain(value) or ";" in value or value.casefold() in NOTHING
            if unclean or len(value) > MAX_VALUE_CHARS:
                raise ValueError(
                    f"attribute {self.name!r}: value {value!r} must be 1 to {MAX_VALUE_CHARS} "
                    f"characters of plain text, without a semicolon, and none of {NOTHING[1:]}, "
                    "which stand for no value"
                )

    def schema(self) -> dict[str, Any]:
        """Write as a property of a JSON schema."""
        described = {"description": self.description}
        if self.type == "choices":
            items = {"type": "string", "enum": list(self.values)}
            few = {"minItems": 0, "maxItems": len(self.values)}
            return {"type": ["array", "null"], "items": items, **few} | described
        kinds = {"choice": "string", "words": "string", "number": "number", "yes_no": "boolean"}
        kind: dict[str, Any] = {"type": [kinds[self.type], "null"], **described}
        return kind | {"enum": [*self.values, None]} if self.values else kind

    def line(self) -> str:
        """Return in words what the model shall write."""
        values = ", ".join(json.dumps(value, ensure_ascii=False) for value in self.values)
        form = {
            "choice": f"One of {values}, or null.",
            "choices": f"A list of those that apply of {values}, or null.",
            "words": "A few words in the language of the text, or null.",
            "number": "A number, or null.",
            "yes_no": "true, false or null.",
        }[self.type]
        return f"- {self.name}: {self.description.rstrip('.')}. {form}"


def _is_plain(text: str) -> bool:
    """Return whether a text is one line of words, without tags and spaces around them."""
    return bool(text) and text.isprintable() and text == " ".join(text.split()) and "<" not in text


def check_attributes(attributes: Sequence[AttributeConfig]) -> None:
    """Refuse too many attributes, and two of one name."""
    names = [one.name for one in attributes]
    if len(names) > MAX_ATTRIBUTES or len(set(names)) < len(names):
        raise ValueError(
            f"attributes are {len(names)}: {', '.join(names)}; allowed are {MAX_ATTRIBUTES}, each "
            "of another name"
        )


@dataclass(frozen=True, kw_only=True)
class EnrichmentConfig:
    """Attributes that are read off texts, the budget, and the requests."""

    attributes: tuple[AttributeConfig, ...] = ()
    """Attributes to read off a text; empty reads none."""
    token_budget: int = 0
    """Tokens, read and written, over all items and runs; 0 sends nothing."""
    max_reply_tokens: int = 400
    """Longest answer for one item."""
    max_attempts: int = 2
    """Requests for one text, over all runs, until an answer fits the schema; those after the
    first report the error."""
    max_text_chars: int = 2000
    """Most characters of an item's text that are sent."""
    max_unreachable: int = 5
    """Stop when this many requests in a row get no answer after all their retries."""

    def __post_init__(self) -> None:
        check_attributes(self.attributes)
        check_bounds(self, token_budget=">= 0")
        whole = ("max_reply_tokens", "max_attempts", "max_text_chars", "max_unreachable")
        check_bounds(self, **dict.fromkeys(whole, ">= 1"))
