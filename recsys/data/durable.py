"""Files and folders that a kill or a power cut leaves whole or absent, and locks between processes.

Everything is written in its folder, under a name that begins with ``PARTIAL``, forced to disk and
renamed. Failures to do so rise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

PARTIAL = ".partial-"
SETTLED_NS = 2_000_000_000
"""A file that changed later than this before it was hashed may change again within one tick of the
file system's clock, unseen."""


def digest_of_file(path: Path) -> str:
    """Hash a file's bytes without holding them in memory (sha256, hex)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_digests: dict[tuple[int, ...], str] = {}


def digest_once(path: Path) -> str:
    """Hash a file that this process, or the one it was forked from, may have hashed already.

    A file is the same as long as its inode, size and times of change are. The time of its last
    change of state cannot be set by its writer.
    """
    before = _read_state(path)
    if (found := _digests.get(before)) is None:
        begun = time.time_ns()
        found = digest_of_file(path)
        if _read_state(path) == before and max(before[3:]) < begun - SETTLED_NS:
            _digests[before] = found
    return found


def digests_once(paths: Sequence[Path]) -> list[str]:
    """Hash several files, on as many cores as there are."""
    if len(paths) < 2:
        return [digest_once(path) for path in paths]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(digest_once, paths))


def _read_state(path: Path) -> tuple[int, ...]:
    state = path.stat()
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def flush(file: IO[Any]) -> None:
    """Force the writes of an open file to disk."""
    file.flush()
    os.fsync(file.fileno())


def fsync(path: Path) -> None:
    """Force a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(directory: Path) -> None:
    """Force a folder and everything below it to disk."""
    for path in (*sorted(directory.rglob("*")), directory):
        fsync(path)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file and rename it into place; a reader finds the old one or the new."""
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    try:
        write(partial)
        fsync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace a small file."""
    data = content.encode() if isinstance(content, str) else content
    replace_file(path, lambda partial: partial.write_bytes(data))


def append_line(path: Path, line: str) -> None:
    """Append to a file of lines; one that a kill cut off does not swallow the next."""
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + line + "\n")
        flush(file)
    fsync(path.parent)


def replace_link(link: Path, target: str) -> None:
    """Point a symbolic link at another target in one rename."""
    partial = link.with_name(f"{PARTIAL}{os.getpid()}-{link.name}")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link)
    fsync(link.parent)


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """Offer a temporary directory that becomes ``final`` if the block ends well."""
    if final.exists():
        raise ValueError(f"{final} exists and is never changed; choose another version")
    partial = final.with_name(PARTIAL + final.name)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        fsync_tree(partial)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    fsync(final.parent)


@contextmanager
def locked(path: Path, *, wait: bool | float = True) -> Iterator[bool]:
    """Hold a lock file; the kernel releases it when the process ends, however it ends.

    Args:
        wait: Wait for the process that holds it, or this number of seconds. Otherwise the
            block runs without the lock.

    Yields:
        Whether the lock is held.
    """
    # Takes 60 ms, and most processes lock nothing.
    from filelock import FileLock, Timeout

    # A lock by a file's existence would outlive a kill, so there is no fallback to one.
    lock = FileLock(path, fallback_to_soft=False)
    held = None
    with suppress(Timeout):
        held = lock.acquire(-1 if wait is True else float(wait), blocking=wait is not False)
    if held is None:
        yield False
    else:
        with held:
            yield True


@contextmanager
def shared(path: Path) -> Iterator[bool]:
    """Hold a lock file together with others who share it, against who would hold it by `locked`.

    Works on a folder too, and on a file that cannot be written. Never waits.

    Yields:
        Whether the lock is held; if not, somebody holds it alone.
    """
    if not path.exists():
        path.touch()
    with _flocked(path, alone=False) as held:
        yield held


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Hold a folder alone, so that no process begins to use it; false where a process uses it."""
    with _flocked(folder, alone=True) as held:
        yield held


@contextmanager
def _flocked(path: Path, *, alone: bool) -> Iterator[bool]:
    import fcntl

    # What is held alone is about to be removed: never what a link points at.
    descriptor = os.open(path, os.O_RDONLY | (os.O_NOFOLLOW if alone else 0))
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


class Held:
    """Folders that this process uses, so that no process removes them while this object lives.

    Each is locked, shared with all others who use it, until the process ends at the latest. A file
    system without locks holds nothing.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        import fcntl

        self._descriptors: list[int] = []
        weakref.finalize(self, _close, self._descriptors)
        for folder in folders:
            with suppress(OSError):
                self._descriptors.append(os.open(folder, os.O_RDONLY))
                try:
                    fcntl.flock(self._descriptors[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ValueError(f"{folder} is being removed; name another one") from None


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
