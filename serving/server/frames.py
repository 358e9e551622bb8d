"""Messages between the front and its workers over a socket pair: job, head in JSON, bytes.

8 bytes job | 4 bytes length each of head, body and records | head | body | records
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from serving.online.records import ID_LENGTH, ID_START
from serving.online.store import new_request_id, time_of

HEADER = struct.Struct("<QIII")
MAX_KEPT_HEAD = 512
"""Bytes of the longest head whose JSON is parsed once: most requests have the same one."""


class Frame(NamedTuple):
    """One message."""

    job: int
    """Number of the job that it is about; 0 where it is about the process."""
    head: Mapping[str, Any]
    """Not to be changed: frames share it."""
    body: bytes
    records: bytes = b""
    """Records of lists, one after the other."""


def packed(
    job: int, head: Mapping[str, Any] | bytes, body: bytes = b"", records: bytes = b""
) -> bytes:
    """Write a message as bytes; a head in bytes is JSON already."""
    text = head if isinstance(head, bytes) else orjson.dumps(head)
    lengths = HEADER.pack(job, len(text), len(body), len(records))
    return b"".join((lengths, text, body, records))


def with_new_id(frame: Frame) -> Frame:
    """Replace the id of a shared list, and of its record; errors have none."""
    if not frame.body.startswith(ID_START):
        return frame
    old = frame.body[len(ID_START) : len(ID_START) + ID_LENGTH]
    own = new_request_id(time_of(old.decode()))
    head = {**frame.head, "fields": {**frame.head["fields"], "request_id": own}}
    parts = (frame.body, frame.records)
    body, records = (part.replace(ID_START + old, ID_START + own.encode()) for part in parts)
    return Frame(frame.job, head, body, records)


@lru_cache(maxsize=64)
def _parsed(head: bytes) -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads(head)
    return found


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self, *, shares: bool = False) -> None:
        """Read messages; ``shares`` if their heads are those of requests, mostly equal ones."""
        self._shares, self._begun = shares, bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take what arrived and give the messages that are complete."""
        if self._begun:
            self._begun += data
            if len(self._begun) < self._length(self._begun):
                return []
            data = bytes(self._begun)
            self._begun.clear()
        frames, begin = [], 0
        size = len(data)
        while size - begin >= HEADER.size:
            job, head, body, records = HEADER.unpack_from(data, begin)
            first = begin + HEADER.size + head
            last = first + body
            if last + records > size:
                break
            text = data[begin + HEADER.size : first]
            parsed = _parsed(text) if self._shares and head <= MAX_KEPT_HEAD else orjson.loads(text)
            begin = last + records
            frames.append(Frame(job, parsed, data[first:last], data[last:begin]))
        if begin < size:
            self._begun += data[begin:]
        return frames

    def _length(self, data: bytearray) -> int:
        """Return the length of the first message, as far as it is known."""
        if len(data) < HEADER.size:
            return HEADER.size
        _, head, body, records = HEADER.unpack_from(data)
        return HEADER.size + int(head + body + records)
