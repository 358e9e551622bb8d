"""What lies beside a bundle and goes with it to other machines.

    decisions/<time>-<version>.json       the latest decision on it
    adapters/domain-*/adapter-*/          the adapters that are served
    semantic_ids/                         the published semantic IDs, which new items continue

They are uploaded under an index, which names the bundle's digest and each file's, and is signed
where operators set a key: so it also vouches for a delta, on which no decision is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pipelines.engine.signing import KEY, check_signature, signed, signing_key
from pipelines.semantic_ids.store import FOLDER as SEMANTIC_IDS
from serving.bundle.manifest import FileEntry
from serving.bundle.published import ADAPTERS, served_adapters

DECISIONS = "decisions"
FETCHED = "fetched"
"""Below the decisions of this machine, whose chain has no gaps, those that came with bundles."""
INDEX = "companions.json"
MAX_INDEX_BYTES = 16 << 20
_ALLOWED = re.compile(
    rf"{DECISIONS}/\d{{8}}T\d{{6}}\.\d{{6}}Z-[\w.+-]+\.json"
    rf"|{ADAPTERS}/domain-[\w.%~-]+/adapter-[0-9a-f]{{12}}/\w+\.(json|safetensors)"
    rf"|{SEMANTIC_IDS}/(item_ids\.json|current|versions/[0-9a-f]{{64}}/[\w./-]+\.(json|safetensors))",
    flags=re.ASCII,
)


def decisions_on(folder: Path, version: str) -> list[Path]:
    """List the decisions on a version, or on the release that it stands on, oldest first."""
    names = (version, version.partition("+")[0])
    return [path for path in sorted(folder.glob("*.json")) if path.stem.partition("-")[2] in names]


def companions_of(bundles: Path, version: str) -> dict[str, FileEntry]:
    """Digest the files that go with a bundle, by their path below the folder of bundles."""
    paths = [
        *decisions_on(bundles / DECISIONS, version)[-1:],
        *(path for one in served_adapters(bundles).values() for path in _files(bundles, one)),
        *_files(bundles, bundles / SEMANTIC_IDS),
    ]
    named = {path.relative_to(bundles).as_posix(): path for path in paths}
    return {name: FileEntry.of(path) for name, path in named.items() if is_companion(name)}


def _files(bundles: Path, folder: Path) -> Iterator[Path]:
    place = bundles.resolve()
    for path in sorted(folder.resolve().rglob("*")):
        if path.is_file() and path.is_relative_to(place):
            yield bundles / path.relative_to(place)


def is_companion(name: str) -> bool:
    """Whether a path is one of those that are uploaded and fetched, and stays below its folder."""
    hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
    return _ALLOWED.fullmatch(name) is not None and not hidden


def index_of(version: str, digest: str, files: Mapping[str, FileEntry]) -> dict[str, Any]:
    """Write the index of a bundle's companions, signed where a key is set."""
    entries = {name: entry.model_dump(mode="json") for name, entry in sorted(files.items())}
    document = {"format": 1, "bundle": version, "digest": digest, "files": entries}
    return signed(document, signing_key())


def files_in(index: Mapping[str, Any], digest: str, what: str) -> dict[str, FileEntry]:
    """Verify an index, and list its files.

    Args:
        digest: Of the bundle, as it is registered.
        what: How messages name the bundle.

    Raises:
        ValueError: It is of another bundle, altered, or not signed though a key is set.
    """
    key = signing_key()
    state = check_signature(index, key, f"{INDEX} of {what}")
    if key is not None and state != "signed":
        raise ValueError(f"{INDEX} of {what} is not signed, and {KEY} is set; {advice(what)}")
    if index.get("digest") != digest:
        raise ValueError(f"{INDEX} of {what} is of another bundle; {advice(what)}")
    files = {name: FileEntry(**entry) for name, entry in index["files"].items()}
    if wrong := [name for name in files if not is_companion(name)]:
        raise ValueError(f"{INDEX} of {what} names {wrong[0]!r}, which is none; {advice(what)}")
    return files


def advice(what: str) -> str:
    """Say what to do where a bundle came without what has to come with it."""
    return (
        f"promote {what} with recsys promote where it was made and the key is set, which uploads "
        "it with what belongs to it"
    )
