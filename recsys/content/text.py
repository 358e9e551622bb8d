"""One clean line of text for an item, from whatever its catalogue knows about it."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence

MAX_RAW_CHARS = 100_000
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
    max_chars: int = 2000,
) -> str:
    """Format an item as one line, the most telling parts first, since encoders read no end."""
    if max_chars < 1:
        raise ValueError(f"max_chars must be >= 1, got {max_chars}")
    path = ", ".join(filter(None, map(clean_text, categories)))
    parts = [clean_text(title), clean_text(brand), path, clean_text(description)]
    parts += [clean_text(text) for text in further]
    text = ". ".join(part.rstrip(".") or part for part in parts if part)
    if len(text) <= max_chars:
        return text
    cut = text[: max_chars + 1].rfind(" ")
    return text[: cut if cut > 0 else max_chars].rstrip()
