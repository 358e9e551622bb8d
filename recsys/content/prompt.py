"""Prompts and completions of language models, which recsys/content/endpoint.py asks.

The caller passes a log, which is called before a request may cost money and again with each
answer, from the thread that got it, so that a killed caller keeps every answer that came.

An item's text is data. It reaches an endpoint as one JSON string between marks made of its own
hash; one prompt holds one text, so no text can speak about another.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

MAX_RAW_CHARS, MAX_CHARS = 100_000, 2_000
# A letter, slash or ! must follow, so that "under < 5 kg" stays.
_TAG = re.compile(r"<[a-zA-Z/!][^<>]*>")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff\ud800-\udfff]")


def clean_text(text: str | None) -> str:
    """Strip HTML tags, control and invisible characters and surplus whitespace; None gives "".

    Entities are decoded twice, for catalogues that escaped them twice, and text beyond
    100,000 characters is cut off first.
    """
    if not text:
        return ""
    text = html.unescape(html.unescape(text[:MAX_RAW_CHARS]))
    text = _CONTROL.sub(" ", _TAG.sub(" ", text))
    text = unicodedata.normalize("NFC", _INVISIBLE.sub("", text))
    return " ".join(text.split())


def item_text(
    title: str | None = None,
    *,
    description: str | None = None,
    brand: str | None = None,
    categories: Sequence[str] = (),
    further: Sequence[str] = (),
) -> str:
    """Format an item as one line, the most telling parts first, since encoders read no end."""
    path = ", ".join(filter(None, map(clean_text, categories)))
    parts = [clean_text(title), clean_text(brand), path, clean_text(description)]
    parts += [clean_text(text) for text in further]
    text = ". ".join(part.rstrip(".") or part for part in parts if part)
    if len(text) <= MAX_CHARS:
        return text
    cut = text[: MAX_CHARS + 1].rfind(" ")
    return text[: cut if cut > 0 else MAX_CHARS].rstrip()


Schema = Mapping[str, Any]
# No tokenizer makes more tokens than bytes; a chat template adds some around each message.
TEMPLATE_TOKENS = 64


def type_of(kind: Schema) -> str:
    """Return the JSON type of a property, without null, its alternative."""
    return str(kind["type"][0])


class Prompt(NamedTuple):
    """Our instructions and the untrusted text they apply to."""

    instructions: str
    text: str
    repair: str = ""
    """Fault of the answer before; it may quote that answer, so it is data too."""

    @property
    def mark(self) -> str:
        """The delimiter around the text; made of its hash, so that the text cannot hold it."""
        digest = hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()
        return f"<<<item {digest[:16]}>>>"

    def delimited(self) -> str:
        """Write the text as one JSON string between two marks."""
        readable = self.text.encode("utf-8", "replace").decode()
        page = f"{self.mark}\n{json.dumps(readable, ensure_ascii=False)}\n{self.mark}"
        if not self.repair:
            return page
        fault = json.dumps(self.repair.replace("<<<", ""), ensure_ascii=True)
        return f"{page}\nAn earlier answer was refused for this fault: {fault}. Answer without it."


class Tokens(NamedTuple):
    """Tokens that a model reads and writes."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def plus(self, other: Tokens) -> Tokens:
        """Add both counts."""
        return Tokens(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def minus(self, other: Tokens) -> Tokens:
        """Subtract both counts."""
        return self.plus(Tokens(-other.prompt_tokens, -other.completion_tokens))


class Completion(NamedTuple):
    """An answer as the model wrote it, JSON or not, and its tokens; None where unreported."""

    text: str
    tokens: Tokens | None


class EndpointError(ValueError):
    """An endpoint failed; the message has what to do."""

    def __init__(self, message: str, *, may_be_paid: bool = False) -> None:
        super().__init__(message)
        self.may_be_paid = may_be_paid
        """True if the last attempt may have been charged for, though no answer came."""


class EndpointUnreachableError(EndpointError):
    """No usable answer after all retries; a later run may get one."""


class EndpointRefusedError(EndpointError):
    """The endpoint refuses every request: the key, the model's name or the address is wrong."""


class CompletionLog(Protocol):
    """Records every request; called from several threads."""

    def charge(self, index: int) -> None:
        """Called before prompt ``index`` is sent; raises to forbid it."""

    def record(self, index: int, answer: Completion | Exception) -> None:
        """Keep the answer to prompt ``index``, or why there is none."""
