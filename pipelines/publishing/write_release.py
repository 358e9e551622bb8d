"""Write a released bundle under a name of its own, with the properties of its items.

A bundle is never removed or rewritten.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast, get_args

import polars as pl

from pipelines.engine.artifacts import to_json
from pipelines.publishing.promotion import keep_refused
from recsys.data.durable import PARTIAL, fsync, write_durably
from serving.bundle.manifest import (
    MANIFEST,
    PROPERTY_NAME_PATTERN,
    PropertyKind,
    Verdict,
    bundle_directory,
    make_read_only,
    read_manifest,
    verify_files,
)
from serving.bundle.properties import Properties, to_unix_seconds
from serving.bundle.write import BundleParts, write_bundle
from serving.filtering.compile import RESERVED

ELSEWHERE = frozenset(
    ["item_row", "display_text", "title", "name", "description", "categories", *RESERVED]
)
"""Columns of the catalogue itself, or without use in a filter."""
MAX_TEXTS = 100_000
"""A column of more distinct texts is no property."""
MAX_LENGTH = 200
"""A column with a longer text is no property."""
NUMBER = r"^[-+]?(0|[1-9]\d*)?(\.\d+)?([eE][-+]?\d+)?$"
"""A text with leading zeros is a code, such as a postcode."""
DAY = r"^\d{4}-\d{2}-\d{2}([T ].*)?$"


def item_properties(items: pl.DataFrame) -> tuple[Properties, dict[str, str]]:
    """Take all columns that can be properties.

    Returns:
        The properties, and why each other column is none.
    """
    kinds: dict[str, PropertyKind] = {}
    left_out: dict[str, str] = {}
    for name in items.columns:
        if name in ELSEWHERE:
            continue
        found = _find_kind(name, items[name])
        if found in get_args(PropertyKind):
            kinds[name] = cast("PropertyKind", found)
        else:
            left_out[name] = found
    values = {name: items[name].to_list() for name in kinds}
    return Properties.of_values(kinds, values), left_out


def _find_kind(name: str, column: pl.Series) -> str:
    """Find a column's kind, or why it has none."""
    if not re.match(PROPERTY_NAME_PATTERN, name):
        return "its name is too long, or has a dot, slash or backtick"
    dtype = column.dtype
    if column.null_count() == len(column):
        return "it is empty"
    if dtype.is_numeric() or dtype == pl.Boolean:
        return "boolean" if dtype == pl.Boolean else "number"
    if dtype in (pl.Date, pl.Datetime):
        return "date"
    inner = dtype.inner if isinstance(dtype, pl.List) else dtype
    if inner in (pl.String, pl.Categorical, pl.Enum) or (inner != dtype and inner.is_integer()):
        return _find_kind_of_texts(column)
    return f"{dtype} is not a kind that filters compare"


def _find_kind_of_texts(column: pl.Series) -> str:
    """Find the kind of texts or of lists of them."""
    listed = isinstance(column.dtype, pl.List)
    texts = column.explode() if listed else column
    texts = texts.cast(pl.String).str.strip_chars().unique().drop_nulls()
    texts = texts.filter(texts != "")
    if len(texts) == 0:
        return "it is empty"
    if not listed and (read := _read_as(texts)) is not None:
        return read
    if len(texts) > MAX_TEXTS:
        return f"it has more than {MAX_TEXTS} distinct texts"
    if (texts.str.len_chars() > MAX_LENGTH).any():
        return f"it has a text of more than {MAX_LENGTH} characters"
    return "list" if listed else "text"


def _read_as(texts: pl.Series) -> PropertyKind | None:
    """Find what all texts are where they are more than texts, as those of a CSV file."""
    if texts.str.contains(NUMBER).all():
        return "number"
    if texts.str.to_lowercase().is_in(["true", "false"]).all():
        return "boolean"
    if texts.str.contains(DAY).all() and _are_dates(texts):
        return "date"
    return None


def _are_dates(texts: pl.Series) -> bool:
    try:
        for text in texts:
            to_unix_seconds(text)
    except (ValueError, OverflowError):
        return False
    return True


TIMED = "time of a list"
"""A verdict whose value differs between equal runs: in the decision, not in the bundle."""
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
    write_durably(directory / MANIFEST, to_json(judged.model_dump(mode="json")))
    make_read_only(directory)


def holds_the_same(directory: Path, other: Path) -> bool:
    """True if a bundle is whole and differs from another only in its name and its verdicts."""
    try:
        manifest, _ = read_manifest(directory)
        verify_files(directory, manifest)
    except (ValueError, OSError):
        return False
    differs = {"version", "verdicts"}
    return manifest.model_dump(exclude=differs) == read_manifest(other)[0].model_dump(
        exclude=differs
    )
