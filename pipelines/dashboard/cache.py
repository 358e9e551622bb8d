"""What was read or computed once, kept while the files it came from stay as they are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Stamp = tuple[tuple[str, int, int], ...]


def stamp_of(paths: Iterable[Path]) -> Stamp:
    """Say which versions of files are there: name, time of change, size; 0 where it is gone."""
    found = []
    for path in paths:
        try:
            stat = path.stat()
            found.append((str(path), stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append((str(path), 0, 0))
    return tuple(found)


class Cache:
    """The values used latest, at most so many; safe for several threads."""

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, files: Iterable[Path], make: Callable[[], T]) -> T:
        """Return a value, made where it is not there or its files have changed since.

        Two who want the same value at once wait for one making. An error is not kept.

        Args:
            key: Of the value: the function's name and its arguments.
            files: That it is made of.
        """
        full = (key, stamp_of(files))
        with self._lock:
            if full in self._values:
                self._values.move_to_end(full)
                found: T = self._values[full]
                return found
            making = self._making.setdefault(full, threading.Lock())
        with making:
            with self._lock:
                if full in self._values:
                    kept: T = self._values[full]
                    return kept
            try:
                value = make()
            finally:
                with self._lock:
                    self._making.pop(full, None)
            with self._lock:
                self._values[full] = value
                while len(self._values) > self._size:
                    self._values.popitem(last=False)
        return value
