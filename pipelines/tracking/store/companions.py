"""Send what lies beside a bundle into the store of a run, and fetch it onto another machine."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import to_json
from pipelines.engine.signing import KEY, signing_key
from pipelines.semantic_ids.store import FOLDER as SEMANTIC_IDS
from pipelines.semantic_ids.store import ITEM_IDS, LOCK, read_item_ids
from pipelines.tracking.companions import (
    DECISIONS,
    FETCHED,
    INDEX,
    MAX_INDEX_BYTES,
    advice,
    companions_of,
    files_in,
    index_of,
)
from pipelines.tracking.registry import RegisteredBundle
from pipelines.tracking.store.connection import repository_of, sizes_in_store, stored_name
from pipelines.tracking.store.uploads import Upload
from recsys.data.durable import PARTIAL, digest_of_file, locked, write_durably
from serving.bundle.manifest import FileEntry, make_read_only
from serving.bundle.published import ADAPTERS

COMPANIONS_TAG = "companions"
"""Of a registered version: the run whose store has them, and the digest of their index."""
PARTIAL_FOLDER = f"{PARTIAL}companions"


def folder_of(version: str) -> str:
    """Name the folder of a bundle's companions in the store of a run."""
    return f"companions-{version}"


def send_companions(
    upload: Upload, bundles: Path, version: str, digest: str, run_id: str
) -> str | None:
    """Send a bundle's companions, the index last.

    Returns:
        The tag of the registered version; None where nothing lies beside the bundle.
    """
    files = companions_of(bundles, version)
    if not files:
        return None
    upload.send_files(bundles, files, folder_of(version))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / INDEX
        path.write_text(to_json(index_of(version, digest, files)), encoding="utf-8")
        entry = FileEntry.of(path)
        upload.send_files(Path(scratch), {INDEX: entry}, folder_of(version))
    return f"{run_id} {entry.sha256}"


def place_of(tag: str | None) -> tuple[str, str] | None:
    """Read the run and the digest out of a tag; None where it says neither."""
    found = re.fullmatch(r"([0-9a-f]{32}) ([0-9a-f]{64})", tag or "")
    return None if found is None else (found[1], found[2])


class Companions:
    """Fetches what goes with a bundle; the caller holds the lock on fetching."""

    def __init__(self, client: Any, uri: str, found: Any, bundle: RegisteredBundle) -> None:
        self.bundle = bundle
        self.what = f"bundle {bundle.version}"
        self.place = place_of(found.tags.get(COMPANIONS_TAG))
        if self.place is not None:
            artifacts = client.get_run(self.place[0]).info.artifact_uri
            self.repository = repository_of(uri, artifacts)

    def fetch(self, bundles: Path) -> list[str]:
        """Verify all, then put each into its place; what is here already stays.

        Returns:
            The adapters that are served where the bundle was made, as domain-<name>/adapter-<v>.

        Raises:
            ValueError: One is altered, or nothing vouches for the bundle though a key is set.
        """
        if self.place is None:
            if signing_key() is None:
                return []
            raise ValueError(
                f"{self.what} came without a signed index of its files, and {KEY} is set; "
                f"{advice(self.what)}"
            )
        partial = bundles / PARTIAL_FOLDER
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            files = files_in(self.index(partial, self.place[1]), self.bundle.digest, self.what)
            for name, entry in files.items():
                self.receive(name, entry, partial, bundles)
            self.put(partial, bundles)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return sorted(
            {name.split("/", 1)[1].rpartition("/")[0] for name in files if _adapter(name)}
        )

    def index(self, partial: Path, digest: str) -> Mapping[str, Any]:
        """Fetch the index and hold it against the registered digest."""
        folder = folder_of(self.bundle.version)
        size = sizes_in_store(self.repository, {""}, folder).get(INDEX, 0)
        if not 0 < size <= MAX_INDEX_BYTES:
            raise ValueError(f"{self.what}: {INDEX} is missing or too large; {advice(self.what)}")
        path = Path(self.repository.download_artifacts(f"{folder}/{INDEX}", str(partial)))
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{INDEX} of {self.what} is altered; {advice(self.what)}")
        path.unlink()
        found: dict[str, Any] = json.loads(data)
        return found

    def receive(self, name: str, entry: FileEntry, partial: Path, bundles: Path) -> None:
        """Fetch a file unless it is here, verified by its digest."""
        here = bundles / name
        if here.is_file() and digest_of_file(here) == entry.sha256:
            return
        stored = f"{folder_of(self.bundle.version)}/{stored_name(name, entry.sha256)}"
        arriving = partial / "arriving"
        arriving.mkdir(exist_ok=True)
        path = Path(self.repository.download_artifacts(stored, str(arriving)))
        if digest_of_file(path) != entry.sha256:
            raise ValueError(f"{name} of {self.what} is altered in the store; {advice(self.what)}")
        target = partial / "whole" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)

    def put(self, partial: Path, bundles: Path) -> None:
        """Move what was fetched into its place."""
        whole = partial / "whole"
        for path in sorted((whole / DECISIONS).glob("*.json")):
            target = bundles / DECISIONS / FETCHED / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.chmod(0o444)
            path.replace(target)
        for source in sorted((whole / ADAPTERS).glob("*/*")):
            target = bundles / source.relative_to(whole)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                make_read_only(source)
                source.rename(target)
        if (whole / SEMANTIC_IDS).is_dir():
            continue_ids(whole / SEMANTIC_IDS, bundles / SEMANTIC_IDS)


def _adapter(name: str) -> bool:
    return name.startswith(f"{ADAPTERS}/")


def continue_ids(fetched: Path, here: Path) -> None:
    """Take fetched semantic IDs, unless this machine numbered its items otherwise."""
    here.mkdir(parents=True, exist_ok=True)
    with locked(here / LOCK):
        known, more = read_item_ids(here / ITEM_IDS), read_item_ids(fetched / ITEM_IDS)
        # No new numbering was fetched where it is the one that is here.
        if more and more[: len(known)] != known:
            return
        for version in sorted((fetched / "versions").glob("*")):
            target = here / "versions" / version.name
            if not target.exists():
                target.parent.mkdir(exist_ok=True)
                version.rename(target)
        # The current version last: it names what the others hold.
        for name in (ITEM_IDS, "current"):
            if (fetched / name).exists():
                write_durably(here / name, (fetched / name).read_bytes())
