"""Messages between the front and its workers over a socket pair: job, head in JSON, body in bytes.

8 bytes job | 4 bytes length of the head | 4 bytes length of the body | head | body
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

HEADER = struct.Struct("<QII")


class Frame(NamedTuple):
    """One message."""

    job: int
    """Number of the job that it is about; 0 where it is about the process."""
    head: dict[str, Any]
    body: bytes


def packed(job: int, head: Mapping[str, Any] | bytes, body: bytes = b"") -> bytes:
    """Write a message as bytes; a head in bytes is JSON already."""
    text = head if isinstance(head, bytes) else orjson.dumps(head)
    return b"".join((HEADER.pack(job, len(text), len(body)), text, body))


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._begun = bytearray()
        """The first bytes of a message that has not arrived whole."""

    def feed(self, data: bytes) -> list[Frame]:
        """Take what arrived and give the messages that are complete."""
        if self._begun:
            self._begun += data
            if len(self._begun) < self._length(self._begun, 0):
                return []
            data = bytes(self._begun)
            self._begun.clear()
        frames, begin = [], 0
        while len(data) - begin >= (length := self._length(data, begin)):
            job, head, _ = HEADER.unpack_from(data, begin)
            first, end = begin + HEADER.size, begin + length
            frames.append(
                Frame(job, orjson.loads(data[first : first + head]), data[first + head : end])
            )
            begin = end
        if begin < len(data):
            self._begun += data[begin:]
        return frames

    def _length(self, data: bytes | bytearray, begin: int) -> int:
        """Return the length of the message that begins here, as far as it is known."""
        if len(data) - begin < HEADER.size:
            return HEADER.size
        _, head, body = HEADER.unpack_from(data, begin)
        return HEADER.size + int(head) + int(body)
