"""Copies of bundles in another folder of bundles, on a disk or at a URL, verified by digest.

    <place>/bundle-<version>/      as in a local folder of bundles; the manifest is written last

fsspec opens the place: a path, s3://, gs:// or abfs://. A copy that was cut off is continued.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recsys.data.durable import PARTIAL, digest_of_file, fsync, fsync_tree, locked
from serving.bundle.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    BundleManifest,
    FileEntry,
    OtherVersionError,
    bundle_directory,
    check_names,
    make_read_only,
    read_manifest,
    verify_files,
)

BLOCK_BYTES = 1 << 20
MARGIN_BYTES = 64 << 20
"""Left free on the disk."""
FETCHED = f"{PARTIAL}fetched-"
OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}


class UnreachableError(ValueError):
    """A registry, or a place of copies, does not answer; later it may."""


class MissingError(ValueError):
    """A place has no such file."""


class CopyPlace:
    """A folder of bundles, on a disk or at a URL."""

    def __init__(self, address: str) -> None:
        from fsspec.core import url_to_fs

        self.address = address.rstrip("/")
        try:
            self._files, root = url_to_fs(self.address)
        except (ImportError, ValueError) as error:
            raise UnreachableError(
                f"{address!r} cannot be opened: {error}. Name a folder, or s3://, gs:// or abfs:// "
                "with s3fs, gcsfs or adlfs installed"
            ) from error
        self._root = root.rstrip("/")

    def sizes(self, folder: str) -> dict[str, int]:
        """List the files below a folder with their sizes in bytes; empty if it does not exist."""
        above = f"{self._root}/{folder}"
        try:
            found = self._files.find(above, detail=True)
        except FileNotFoundError:
            return {}
        # A file system may name what it finds without the leading slash.
        start = len(above.strip("/")) + 1
        return {path.strip("/")[start:]: int(one["size"]) for path, one in found.items()}

    def read(self, name: str, limit: int) -> bytes:
        """Read a small file.

        Raises:
            MissingError: There is none.
            ValueError: It has more than ``limit`` bytes.
        """
        try:
            with self._files.open(f"{self._root}/{name}", "rb") as file:
                content: bytes = file.read(limit + 1)
        except FileNotFoundError:
            raise MissingError(f"there is no {name} at {self.address}") from None
        if len(content) > limit:
            raise ValueError(f"{name} at {self.address} has more than {limit} bytes")
        return content

    def copy_in(self, source: Path, name: str) -> str:
        """Copy a local file to the place; return the sha256 of the copied bytes."""
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with source.open("rb") as file, self._files.open(path, "wb") as target:
            return _copy(file, target)

    def copy_out(self, name: str, target: Path) -> str:
        """Copy a file of the place to a local one; return the sha256 of the copied bytes."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._files.open(f"{self._root}/{name}", "rb") as file, target.open("wb") as to:
            return _copy(file, to)


def _copy(source: Any, target: Any) -> str:
    digest = hashlib.sha256()
    while block := source.read(BLOCK_BYTES):
        digest.update(block)
        target.write(block)
    return digest.hexdigest()


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Turn any error of a network or a store's driver into one.

    Raises:
        UnreachableError: The place failed. A ValueError and a fault of this disk pass.
    """
    try:
        yield
    except ValueError:
        raise
    except OSError as error:
        if error.errno in OF_THE_DISK:
            raise
        raise UnreachableError(f"{address} cannot be reached: {error}") from error
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise UnreachableError(f"{address} cannot be reached: {words}") from error


def send(bundles: Path, version: str, address: str) -> None:
    """Copy a bundle, and what it was appended to, to another folder of bundles.

    Raises:
        ValueError: A file of it is missing or altered, or the place has another bundle of its name.
        UnreachableError: The place failed; copied files are kept for the next time.
    """
    from serving.bundle.manifest import read_chain

    with reaching(address):
        place = CopyPlace(address)
        for link in read_chain(bundle_directory(bundles, version)):
            _send_one(place, link.directory, link.manifest, link.digest)


def _send_one(place: CopyPlace, directory: Path, manifest: BundleManifest, digest: str) -> None:
    name = directory.name
    sizes = place.sizes(name)
    if MANIFEST in sizes:
        there = hashlib.sha256(place.read(f"{name}/{MANIFEST}", MAX_MANIFEST_BYTES)).hexdigest()
        if there != digest:
            raise ValueError(
                f"{place.address}/{name} has digest {there}, {directory} has {digest}: two bundles "
                "of one name. Remove the one that is not wanted, or set tracking.bundles to "
                "another folder"
            )
    entries = {**manifest.files, MANIFEST: FileEntry.of(directory / MANIFEST)}
    for file, entry in entries.items():
        if sizes.get(file) == entry.size:
            continue
        source = directory / file
        if not source.is_file() or place.copy_in(source, f"{name}/{file}") != entry.sha256:
            raise ValueError(f"{source} is missing or altered; release the bundle again")


@dataclass
class FetchedBundle:
    """A bundle that is verified in its folder, with what it was appended to."""

    version: str
    num_files: int = 0
    """Files that were copied; 0 if all were here."""
    num_bytes: int = 0


@dataclass
class _Part:
    """A bundle of a chain: its place here, and where it is collected before that."""

    final: Path
    digest: str
    manifest: BundleManifest = field(init=False)

    @property
    def partial(self) -> Path:
        return self.final.with_name(f"{FETCHED}{self.digest[:16]}")


def fetch(address: str, version: str, digest: str, bundles: Path) -> FetchedBundle:
    """Copy a bundle, and what it was appended to, into a folder of bundles and verify every byte.

    Only what the manifest names is copied, and the manifest only if it has the digest.

    Raises:
        ValueError: It is missing or altered, of another version of the platform, or another bundle
            has its name here. Nothing of it is used.
        UnreachableError: The place failed; copied files are kept for the next time.
        OSError: The disk is full or cannot be written.
    """
    bundles.mkdir(parents=True, exist_ok=True)
    with locked(bundles / ".fetch.lock"), reaching(address):
        place = CopyPlace(address)
        found = FetchedBundle(version)
        chain: list[_Part] = []
        wanted: tuple[str, str] | None = (version, digest)
        while wanted is not None:
            part = _Part(bundle_directory(bundles, wanted[0]), wanted[1])
            part.manifest = _manifest(place, part, wanted[0])
            chain.append(part)
            parent = part.manifest.parent
            wanted = (parent.version, parent.digest) if parent else None
        for path in set(bundles.glob(f"{FETCHED}*")) - {part.partial for part in chain}:
            shutil.rmtree(path)
        for part in reversed(chain):
            _complete(place, part, found)
    return found


def _manifest(place: CopyPlace, part: _Part, version: str) -> BundleManifest:
    """Read a bundle's manifest, here or from the place, and hold it against its digest."""
    if part.final.exists():
        manifest, digest = read_manifest(part.final)
        if digest != part.digest:
            raise ValueError(
                f"{part.final} has digest {digest}, the one to fetch has {part.digest}: two "
                "bundles of one name. Nothing was fetched; fetch into another folder, or remove "
                "this one if no server uses it"
            )
        return manifest
    name = f"{part.final.name}/{MANIFEST}"
    content = place.read(name, MAX_MANIFEST_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    if digest != part.digest:
        raise ValueError(
            f"{name} at {place.address} is altered: it has sha256 {digest}, the one to fetch has "
            f"{part.digest}. Nothing of it is used; copy it again from where it was made"
        )
    part.partial.mkdir(exist_ok=True)
    (part.partial / MANIFEST).write_bytes(content)
    try:
        manifest, _ = read_manifest(part.partial)
    except OtherVersionError as error:
        shutil.rmtree(part.partial)
        text = str(error).replace(str(part.partial), f"{place.address}/{part.final.name}")
        raise ValueError(f"{text}. Nothing was fetched") from error
    if manifest.version != version:
        raise ValueError(f"{name} at {place.address} is of {manifest.version}; do not use it")
    check_names(part.partial, manifest)
    return manifest


def _complete(place: CopyPlace, part: _Part, found: FetchedBundle) -> None:
    """Copy the files of a bundle that are missing, verify all, and rename it into its place."""
    if part.final.exists():
        verify_files(part.final, part.manifest)
        return
    missing = {name: one for name, one in part.manifest.files.items() if not _has(part, name, one)}
    sizes = place.sizes(part.final.name)
    for name, entry in missing.items():
        if sizes.get(name) != entry.size:
            has = f"has {sizes[name]} bytes" if name in sizes else "is missing"
            raise ValueError(_fault(place, part, name, f"{has}, the manifest says {entry.size}"))
    needed, free = sum(one.size for one in missing.values()), shutil.disk_usage(part.partial).free
    if needed + MARGIN_BYTES > free:
        words = f"{part.final.name} needs {needed:,} bytes in {part.final.parent}, {free:,} are"
        raise OSError(errno.ENOSPC, f"{words} free")
    for name, entry in missing.items():
        target = part.partial / name
        digest = place.copy_out(f"{part.final.name}/{name}", target)
        if digest != entry.sha256:
            target.unlink()
            words = f"is altered: it has sha256 {digest}, the manifest says {entry.sha256}"
            raise ValueError(_fault(place, part, name, words))
        found.num_files += 1
        found.num_bytes += entry.size
    verify_files(part.partial, part.manifest)
    make_read_only(part.partial)
    fsync_tree(part.partial)
    part.partial.rename(part.final)
    fsync(part.final.parent)


def _has(part: _Part, name: str, entry: FileEntry) -> bool:
    """True if an earlier fetch left a file whole; one that it did not is removed."""
    path = part.partial / name
    if path.is_file() and digest_of_file(path) == entry.sha256:
        return True
    path.unlink(missing_ok=True)
    return False


def _fault(place: CopyPlace, part: _Part, name: str, words: str) -> str:
    return (
        f"{part.final.name}/{name} at {place.address} {words}. Nothing of it is used; remove "
        f"{place.address}/{part.final.name} and copy it again from where it was made, with recsys "
        "promote"
    )
