"""The published parts: the bundle that ``current`` points at, and the adapters next to it.

A server looks at them twice a second, so that a new one is found without reading any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.bundle.manifest import CURRENT, MANIFEST

ADAPTERS = "adapters"
ADAPTER_MANIFEST = "adapter.json"
Identity = tuple[tuple[str, int, int, int], ...]
"""Folder of each part, and inode, size and time of its manifest: differs for each new one."""


def identify(bundle: Path, config: Path | None = None) -> Identity:
    """Identify a bundle (or ``current``) with the adapters next to it, without reading either.

    Args:
        config: Serving configuration, another published part.
    """
    adapters = served_adapters(bundle.parent).values()
    return (
        _identify_file(bundle, MANIFEST),
        *(_identify_file(directory, ADAPTER_MANIFEST) for directory in adapters),
        *(() if config is None else (_identify_file(config.parent, config.name),)),
    )


def _identify_file(directory: Path, name: str) -> tuple[str, int, int, int]:
    # realpath gives a path for a link to itself too.
    target = os.path.realpath(directory)
    try:
        manifest = (Path(target) / name).stat()
    except OSError:
        return (target, 0, 0, 0)
    return (target, manifest.st_ino, manifest.st_size, manifest.st_mtime_ns)


def served_adapters(bundles_dir: Path) -> dict[str, Path]:
    """Resolve each domain's ``current``, by the folder's name."""
    folders = sorted((bundles_dir / ADAPTERS).glob("domain-*"))
    links = [folder / CURRENT for folder in folders]
    # Dangling links are kept and reported.
    return {link.parent.name: Path(os.path.realpath(link)) for link in links if link.is_symlink()}


@contextmanager
def permitted() -> Iterator[None]:
    """Turn a PermissionError into a ValueError that names the file and the remedy."""
    try:
        yield
    except PermissionError as error:
        raise ValueError(
            f"{error.filename} may not be read by the user that serves (uid {os.geteuid()}); run "
            "the server as the owner of the bundles, or let everyone read them: "
            "chmod -R a+rX <folder of the bundles>"
        ) from error


def check_published(bundle: Path) -> None:
    """Check that there is a bundle to serve."""
    try:
        with permitted():
            there = bundle.exists()
    except OSError:
        there = False
    if there:
        return
    found = sorted(path.name for path in bundle.parent.glob("bundle-*"))
    raise ValueError(
        f"there is no bundle to serve: {bundle} does not exist"
        + (f" (found {', '.join(found[-3:])}, none published)" if found else "")
        + ". Release one with `recsys run <your>.toml` (or `make demo`), or name another "
        "folder, as RUN or as RECSYS_BUNDLES"
    )
