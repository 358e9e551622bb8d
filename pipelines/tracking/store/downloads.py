"""Fetch a bundle's files from a store into a hidden folder, verify each, then rename it into place.

Only what the manifest names is fetched, and the manifest only if it has the registered digest: a
pickle or an ``MLmodel`` that lies in the store beside a bundle's files is never read. Files that an
earlier fetch left verified are kept.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.tracking.registry import RegisteredBundle
from pipelines.tracking.store.connection import repository_of, sizes_in_store, stored_name
from recsys.data.durable import PARTIAL, digest_of_file, fsync, fsync_tree
from serving.bundle.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    BundleManifest,
    FileEntry,
    OtherVersionError,
    check_names,
    make_read_only,
    read_manifest,
    verify_files,
)

FETCHED = f"{PARTIAL}fetched-"
ARRIVING = ".arriving"
MARGIN_BYTES = 64 << 20
"""Left free on the disk."""


class DiskError(OSError):
    """The disk has no room for a bundle, or cannot be written."""


@dataclass
class Download:
    """Fetches one bundle."""

    bundle: RegisteredBundle
    final: Path
    source: str
    """Address of its files."""
    uri: str
    """Of the tracking store."""
    what: str
    num_files: int = 0
    num_bytes: int = 0

    @property
    def partial(self) -> Path:
        return self.final.with_name(f"{FETCHED}{self.bundle.digest[:16]}")

    @cached_property
    def repository(self) -> Any:
        return repository_of(self.uri, self.source)

    @staticmethod
    def sweep(bundles: Path, wanted: Sequence[Download]) -> None:
        """Remove what fetches of other bundles left; the caller holds the lock."""
        keep = {one.partial for one in wanted}
        for path in bundles.glob(f"{FETCHED}*"):
            if path not in keep:
                shutil.rmtree(path)

    def is_here(self) -> bool:
        """Whether the bundle is in its place.

        Raises:
            ValueError: Another bundle has that place.
        """
        if not self.final.exists():
            return False
        _, digest = read_manifest(self.final)
        if digest != self.bundle.digest:
            raise ValueError(
                f"{self.final} has digest {digest}, the registry's {self.what} has "
                f"{self.bundle.digest}: two bundles of one name. Nothing was fetched; fetch into "
                "another folder, or remove this one if nobody serves it"
            )
        return True

    def manifest(self) -> BundleManifest:
        """Read the manifest, from its place or from the store.

        Raises:
            ValueError: It is not the registered one, or of another version of the platform.
        """
        if self.is_here():
            return read_manifest(self.final)[0]
        if not (self.partial / MANIFEST).exists():
            self.fetch_manifest()
        try:
            manifest, digest = read_manifest(self.partial)
        except OtherVersionError as error:
            text = str(error).replace(str(self.partial), f"the registry's {self.what}")
            shutil.rmtree(self.partial)
            raise ValueError(f"{text}. Nothing was fetched") from error
        if digest != self.bundle.digest or manifest.version != self.bundle.version:
            shutil.rmtree(self.partial)
            raise ValueError(f"{self.what} changed while it was fetched; fetch it once more")
        check_names(self.partial, manifest)
        return manifest

    def fetch_manifest(self) -> None:
        """Fetch the manifest and hold it against the registered digest."""
        if self.source.startswith("bundle:"):
            raise ValueError(
                f"{self.what} was registered without its files (tracking.upload_bundles was off, "
                f"or an earlier version registered it): they lie at {self.source} on the machine "
                f"that made it. `recsys promote {self.bundle.version}` there uploads them"
            )
        size = sizes_in_store(self.repository, {""}).get(MANIFEST)
        if size is None:
            raise ValueError(
                f"{self.what} has no {MANIFEST} at {self.source}: its files were removed. "
                f"`recsys promote {self.bundle.version}` where it was made uploads them"
            )
        if size > MAX_MANIFEST_BYTES:
            raise ValueError(f"{self.what}: its manifest has {size} bytes, at most 16 MiB")
        path = self.receive(MANIFEST)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != self.bundle.digest:
            path.unlink()
            raise ValueError(
                f"{self.what} is altered: the manifest at {self.source} has sha256 {digest}, the "
                f"registry says {self.bundle.digest}. Nothing of it is used; upload it from where "
                "it was made, or point the alias at another version"
            )
        path.replace(self.partial / MANIFEST)

    def fetch(self) -> None:
        """Fetch what is missing, verify everything, and rename the bundle into place.

        Raises:
            ValueError: Names the file that is missing or altered.
            DiskError: The bundle does not fit on the disk.
        """
        if self.is_here():
            verify_files(self.final, read_manifest(self.final)[0])
            return
        files = self.manifest().files
        missing = {name: one for name, one in files.items() if not self.has(name, one)}
        self.check_store(missing)
        self.check_room(sum(one.size for one in missing.values()))
        for name, entry in missing.items():
            self.fetch_file(name, entry)
        shutil.rmtree(self.partial / ARRIVING, ignore_errors=True)
        verify_files(self.partial, self.manifest())
        make_read_only(self.partial)
        fsync_tree(self.partial)
        self.partial.rename(self.final)
        fsync(self.final.parent)

    def has(self, name: str, entry: FileEntry) -> bool:
        """Whether an earlier fetch left a file whole; one that it did not goes."""
        path = self.partial / name
        if not path.is_file():
            return False
        if path.stat().st_size == entry.size and digest_of_file(path) == entry.sha256:
            return True
        path.unlink()
        return False

    def check_store(self, files: dict[str, FileEntry]) -> None:
        """Hold names and sizes in the store against the manifest, before anything is fetched."""
        folders = {Path(name).parent.as_posix() for name in files}
        sizes = sizes_in_store(self.repository, folders)
        for name, entry in files.items():
            size = sizes.get(stored_name(name, entry.sha256))
            if size != entry.size:
                found = "is missing" if size is None else f"has {size} bytes"
                raise ValueError(
                    f"{self.what}: {name} {found} at {self.source}, the manifest says "
                    f"{entry.size} bytes. Nothing of it is used; upload it from where it was "
                    "made, or point the alias at another version"
                )

    def check_room(self, num_bytes: int) -> None:
        """Refuse to begin what does not fit on the disk."""
        free = shutil.disk_usage(self.final.parent).free
        if num_bytes + MARGIN_BYTES > free:
            raise DiskError(
                f"{self.what} needs {num_bytes:,} bytes in {self.final.parent}, {free:,} are free"
            )

    def fetch_file(self, name: str, entry: FileEntry) -> None:
        """Fetch one file and put it into its place if it is what the manifest says."""
        path = self.receive(stored_name(name, entry.sha256))
        found = digest_of_file(path)
        if found != entry.sha256:
            path.unlink()
            raise ValueError(
                f"{self.what} is altered: {name} at {self.source} has sha256 {found}, the "
                f"manifest says {entry.sha256}. Nothing of it is used; upload it from where it "
                "was made, or point the alias at another version"
            )
        target = self.partial / name
        target.parent.mkdir(exist_ok=True)
        path.replace(target)
        self.num_files += 1
        self.num_bytes += entry.size

    def receive(self, stored: str) -> Path:
        """Receive a file of the store beside the verified ones."""
        folder = self.partial / ARRIVING
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise DiskError(f"cannot write to {self.final.parent}: {error.strerror}") from error
        return Path(self.repository.download_artifacts(stored, str(folder)))
