"""Write a released bundle under a name of its own: what is there is never removed or rewritten."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.bundle.manifest import Verdict, bundle_directory, read_manifest, verify_files
from serving.bundle.write import BundleParts, write_bundle


def is_release_of(version: str, name: str) -> bool:
    """Whether a version is ``name`` or a later release of it (``name-2``, ``name-3``, ...)."""
    return re.fullmatch(re.escape(name) + r"(-[1-9][0-9]*)?", version) is not None


def releases_of(folder: Path, name: str) -> list[str]:
    """List the versions in a folder of bundles that were released under a name, oldest first."""
    found = [path.name.removeprefix("bundle-") for path in folder.glob(f"bundle-{name}*")]
    return sorted(
        (one for one in found if is_release_of(one, name)), key=lambda one: (len(one), one)
    )


def write_release(
    folder: Path,
    parts: BundleParts,
    *,
    name: str,
    metrics: Mapping[str, Mapping[str, float]],
    verdicts: Sequence[Verdict],
    config_digest: str,
) -> str:
    """Write ``bundle-<name>``, or the next free ``bundle-<name>-<n>``; return its version.

    Where an earlier one holds the same and is whole, that one is returned and no copy is kept. The
    caller holds the lock of the folder.
    """
    earlier = releases_of(folder, name)
    taken = {int(one[len(name) + 1 :] or 1) for one in earlier}
    version = f"{name}-{max(taken) + 1}" if taken else name
    written = write_bundle(
        folder,
        parts,
        version=version,
        metrics=metrics,
        verdicts=verdicts,
        config_digest=config_digest,
    )
    for one in earlier:
        if holds_the_same(bundle_directory(folder, one), written):
            # Nothing points at it yet.
            shutil.rmtree(written)
            return one
    return version


def holds_the_same(directory: Path, other: Path) -> bool:
    """Whether a bundle is whole and differs from another only in its name and its verdicts."""
    try:
        manifest, _ = read_manifest(directory)
        verify_files(directory, manifest)
    except (ValueError, OSError):
        return False
    differs = {"version", "verdicts"}
    return manifest.model_dump(exclude=differs) == read_manifest(other)[0].model_dump(
        exclude=differs
    )
