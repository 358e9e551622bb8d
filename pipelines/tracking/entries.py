"""Tags of a bundle in the registry, among them a pointer that is signed if a key is set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipelines.engine.signing import KEY, check_signature, signed, signing_key
from serving.bundle.manifest import FileEntry

CHAMPION = "champion"
CHALLENGER = "challenger"
DECISIONS = "decisions"
FETCHED = "fetched"
"""Folder of the decisions that came with bundles, which are no part of this machine's chain."""
POINTER = "pointer"
"""Tag with the bundle's version and digest, and the name and digest of the decision on it."""
BUNDLES = "bundles"
"""Tag with the folder of bundles, or its URL, that has the files."""


def decisions_on(folder: Path, version: str) -> list[Path]:
    """List the decisions on a version, or on the release that it was appended to, oldest first."""
    names = (version, version.partition("+")[0])
    return [path for path in sorted(folder.glob("*.json")) if path.stem.partition("-")[2] in names]


def registry_tags(
    bundles: Path, version: str, digest: str, verdicts: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Build the tags of a bundle in the registry."""
    decisions = decisions_on(bundles / DECISIONS, version)[-1:]
    pointer = {
        "bundle": version,
        "digest": digest,
        "decision": {path.name: FileEntry.of(path).sha256 for path in decisions},
    }
    return {
        BUNDLES: str(bundles.absolute()),
        POINTER: json.dumps(signed(pointer, signing_key()), sort_keys=True),
        **{f"verdict.{one['name']}": str(one["value"]) for one in verdicts},
    }


def decision_of(pointer: str, version: str, digest: str) -> dict[str, str]:
    """Verify a pointer; return the digest of the decision on the bundle by its file's name.

    Raises:
        ValueError: It is of another bundle, altered, or not signed though a key is set.
    """
    advice = f"`recsys release promote {version}` where it was made registers it again"
    key, what = signing_key(), f"the registry's pointer to bundle {version}"
    found = json.loads(pointer) if pointer else {}
    if check_signature(found, key, what) != "signed" and key is not None:
        raise ValueError(f"{what} is not signed, and {KEY} is set; {advice}")
    if not found:
        return {}
    if (found.get("bundle"), found.get("digest")) != (version, digest):
        raise ValueError(f"{what} is of another bundle; {advice}")
    return {Path(name).name: str(one) for name, one in found["decision"].items()}
