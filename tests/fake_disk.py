"""A disk that keeps what was synced and nothing else: what a power cut may leave of a folder.

A file keeps the bytes of its last fsync, a folder the entries of its own last fsync. POSIX promises
no more, so what survives here survives on every file system. Syncs by C code (SQLite) go unseen.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest


class Entry(NamedTuple):
    inode: int
    is_folder: bool
    target: str | None
    """Of a symbolic link, which is part of its folder's entry."""

    @classmethod
    def of(cls, path: Path) -> "Entry":
        target = str(path.readlink()) if path.is_symlink() else None
        return cls(path.lstat().st_ino, target is None and path.is_dir(), target)


class FakeDisk:
    """The synced state of everything below a folder; it begins with what is there."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.descriptors: list[int] = []
        self._bytes: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, Entry]] = {}
        for path in (self.root, *self.root.rglob("*")):
            if not path.is_symlink():
                self._keep(path)

    def _keep(self, path: Path) -> None:
        # Held open, so that the file system gives its inode to no other file.
        self.descriptors.append(os.open(path, os.O_RDONLY))
        inode = path.stat().st_ino
        if path.is_dir():
            self._entries[inode] = {one.name: Entry.of(one) for one in path.iterdir()}
        else:
            self._bytes[inode] = path.read_bytes()

    def sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(self.root):
            self._keep(path)

    def cut_power(self) -> None:
        """Leave of the folder what was synced. The disk holds nothing after that."""
        for path in self.root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self._restore(self.root.stat().st_ino, self.root)

    def _restore(self, folder: int, path: Path) -> None:
        for name, entry in self._entries.get(folder, {}).items():
            if entry.target is not None:
                (path / name).symlink_to(entry.target)
            elif entry.is_folder:
                (path / name).mkdir()
                self._restore(entry.inode, path / name)
            else:
                (path / name).write_bytes(self._bytes.get(entry.inode, b""))


@contextmanager
def fake_disk(root: Path) -> Iterator[FakeDisk]:
    """Let syncs below a folder reach a fake disk, and no other."""
    disk = FakeDisk(root)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, disk.sync)
            yield disk
    finally:
        for descriptor in disk.descriptors:
            os.close(descriptor)
