"""Upload a bundle's files into the store of a run, the manifest last.

A store that has a manifest therefore has the whole bundle. Files go one by one, streamed; what was
sent is kept by digest, so that a kill costs one file and not the bundle.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.tracking.store.connection import (
    patient,
    repository_of,
    sizes_in_store,
    stored_name,
)
from recsys.data.durable import digest_of_file
from serving.bundle.manifest import MANIFEST, FileEntry, read_manifest


class OutOfTime(Exception):
    """The time for sending is over; the rest is sent later."""


class AlteredError(ValueError):
    """What was registered is no longer what lies in the folder of bundles."""


def files_of(directory: Path, digest: str) -> dict[str, FileEntry]:
    """List a bundle's files, the manifest last.

    Raises:
        AlteredError: There is no such bundle, or another one than was registered.
    """
    try:
        manifest, found = read_manifest(directory)
    except (ValueError, OSError) as error:
        raise AlteredError(str(error)) from error
    if found != digest:
        raise AlteredError(f"{directory} has digest {found}, but {digest} was registered")
    return {**manifest.files, MANIFEST: FileEntry.of(directory / MANIFEST)}


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Sends the files of bundles to the store of one run."""

    uri: str
    """Of the tracking store."""
    artifact_uri: str
    """Of the run."""
    sent: dict[str, str]
    """Digests of the files that were sent before, by path in the run's store; added to."""
    save: Callable[[], None]
    """Keeps ``sent``; called after each file."""
    deadline: float

    def send(self, directory: Path, digest: str, folder: str) -> str:
        """Send a bundle; return the address of its files.

        Args:
            folder: Where the bundle lies in the run's store.

        Raises:
            AlteredError: The bundle, or a file of it, is not what was registered.
            OutOfTime: The deadline passed; what was sent is kept.
        """
        self.send_files(directory, files_of(directory, digest), folder)
        return f"{self.artifact_uri.rstrip('/')}/{folder}"

    def send_files(self, directory: Path, files: dict[str, FileEntry], folder: str) -> None:
        """Send files below a folder, in their order; errors as of ``send``."""
        repository = repository_of(self.uri, self.artifact_uri)
        named = [stored_name(name, entry.sha256) for name, entry in files.items()]
        above = {Path(name).parent.as_posix().removeprefix(".") for name in named}
        there = sizes_in_store(repository, above, folder)
        for number, (name, entry) in enumerate(files.items()):
            if time.monotonic() > self.deadline:
                raise OutOfTime(f"{number} of {len(files)} files of {directory.name} are uploaded")
            stored = stored_name(name, entry.sha256)
            path = f"{folder}/{stored}"
            is_there = there.get(stored) == entry.size
            if is_there and self.sent.get(path) == entry.sha256:
                continue
            # A kill between the last byte and the note of it: the store is read to be sure.
            if not is_there or self.digest_in_store(repository, path) != entry.sha256:
                self.send_file(repository, directory / name, entry, path)
            self.sent[path] = entry.sha256
            self.save()

    def send_file(self, repository: Any, source: Path, entry: FileEntry, path: str) -> None:
        """Send one file under its name in the store."""
        if not source.is_file() or digest_of_file(source) != entry.sha256:
            raise AlteredError(f"{source} is missing or altered")
        with tempfile.TemporaryDirectory() as folder, self.long_requests():
            # A file is stored under its own name.
            link = Path(folder) / Path(path).name
            link.symlink_to(source.absolute())
            repository.log_artifact(str(link), Path(path).parent.as_posix())

    def digest_in_store(self, repository: Any, path: str) -> str:
        """Digest a file as the store has it."""
        with tempfile.TemporaryDirectory() as folder, self.long_requests():
            return digest_of_file(Path(repository.download_artifacts(path, folder)))

    def long_requests(self) -> Any:
        """Let one request take the time that is left."""
        return patient(self.deadline - time.monotonic())
