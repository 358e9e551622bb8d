"""Write a released bundle under a name of its own.

A bundle is never removed or rewritten.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pipelines.config.operation import TIMED
from pipelines.engine.artifacts import write_json
from pipelines.publishing.promotion import keep_refused
from recsys.data.durable import PARTIAL, fsync
from serving.bundle.manifest import (
    MANIFEST,
    Verdict,
    bundle_directory,
    make_read_only,
    read_manifest,
    verify_files,
)
from serving.bundle.write import BundleParts, write_bundle

Judge = Callable[[Path], Sequence[Verdict]]


class WrittenRelease(NamedTuple):
    """A bundle that was written and judged."""

    version: str
    digest: str
    verdicts: Sequence[Verdict]

    @property
    def passed(self) -> bool:
        """True if it may be published; else it is among the refused."""
        return all(verdict.passed for verdict in self.verdicts)


def is_same_release(version: str, name: str) -> bool:
    """True if a version is ``name`` or a later release of it (``name-2``, ``name-3``, ...)."""
    return re.fullmatch(re.escape(name) + r"(-[1-9][0-9]*)?", version) is not None


def list_releases(folder: Path, name: str) -> list[str]:
    """List the versions in a folder of bundles that were released under a name, oldest first."""
    found = [path.name.removeprefix("bundle-") for path in folder.glob(f"bundle-{name}*")]
    return sorted(
        (one for one in found if is_same_release(one, name)), key=lambda one: (len(one), one)
    )


def write_release(
    folder: Path,
    parts: BundleParts,
    *,
    name: str,
    metrics: Mapping[str, Mapping[str, float]],
    config_digest: str,
    judge: Judge,
) -> WrittenRelease:
    """Write ``bundle-<name>``, or the next free ``bundle-<name>-<n>``.

    It is written aside and judged there; a refused one goes to the folder ``refused``. Where an
    earlier one holds the same and is whole, that one is returned and no copy is kept. The caller
    holds the lock of the folder.
    """
    earlier = list_releases(folder, name)
    taken = {int(one[len(name) + 1 :] or 1) for one in earlier}
    version = f"{name}-{max(taken) + 1}" if taken else name
    with aside(folder) as scratch:
        written = write_bundle(
            scratch, parts, version=version, metrics=metrics, config_digest=config_digest
        )
        verdicts = judge(written)
        passed = all(verdict.passed for verdict in verdicts)
        for one in earlier if passed else ():
            if holds_the_same(directory := bundle_directory(folder, one), written):
                return WrittenRelease(one, read_manifest(directory)[1], verdicts)
        add_verdicts(written, verdicts)
        digest = read_manifest(written)[1]
        if passed:
            written.rename(bundle_directory(folder, version))
        else:
            keep_refused(folder, written)
    fsync(folder)
    return WrittenRelease(version, digest, verdicts)


@contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """Offer an empty folder on the same disk, removed at the end; a kill's rest is swept first."""
    scratch = folder / f"{PARTIAL}candidate"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def repeatable(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Leave out measured times, so that equal inputs give equal bundles."""
    untimed = {"value": None, "bound": None, "reason": "in the decision"}
    return [one.model_copy(update=untimed) if one.name == TIMED else one for one in verdicts]


def add_verdicts(directory: Path, verdicts: Sequence[Verdict]) -> None:
    """Write verdicts into the manifest of a bundle that is not published yet."""
    manifest, _ = read_manifest(directory)
    judged = manifest.model_copy(update={"verdicts": repeatable(verdicts)})
    write_json(directory / MANIFEST, judged.model_dump(mode="json"))
    make_read_only(directory)


def holds_the_same(directory: Path, other: Path) -> bool:
    """True if a bundle is whole and differs from another only in its name and its verdicts."""
    try:
        manifest, _ = read_manifest(directory)
        verify_files(directory, manifest)
    except (ValueError, OSError):
        return False
    one, another = (
        found.model_dump(exclude={"version", "verdicts"})
        for found in (manifest, read_manifest(other)[0])
    )
    return bool(one == another)
