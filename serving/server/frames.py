"""Messages between the front and its workers over a socket pair: job, head in JSON, body in bytes.

8 bytes job | 4 bytes length of the head | 4 bytes length of the body | head | body
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

HEADER = struct.Struct("<QII")


class Frame(NamedTuple):
    """One message."""

    job: int
    """Number of the job that it is about; 0 where it is about the process."""
    head: dict[str, Any]
    body: bytes


def packed(job: int, head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Write a message as bytes."""
    text = orjson.dumps(head)
    return b"".join((HEADER.pack(job, len(text), len(body)), text, body))


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take what arrived and give the messages that are complete."""
        self._bytes += data
        while len(self._bytes) >= HEADER.size:
            job, head, body = HEADER.unpack_from(self._bytes)
            end = HEADER.size + head + body
            if len(self._bytes) < end:
                return
            message = bytes(self._bytes[HEADER.size : end])
            del self._bytes[:end]
            yield Frame(job, orjson.loads(message[:head]), message[head:])
