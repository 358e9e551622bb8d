"""Cursors: the next page of a list without what the pages before it showed.

A cursor holds the ids that were shown and the moment of the first page. It needs no memory in the
server, so that any worker of any server can read it, after a swap or a restart too. It is not
signed: who changes it changes what their own list leaves out.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from serving.schemas import MAX_CURSOR

START = "start"
"""Cursor of a request for the first page."""
MAX_SHOWN = 1_000
"""Items of all pages together; there is no cursor after them."""
MAX_BYTES = 1 << 20


class CursorError(ValueError):
    """A cursor that no reply has given."""


class Cursor(NamedTuple):
    """Position of a visitor in a list."""

    now_ms: int
    """The clock of the first page; later pages are made as of the same moment."""
    shown: tuple[str, ...]
    """Items of the pages so far."""

    def after(self, item_ids: Sequence[str]) -> str | None:
        """Write the cursor after a page; None if it is the last."""
        shown = [*self.shown, *item_ids]
        if not item_ids or len(shown) >= MAX_SHOWN:
            return None
        packed = zlib.compress(orjson.dumps([self.now_ms, shown]), 1)
        text = base64.urlsafe_b64encode(packed).rstrip(b"=").decode()
        return text if len(text) <= MAX_CURSOR else None


def read_cursor(text: str, now_ms: int) -> Cursor:
    """Read what a reply gave, or ``start``.

    Raises:
        CursorError: It is neither.
    """
    if text == START:
        return Cursor(now_ms, ())
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        inflate = zlib.decompressobj()
        first_ms, shown = orjson.loads(inflate.decompress(packed, MAX_BYTES))
        if not isinstance(first_ms, int) or not 0 <= first_ms < 1 << 48:
            raise ValueError
        if len(shown) > MAX_SHOWN or not all(isinstance(item_id, str) for item_id in shown):
            raise ValueError
    except (ValueError, TypeError, binascii.Error, zlib.error):
        raise CursorError(
            f"cursor is neither {START!r} nor one that a reply gave; send it unchanged, or begin "
            f"again with {START!r}"
        ) from None
    return Cursor(first_ms, tuple(shown))
